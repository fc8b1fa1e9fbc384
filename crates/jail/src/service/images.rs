//! Images: unpacked by a child process with the layer store's ids, confined to one directory.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::PipeFlags;

use super::Service;
use super::processes::ProcessKind;
use super::sealing::background_process;
use crate::catalog::{CopyKind, Image, ImageRecord, unix_millis};
use crate::error::{AtStep, CatalogKind, Error, LaunchStep};
use crate::layers::{LayerContent, LayerPart};
use crate::overlay_xattrs::OverlayXattrs;
use crate::sandbox::validate_label;
use crate::unpack::{self, UnpackedImage};
use crate::wire::Answer;
use crate::{id_maps, kernel};

/// An image that is being unpacked.
pub(super) struct ImportInProgress {
    request: u64,
    name: String,
    pub layer: String,
    /// The child's report.
    report: File,
}

impl Service {
    pub(super) fn import_image(&mut self, request: u64, name: &str, descriptors: Vec<OwnedFd>) -> Result<(), Error> {
        validate_label(name)?;
        let Ok([archive]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            return Err(Error::protocol("an image needs one descriptor, its archive"));
        };
        let store = self.data_dir()?;
        let busy = self.imports.iter().any(|import| import.name == name);
        if busy || store.images.entries.contains_key(name) {
            return Err(Error::AlreadyExists { kind: CatalogKind::Image, name: name.to_owned() });
        }
        let layer = match store.layers.quota {
            Some(_) => store.layers.create_image_volume()?,
            None => store.layers.create_layer(LayerContent::Image, true, OverlayXattrs::User)?,
        };
        match self.start_importer(&layer, &archive) {
            Ok((process, report)) => {
                self.tracked.push(background_process(ProcessKind::Importer, &import_key(&layer), process));
                self.imports.push(ImportInProgress { request, name: name.to_owned(), layer, report });
                Ok(())
            }
            Err(error) => {
                self.discard_layers([layer.as_str()]);
                Err(error)
            }
        }
    }

    fn start_importer(&self, layer: &str, archive: &OwnedFd) -> Result<(kernel::ChildProcess, File), Error> {
        let layers = &self.data_dir()?.layers;
        let failed = |failure| Error::step("new", failure);
        let (report, report_writer) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors).map_err(failed)?;
        let path = layers.part_dir(layer, LayerPart::System);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|error| Error::file("open", &path, error))?;
        let process = id_maps::spawn_in_namespace(&layers.map, || {
            self.close_launcher_fds();
            kernel::close_inherited(report.as_fd());
            unpack::run_importer(archive.as_fd(), directory.as_fd(), &layers.map, report_writer.as_fd())
        });
        Ok((process.map_err(failed)?, File::from(report)))
    }

    /// Handles the importer's exit: stores the image or removes its layer.
    pub(super) fn finish_import(&mut self, tracked: &str) -> Result<(), Error> {
        let Some(index) = self.imports.iter().position(|import| import_key(&import.layer) == tracked) else {
            return Ok(());
        };
        let ImportInProgress { request, name, layer, mut report } = self.imports.remove(index);
        let mut text = Vec::new();
        let read = report.read_to_end(&mut text).ok().and_then(|_| serde_json::from_slice(&text).ok());
        let outcome: Result<UnpackedImage, String> =
            read.unwrap_or_else(|| Err("the importer was killed: it may use at most 1 GiB of memory".to_owned()));
        let entry =
            outcome.map_err(|reason| Error::InvalidArchive { name: name.clone(), reason }).and_then(|unpacked| {
                let UnpackedImage { bytes, layers, skipped } = unpacked;
                let image = Image { name: name.clone(), bytes, layers, created_at: unix_millis(), skipped };
                self.data_dir_mut()?
                    .images
                    .insert_entry(&name, ImageRecord { layer: layer.clone(), image: image.clone() })?;
                Ok(image)
            });
        if entry.is_err() {
            self.discard_layers([layer.as_str()]);
        }
        self.send_answer(request, entry.map(Answer::Image))
    }

    pub(super) fn list_images(&self, id: u64) -> Result<(), Error> {
        for entry in self.data_dir()?.images.entries.values() {
            self.send_answer(id, Ok(Answer::Image(entry.image.clone())))?;
        }
        self.send_answer(id, Ok(Answer::Done))
    }

    pub(super) fn forget_image(&mut self, name: &str) -> Result<(), Error> {
        validate_label(name)?;
        let store = self.data_dir()?;
        let Some(entry) = store.images.entries.get(name) else {
            return Err(Error::NotFound { kind: CatalogKind::Image, name: name.to_owned() });
        };
        let layer = entry.layer.clone();
        let is_it = |base: &Option<crate::layers::ImageLayer>| base.as_ref().is_some_and(|base| base.layer == layer);
        let sandbox = self
            .sandboxes
            .iter()
            .find(|(_, sandbox)| sandbox.record.as_ref().is_some_and(|record| is_it(&record.stack.image)));
        let snapshot = store.snapshots.entries.values().find(|entry| is_it(&entry.image));
        let by = sandbox
            .map(|(name, _)| format!("sandbox {name}"))
            .or_else(|| snapshot.map(|entry| format!("snapshot {}", entry.name)));
        if let Some(by) = by {
            return Err(Error::InUse { kind: CatalogKind::Image, name: name.to_owned(), by });
        }
        let based_on_it = store.caches.entries.values().filter(|entry| is_it(&entry.image));
        for cache in based_on_it.map(|entry| entry.name.clone()).collect::<Vec<_>>() {
            self.forget_copy(CopyKind::Cache, &cache)?;
        }
        self.data_dir_mut()?.images.remove_entry(name)?;
        let paths = self.release_layers(None, [layer.as_str()].into_iter());
        self.remove_in_background(paths);
        Ok(())
    }
}

/// The name that the importer is tracked under; no sandbox can have it.
fn import_key(layer: &str) -> String {
    format!(".image-{layer}")
}
