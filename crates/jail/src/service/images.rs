//! Imported roots: unpacked by a process of their own, under the ids of the layers and confined to one directory.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::pipe::PipeFlags;

use super::Service;
use super::layering::background;
use super::processes::Kind;
use crate::catalog::{Image, KeptImage, now};
use crate::error::{AtStep, Error, Kept, Step};
use crate::layers::{Beginning, Part};
use crate::place::check_label;
use crate::unpack::{self, Unpacked};
use crate::wire::Answer;
use crate::{kernel, maps};

/// A root that is being unpacked.
pub(super) struct Importing {
    request: u64,
    name: String,
    pub layer: String,
    /// What the process says at its end.
    report: File,
}

impl Service {
    pub(super) fn import(&mut self, request: u64, name: &str, given: Vec<OwnedFd>) -> Result<(), Error> {
        check_label(name)?;
        let Ok([archive]) = <[OwnedFd; 1]>::try_from(given) else {
            return Err(Error::protocol("an image needs one descriptor, its archive"));
        };
        let store = self.store()?;
        let busy = self.imports.iter().any(|import| import.name == name);
        if busy || store.images.kept.contains_key(name) {
            return Err(Error::Taken { kind: Kept::Image, name: name.to_owned() });
        }
        let layer = match store.layers.quota {
            Some(_) => store.layers.make_root_volume()?,
            None => store.layers.make(Beginning::Root, true)?,
        };
        match self.start_importer(&layer, &archive) {
            Ok((process, report)) => {
                self.tracked.push(background(Kind::Importer, &key(&layer), process));
                self.imports.push(Importing { request, name: name.to_owned(), layer, report });
                Ok(())
            }
            Err(error) => {
                self.discard_layers([layer.as_str()]);
                Err(error)
            }
        }
    }

    fn start_importer(&self, layer: &str, archive: &OwnedFd) -> Result<(kernel::Process, File), Error> {
        let layers = &self.store()?.layers;
        let failed = |failure| Error::step("new", failure);
        let (report, said) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors).map_err(failed)?;
        let path = layers.part(layer, Part::System);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::openat(CWD, &path, flags, Mode::empty()).map_err(|error| Error::file("open", &path, error))?;
        let process = maps::spawn_in_namespace(&layers.map, || {
            self.close_copies();
            kernel::close_copy(report.as_fd());
            unpack::run(archive.as_fd(), directory.as_fd(), &layers.map, said.as_fd())
        });
        Ok((process.map_err(failed)?, File::from(report)))
    }

    /// The importer has ended: what it made is an image now, or goes.
    pub(super) fn imported(&mut self, tracked: &str) -> Result<(), Error> {
        let Some(index) = self.imports.iter().position(|import| key(&import.layer) == tracked) else { return Ok(()) };
        let Importing { request, name, layer, mut report } = self.imports.remove(index);
        let mut text = Vec::new();
        let read = report.read_to_end(&mut text).ok().and_then(|_| serde_json::from_slice(&text).ok());
        let outcome: Result<Unpacked, String> = read
            .unwrap_or_else(|| Err("the process that unpacks it was ended: it may take 1 GiB of memory".to_owned()));
        let kept = outcome.map_err(|reason| Error::Archive { name: name.clone(), reason }).and_then(|unpacked| {
            let Unpacked { bytes, layers, skipped } = unpacked;
            let image = Image { name: name.clone(), bytes, layers, created_at: now(), skipped };
            self.store_mut()?.images.keep(&name, KeptImage { layer: layer.clone(), image: image.clone() })?;
            Ok(image)
        });
        if kept.is_err() {
            self.discard_layers([layer.as_str()]);
        }
        self.answer(request, kept.map(Answer::Image))
    }

    pub(super) fn list_images(&self, id: u64) -> Result<(), Error> {
        for kept in self.store()?.images.kept.values() {
            self.answer(id, Ok(Answer::Image(kept.image.clone())))?;
        }
        self.answer(id, Ok(Answer::Done))
    }

    pub(super) fn forget_image(&mut self, name: &str) -> Result<(), Error> {
        check_label(name)?;
        let store = self.store()?;
        let Some(kept) = store.images.kept.get(name) else {
            return Err(Error::NotKept { kind: Kept::Image, name: name.to_owned() });
        };
        let layer = kept.layer.clone();
        let is_it = |base: &Option<crate::layers::Base>| base.as_ref().is_some_and(|base| base.layer == layer);
        let sandbox = self
            .sandboxes
            .iter()
            .find(|(_, sandbox)| sandbox.record.as_ref().is_some_and(|record| is_it(&record.stack.image)));
        let snapshot = store.snapshots.kept.values().find(|kept| is_it(&kept.image));
        let by = sandbox
            .map(|(name, _)| format!("sandbox {name}"))
            .or_else(|| snapshot.map(|kept| format!("snapshot {}", kept.name)));
        if let Some(by) = by {
            return Err(Error::InUse { kind: Kept::Image, name: name.to_owned(), by });
        }
        self.store_mut()?.images.forget(name)?;
        let paths = self.let_go(None, [layer.as_str()].into_iter());
        self.remove_in_background(paths);
        Ok(())
    }
}

/// Under what its process is watched: not a name that a sandbox can have.
fn key(layer: &str) -> String {
    format!(".image-{layer}")
}
