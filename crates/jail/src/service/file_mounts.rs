//! Prepares the mounts of a new process: plain directories, overlays, or clones of a running sandbox's mounts.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Service;
use super::processes::{ProcessKind, TrackedProcess};
use crate::error::{AtStep, Errno, Error, LaunchStep, StepFailure};
use crate::host_report::MissingFeature;
use crate::id_ranges::IdMap;
use crate::layers::{LayerContent, LayerStack, check_idmapped_mounts, clone_idmapped_mount};
use crate::overlay_mounter::OverlayMounter;
use crate::overlay_xattrs::OverlayXattrs;
use crate::sandbox::{AGENT_UID, IdMapKind};
use crate::setup::Role;
use crate::setup::mount_sources::clone_mount;
use crate::setup::overlay::{OverlayMounts, OverlayRequest};
use crate::setup::programs::{ProgramMount, clone_program_mount};
use crate::{kernel, live_sandbox};

/// Mounts that the launcher cloned for a new process.
pub(super) struct PreparedMounts {
    pub overlays: OverlayRequest,
    /// The overlays, if the launcher has mounted them.
    pub mounted: Option<OverlayMounts>,
    pub store: Option<OwnedFd>,
    pub files: Option<[OwnedFd; 2]>,
    /// Temporary files and spool, if they are in the layer store.
    pub scratch: Option<[OwnedFd; 2]>,
    /// The agent's programs; `None` if the process itself must clone them.
    pub programs: Option<Vec<ProgramMount>>,
}

/// Agents' directory in the data directory.
const AGENTS_DIR: &str = "agents";

/// Time-out for a starting process to mount its files.
const START_TIMEOUT: Duration = Duration::from_secs(10);

impl Service {
    pub(super) fn prepare_mounts(&mut self, name: &str, role: Role) -> Result<PreparedMounts, Error> {
        let (_, record) = self.find_sandbox(name)?;
        let (stack, map) = (record.stack.clone(), record.map.clone());
        // A one-shot run uses the host's tools, even if the sandbox has an image.
        let system = role == Role::Worker && stack.image.is_some();
        let has_lower_layers = !stack.below.is_empty();
        let files = if has_lower_layers { self.clone_files_of_running(name)? } else { None };
        let overlays = OverlayRequest { files: has_lower_layers && files.is_none(), system };
        let failed = |failure| Error::step(name, failure);
        let (store, files) = match self.mapping_namespace(&map).map_err(failed)? {
            None => (None, files),
            Some(namespace) => {
                let layers = &self.data_dir()?.layers;
                let needs_store = overlays.files || overlays.system;
                let store = if needs_store { Some(layers.clone_mount(&namespace).map_err(failed)?) } else { None };
                let files = match files {
                    None if !has_lower_layers => {
                        let workspace =
                            clone_idmapped_mount(&layers.workspace_dir(&stack.top), &namespace).map_err(failed)?;
                        Some([
                            workspace,
                            clone_idmapped_mount(&layers.home_dir(&stack.top), &namespace).map_err(failed)?,
                        ])
                    }
                    files => files,
                };
                (store, files)
            }
        };
        let mounted = match (overlays.files || overlays.system).then(|| self.mounter(&map, &stack, overlays)) {
            Some(mounter) => mounter.and_then(|mounter| mounter.map(OverlayMounter::mount_and_finish).transpose()),
            None => Ok(None),
        };
        let mounted = mounted.map_err(failed)?;
        let scratch = self.clone_scratch_mounts(&stack, name)?;
        let programs = self.clone_programs(name, role)?;
        Ok(PreparedMounts { overlays, mounted, store, files, scratch, programs })
    }

    /// Clones the programs' mounts as root: they may be in a home directory that the new process cannot enter.
    fn clone_programs(&self, name: &str, role: Role) -> Result<Option<Vec<ProgramMount>>, Error> {
        let programs = match role {
            Role::Worker => self.find_sandbox(name)?.1.spec.programs.as_slice(),
            Role::Agent | Role::Root => &[],
        };
        let data = &self.settings.data_dir;
        let is_data = |path: &Path| path.starts_with(data) && !path.starts_with(data.join(AGENTS_DIR));
        if let Some(program) = programs.iter().find(|program| is_data(&program.from)) {
            let reason = format!("{} would expose the server's data", program.from.display());
            return Err(Error::InvalidSpec { reason });
        }
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let mounts = programs
            .iter()
            .map(|program| clone_program_mount(&program.from, self.settings.server_user))
            .collect::<Result<_, _>>();
        mounts.map(Some).map_err(|failure| Error::step(name, failure))
    }

