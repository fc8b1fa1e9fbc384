//! Which files a process gets: as they are, stacked afresh, or lent by one that has them already.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use super::Service;
use super::processes::{Kind, Tracked};
use crate::error::{AtStep, Error, Failure, Step};
use crate::ids::Map;
use crate::layers::{Beginning, Stack, can_map, mapped};
use crate::place::Ids;
use crate::report::Missing;
use crate::setup::Role;
use crate::setup::overlay::Wanted;
use crate::setup::programs::{Held, take};
use crate::{join, kernel};

/// What the launcher took hold of for a process.
pub(super) struct Taken {
    pub wanted: Wanted,
    pub store: Option<OwnedFd>,
    pub trees: Option<[OwnedFd; 2]>,
    /// Temporary files and spool, where they lie with the layers.
    pub scratch: Option<[OwnedFd; 2]>,
    /// The agent's programs; `None` where the process itself has to.
    pub programs: Option<Vec<Held>>,
}

/// Where in the data directory agents are installed.
const AGENTS: &str = "agents";

/// How long a process that is on its way in may take to have its files.
const PATIENCE: Duration = Duration::from_secs(10);

impl Service {
    pub(super) fn take_files(&mut self, name: &str, role: Role) -> Result<Taken, Error> {
        let (_, record) = self.sandbox(name)?;
        let (stack, map) = (record.stack.clone(), record.map.clone());
        // A one-shot works on the files with the host's tools, whatever root the sandbox has.
        let system = role == Role::Worker && stack.image.is_some();
        let stacked = !stack.below.is_empty();
        let trees = if stacked { self.lent(name)? } else { None };
        let wanted = Wanted { files: stacked && trees.is_none(), system };
        let failed = |failure| Error::step(name, failure);
        let (store, trees) = match self.mapping(&map).map_err(failed)? {
            None => (None, trees),
            Some(namespace) => {
                let layers = &self.store()?.layers;
                let needs_store = wanted.files || wanted.system;
                let store = if needs_store { Some(layers.tree(&namespace).map_err(failed)?) } else { None };
                let trees = match trees {
                    None if !stacked => {
                        let workspace = mapped(&layers.workspace(&stack.top), &namespace).map_err(failed)?;
                        Some([workspace, mapped(&layers.agent_home(&stack.top), &namespace).map_err(failed)?])
                    }
                    trees => trees,
                };
                (store, trees)
            }
        };
        let scratch = self.scratch(&stack, name)?;
        let programs = self.programs(name, role)?;
        Ok(Taken { wanted, store, trees, scratch, programs })
    }

    /// Root takes hold of them itself: they may lie in the home of somebody whom the new process can't pass for.
    fn programs(&self, name: &str, role: Role) -> Result<Option<Vec<Held>>, Error> {
        let shown = match role {
            Role::Worker => self.sandbox(name)?.1.spec.programs.as_slice(),
            Role::Agent | Role::Root => &[],
        };
        let data = &self.settings.data;
        let is_data = |path: &Path| path.starts_with(data) && !path.starts_with(data.join(AGENTS));
        if let Some(shown) = shown.iter().find(|shown| is_data(&shown.from)) {
            let reason = format!("{} would show the server's data", shown.from.display());
            return Err(Error::Spec { reason });
        }
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let held = shown.iter().map(|shown| take(&shown.from, self.settings.owner)).collect::<Result<_, _>>();
        held.map(Some).map_err(|failure| Error::step(name, failure))
    }

    /// The user namespace by which layers show with a sandbox's ids. One for a range is made once: ranges are used
    /// again and again.
    pub(super) fn mapping(&mut self, map: &Map) -> Result<Option<OwnedFd>, Failure> {
        let Some(range) = map.range() else { return Ok(None) };
        if let Some(known) = self.mappings.get(&range.first) {
            return known.try_clone().map(Some).at(Step::Descriptors);
        }
        let Some(store) = &self.store else { return Ok(None) };
        let Some(made) = store.layers.shown(map)? else { return Ok(None) };
        let copy = made.try_clone().at(Step::Descriptors)?;
        self.mappings.insert(range.first, made);
        Ok(Some(copy))
    }