    /// Returns the user namespace that maps stored ids to a sandbox's ids. Cached per range, as ranges are reused.
    pub(super) fn mapping_namespace(&mut self, map: &IdMap) -> Result<Option<OwnedFd>, StepFailure> {
        let Some(range) = map.exclusive_range() else { return Ok(None) };
        if let Some(known) = self.mapping_namespaces.get(&range.first) {
            return known.try_clone().map(Some).at(LaunchStep::Descriptors);
        }
        let Some(store) = &self.data_dir else { return Ok(None) };
        let Some(created) = store.layers.mapping_namespace(map)? else { return Ok(None) };
        let copy = created.try_clone().at(LaunchStep::Descriptors)?;
        self.mapping_namespaces.insert(range.first, created);
        Ok(Some(copy))
    }

    /// The id map that a sandbox would get here, without creating anything.
    pub(super) fn probe_id_map(&self) -> Result<IdMap, Error> {
        if let Some(store) = &self.data_dir {
            return store.layers.allocate_map(&self.id_source, &self.used_id_ranges());
        }
        let map = self.id_source.allocate_map(&[])?;
        let (Some(range), Some(existing)) =
            (map.exclusive_range(), self.settings.data_dir.ancestors().find(|path| path.exists()))
        else {
            return Ok(map);
        };
        Ok(if check_idmapped_mounts(existing, range, &map).is_ok() { map } else { IdMap::common_range(range) })
    }

    /// The missing feature if all sandboxes share one id range.
    pub(super) fn missing_idmapped_mounts(&self) -> Option<MissingFeature> {
        let common = self.probe_id_map().is_ok_and(|map| map.ids == IdMapKind::CommonRange);
        common.then(|| MissingFeature {
            description: "all sandboxes have the same range of ids: this kernel, or the data directory's file system, has no idmapped mounts"
                .to_owned(),
            remedy: "Use Linux 5.19 or newer with the data directory on ext4, xfs or btrfs.".to_owned(),
            blocks_tier: None,
        })
    }

    /// Starts a process that mounts the overlays of a stack outside of the sandbox's user namespace; `None` for layers
    /// whose overlays are mounted inside.
    pub(super) fn mounter(
        &mut self,
        map: &IdMap,
        stack: &LayerStack,
        overlays: OverlayRequest,
    ) -> Result<Option<OverlayMounter>, StepFailure> {
        let namespace = self.mapping_namespace(map)?;
        let Some(data_dir) = &self.data_dir else { return Ok(None) };
        if stack.volume.is_some() || data_dir.layers.xattrs_of(&stack.top) == OverlayXattrs::User {
            return Ok(None);
        }
        let store = match namespace {
            Some(namespace) => data_dir.layers.clone_mount(&namespace)?,
            None => clone_mount(&data_dir.layers.directory, kernel::NO_SUID | kernel::NO_DEVICES)?,
        };
        OverlayMounter::spawn(&store, stack, overlays, map, || self.close_launcher_fds()).map(Some)
    }

    /// The attributes for a new layer above others: overlayfs reads one kind only.
    pub(super) fn xattrs_above<'a>(&self, below: impl IntoIterator<Item = &'a String>) -> OverlayXattrs {
        let is_supported = matches!(self.overlay_support, Some(Ok(OverlayXattrs::Trusted)));
        let Some(data_dir) = self.data_dir.as_ref().filter(|_| is_supported) else { return OverlayXattrs::User };
        let all_trusted = below.into_iter().all(|layer| data_dir.layers.is_compatible(layer, OverlayXattrs::Trusted));
        if all_trusted { OverlayXattrs::Trusted } else { OverlayXattrs::User }
    }

    /// True if directories of this stack cannot be renamed once they are in a lower layer. Before the first overlay, root's
    /// launcher assumes that they can.
    pub(super) fn seals_fix_dirs(&self, stack: &LayerStack) -> bool {
        if stack.volume.is_some() {
            return false;
        }
        match &self.overlay_support {
            Some(_) => self.xattrs_above(stack.below.iter().chain([&stack.top])) == OverlayXattrs::User,
            None => !rustix::process::geteuid().is_root(),
        }
    }

    /// Fails if overlays cannot be mounted here; tried once.
    pub(super) fn require_overlay(&mut self, name: &str) -> Result<(), Error> {
        let outcome = match &self.overlay_support {
            Some(outcome) => outcome.clone(),
            None => {
                let outcome = self.try_overlay()?;
                self.overlay_support = Some(outcome.clone());
                outcome
            }
        };
        outcome.map(drop).map_err(|failure| Error::step(name, failure))
    }

    fn try_overlay(&mut self) -> Result<Result<OverlayXattrs, StepFailure>, Error> {
        if rustix::process::geteuid().is_root() && self.try_overlay_with(OverlayXattrs::Trusted)?.is_ok() {
            return Ok(Ok(OverlayXattrs::Trusted));
        }
        Ok(self.try_overlay_with(OverlayXattrs::User)?.map(|()| OverlayXattrs::User))
    }

    fn try_overlay_with(&mut self, xattrs: OverlayXattrs) -> Result<Result<(), StepFailure>, Error> {
        let layers = &self.data_dir()?.layers;
        let map = layers.allocate_map(&self.id_source, &[])?;
        let below = layers.create_layer(LayerContent::Empty, false, xattrs)?;
        let moved = layers.workspace_dir(&below).join("moved");
        let prepared = fs::create_dir(&moved).and_then(|()| layers.set_owner(&moved, AGENT_UID));
        let top = match layers.create_layer(LayerContent::Overlay, false, xattrs) {
            Ok(top) => top,
            Err(error) => {
                self.discard_layers([below.as_str()]);
                return Err(error);
            }
        };
        let stack = LayerStack { top, below: vec![below], image: None, volume: None, uncounted: 0 };
        let overlays = OverlayRequest { files: true, system: false };
        let outcome = match xattrs {
            OverlayXattrs::Trusted => prepared.at(LaunchStep::MountOverlay).and_then(|()| {
                let mounter = self.mounter(&map, &stack, overlays)?;
                let mounter = mounter.ok_or(Errno(libc::EOPNOTSUPP)).at(LaunchStep::MountOverlay)?;
                let files = mounter.mount_and_finish()?.files;
                let [workspace, _] = files.ok_or(Errno(libc::EIO)).at(LaunchStep::MountOverlay)?;
                // Overlayfs ignores `redirect_dir` where the file system lacks extended attributes.
                rustix::fs::renameat(&workspace, "moved", &workspace, "renamed").at(LaunchStep::MountOverlay)
            }),
            OverlayXattrs::User => self.mapping_namespace(&map).and_then(|namespace| {
                let Some(service) = &self.data_dir else { return Ok(()) };
                let store = namespace.map(|namespace| service.layers.clone_mount(&namespace)).transpose()?;
                live_sandbox::try_mount_overlay(&service.layers, &map, &stack, store, || self.close_launcher_fds())
            }),
        };
        self.discard_layers(stack.all_layers());
        Ok(outcome)
    }

    /// Clones workspace and home of a running process: an overlay cannot be mounted twice.
    fn clone_files_of_running(&self, name: &str) -> Result<Option<[OwnedFd; 2]>, Error> {
        self.await_starting(name);
        let has_files = |tracked: &&TrackedProcess| {
            tracked.sandbox == name && matches!(tracked.kind, ProcessKind::Worker | ProcessKind::Run { .. })
        };
        for tracked in self.tracked.iter().filter(has_files) {
            match live_sandbox::clone_file_mounts(tracked.pidfd.as_fd(), || self.close_launcher_fds()) {
                Ok(mounts) => return Ok(Some(mounts)),
                // The process has exited meanwhile, and its mounts with it.
                Err(failure) if failure.source.0 == libc::ESRCH => {}
                Err(failure) => return Err(Error::step(name, failure)),
            }
        }
        Ok(None)
    }

    /// Waits until no process is about to mount the sandbox's files. Running programs cannot delay this.
    pub(super) fn await_starting(&self, name: &str) {
        let started = Instant::now();
        let has_files = |kind| matches!(kind, ProcessKind::Worker | ProcessKind::Run { .. });
        for tracked in self.tracked.iter().filter(|tracked| tracked.sandbox == name && has_files(tracked.kind)) {
            let Some(starting) = &tracked.starting else { continue };
            let left = START_TIMEOUT.saturating_sub(started.elapsed());
            let timeout = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(0), tv_nsec: 0 };
            // Only poll the status: the event loop reads it later.
            let _ = rustix::event::poll(&mut [PollFd::new(&starting.status, PollFlags::IN)], Some(&timeout));
        }
    }

    /// In a child that outlives a request: closes what would make it look like the launcher.
    pub(super) fn close_launcher_fds(&self) {
        kernel::close_inherited(self.socket.as_fd());
        if let Some(lock) = &self.lock {
            kernel::close_inherited(lock.as_fd());
        }
    }
}