    /// The map that a sandbox would get here, without making anything.
    pub(super) fn map_here(&self) -> Result<Map, Error> {
        if let Some(store) = &self.store {
            return store.layers.map_for_another(&self.ids, &self.used());
        }
        let map = self.ids.map(&[])?;
        let (Some(range), Some(there)) = (map.range(), self.settings.data.ancestors().find(|path| path.exists()))
        else {
            return Ok(map);
        };
        Ok(if can_map(there, range, &map).is_ok() { map } else { Map::common(range) })
    }

    /// What keeps sandboxes from ids of their own, and what to do about it.
    pub(super) fn lacks_mapping(&self) -> Option<Missing> {
        let common = self.map_here().is_ok_and(|map| map.ids == Ids::Common);
        common.then(|| Missing {
            what: "all sandboxes have the same range of ids: this kernel, or the data directory's file system, can't map ids of mounts"
                .to_owned(),
            remedy: "Use Linux 5.19 or newer with the data directory on ext4, xfs or btrfs.".to_owned(),
            keeps_from: None,
        })
    }

    /// Fails where layers can't be stacked. That is tried once.
    pub(super) fn must_stack(&mut self, name: &str) -> Result<(), Error> {
        let outcome = match &self.stackable {
            Some(outcome) => outcome.clone(),
            None => {
                let outcome = self.try_stacking()?;
                self.stackable = Some(outcome.clone());
                outcome
            }
        };
        outcome.map_err(|failure| Error::step(name, failure))
    }

    fn try_stacking(&mut self) -> Result<Result<(), Failure>, Error> {
        let layers = &self.store()?.layers;
        let map = layers.map_for_another(&self.ids, &[])?;
        let below = layers.make(Beginning::Empty, false)?;
        let top = match layers.make(Beginning::Above, false) {
            Ok(top) => top,
            Err(error) => {
                self.discard_layers([below.as_str()]);
                return Err(error);
            }
        };
        let stack = Stack { top, below: vec![below], image: None, volume: None };
        let outcome = self.mapping(&map).and_then(|namespace| {
            let Some(service) = &self.store else { return Ok(()) };
            let store = namespace.map(|namespace| service.layers.tree(&namespace)).transpose()?;
            join::try_stacking(&service.layers, &map, &stack, store, || self.close_copies())
        });
        self.discard_layers(stack.layers());
        Ok(outcome)
    }

    /// Workspace and home of a process that has them stacked: they can't be stacked a second time.
    fn lent(&self, name: &str) -> Result<Option<[OwnedFd; 2]>, Error> {
        self.await_starting(name);
        let has_files =
            |tracked: &&Tracked| tracked.sandbox == name && matches!(tracked.kind, Kind::Worker | Kind::Run { .. });
        for tracked in self.tracked.iter().filter(has_files) {
            match join::borrow(tracked.hold.as_fd(), || self.close_copies()) {
                Ok(lent) => return Ok(Some(lent)),
                // It has ended meanwhile, and its mounts with it.
                Err(failure) if failure.source.0 == libc::ESRCH => {}
                Err(failure) => return Err(Error::step(name, failure)),
            }
        }
        Ok(None)
    }

    /// Waits until no process is on its way to files of its own: it has them, or has failed. Nothing that is at work in
    /// the sandbox has a say in how long that takes.
    pub(super) fn await_starting(&self, name: &str) {
        let started = Instant::now();
        let has_files = |kind| matches!(kind, Kind::Worker | Kind::Run { .. });
        for tracked in self.tracked.iter().filter(|tracked| tracked.sandbox == name && has_files(tracked.kind)) {
            let Some(starting) = &tracked.starting else { continue };
            let left = PATIENCE.saturating_sub(started.elapsed());
            let timeout = Timespec { tv_sec: i64::try_from(left.as_secs()).unwrap_or(0), tv_nsec: 0 };
            // Its status is only looked at: who asked for it is told in turn.
            let _ = rustix::event::poll(&mut [PollFd::new(&starting.status, PollFlags::IN)], Some(&timeout));
        }
    }

    /// For a copy of this process that outlives a request: nobody shall take it for the launcher.
    pub(super) fn close_copies(&self) {
        kernel::close_copy(self.socket.as_fd());
        if let Some(lock) = &self.lock {
            kernel::close_copy(lock.as_fd());
        }
    }
}
