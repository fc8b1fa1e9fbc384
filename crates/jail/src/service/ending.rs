//! How sandboxes end: first the processes, then the cgroups, then the files; who asked is told at the end.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::processes::{Kind, Tracked};
use super::{Sandbox, Service};
use crate::cgroup::Leaf;
use crate::error::{Errno, Error};
use crate::ids::Map;
use crate::layers::GONE;
use crate::place::Exit;
use crate::wire::Answer;
use crate::{maps, remove};

/// How long killed processes may take: the kernel lets none go that waits for a device.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a cgroup without processes may refuse to go.
const GROUP_PATIENCE: Duration = Duration::from_secs(5);

/// A sandbox on its way out, and who waits for that.
pub(super) struct Ending {
    pub kills: Vec<u64>,
    pub destroys: Vec<u64>,
    pub removing: bool,
    since: Instant,
}

impl Ending {
    fn new() -> Self {
        Self { kills: Vec::new(), destroys: Vec::new(), removing: false, since: Instant::now() }
    }

    pub fn deadline(&self) -> Instant {
        // Files may take as long as they take.
        self.since + if self.removing { Duration::from_secs(86_400) } else { PATIENCE }
    }
}

/// A cgroup that could not be removed yet.
pub(super) struct Leaving {
    sandbox: String,
    leaf: Leaf,
    since: Instant,
}

impl Service {
    pub(super) fn kill(&mut self, id: u64, name: &str) -> Result<(), Error> {
        match self.sandboxes.get_mut(name) {
            None => return self.answer(id, Err(Error::Unknown { name: name.to_owned() })),
            Some(sandbox) => sandbox.ending.get_or_insert_with(Ending::new).kills.push(id),
        }
        self.kill_processes(name);
        self.settle(name)
    }

    pub(super) fn destroy(&mut self, id: u64, name: &str) -> Result<(), Error> {
        match self.sandboxes.get_mut(name) {
            None => return self.answer(id, Ok(Answer::Done)),
            Some(sandbox) => sandbox.ending.get_or_insert_with(Ending::new).destroys.push(id),
        }
        self.kill_processes(name);
        self.settle(name)
    }

    /// The first process of a pid namespace takes all others with it.
    fn kill_processes(&self, name: &str) {
        for tracked in self.tracked.iter().filter(|tracked| tracked.sandbox == name && tracked.kind != Kind::Remover) {
            tracked.kill();
            for freezer in tracked.leaves.iter().filter_map(|leaf| leaf.freezer.as_ref()) {
                freezer.release_dead();
            }
        }
    }

    /// Lets cgroups go: at once if they can, else as soon as they can.
    pub(super) fn leave(&mut self, name: &str, leaves: Vec<Leaf>) {
        for leaf in leaves.into_iter().filter(|leaf| !leaf.remove()) {
            self.leaving.push(Leaving { sandbox: name.to_owned(), leaf, since: Instant::now() });
        }
    }

    pub(super) fn is_leaving(&self, name: &str) -> bool {
        self.leaving.iter().any(|leaving| leaving.sandbox == name)
    }

    /// Cgroups that are still there and will be used again.
    pub(super) fn keep_groups(&mut self, name: &str) {
        self.leaving.retain(|leaving| leaving.sandbox != name);
    }

    /// Tries again what could not be done yet, and gives up what takes too long.
    pub(super) fn retry(&mut self) -> Result<(), Error> {
        self.go_on_pausing()?;
        let mut freed = Vec::new();
        self.leaving.retain(|leaving| {
            let done = leaving.leaf.remove() || leaving.since.elapsed() > GROUP_PATIENCE;
            if done {
                freed.push(leaving.sandbox.clone());
            }
            !done
        });
        for name in freed {
            self.settle(&name)?;
        }
        let now = Instant::now();
        let mut late = Vec::new();
        for (name, sandbox) in &mut self.sandboxes {
            if let Some(ending) = sandbox.ending.take_if(|ending| ending.deadline() <= now) {
                late.push((name.clone(), ending));
            }
        }
        for (name, ending) in late {
            for id in ending.kills.into_iter().chain(ending.destroys) {
                let seconds = PATIENCE.as_secs();
                self.answer(id, Err(Error::StillAlive { name: name.clone(), seconds }))?;
            }
        }
        Ok(())
    }

    /// Goes one step further with a sandbox that is ending, if nothing of the step before is left.
    pub(super) fn settle(&mut self, name: &str) -> Result<(), Error> {
        let busy = self.tracked.iter().any(|tracked| tracked.sandbox == name) || self.is_leaving(name);
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return Ok(()) };
        let Some(ending) = sandbox.ending.as_mut().filter(|_| !busy) else { return Ok(()) };
        let kills = std::mem::take(&mut ending.kills);
        if ending.destroys.is_empty() {
            sandbox.ending = None;
        } else {
            ending.removing = true;
            match self.start_remover(name) {
                Ok(remover) => self.tracked.push(remover),
                Err(error) => self.destroyed(name, Err(error))?,
            }
        }
        kills.into_iter().try_for_each(|id| self.answer(id, Ok(Answer::Done)))
    }

    /// Removing may take long and, for an ordinary user, needs the sandbox's ids: a process of its own does it.
    fn start_remover(&self, name: &str) -> Result<Tracked, Error> {
        let Some(Sandbox { home, record, .. }) = self.sandboxes.get(name) else {
            return Err(Error::Unknown { name: name.to_owned() });
        };
        // Under another name, so that a half-removed one is never taken for a sandbox.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let gone = home.directory.with_file_name(format!("{GONE}{name}-{}", now.as_nanos()));
        let map = home.read_map();
        if let Err(error) = fs::rename(&home.directory, &gone)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(Error::file("rename", &home.directory, error));
        }
        // Its record is out of the way: what it alone referred to goes with it.
        let stack = record.as_ref().map(|record| record.stack.clone());
        let mut paths = self.let_go(Some(name), stack.iter().flat_map(|stack| stack.layers()));
        paths.push(gone);
        self.remover(name, paths, map)
    }

    pub(super) fn remover(&self, name: &str, paths: Vec<PathBuf>, map: Option<Map>) -> Result<Tracked, Error> {
        let map = map.unwrap_or_else(|| self.ids.without_record());
        let process = maps::spawn_within(&map, || {
            self.close_copies();
            let outcomes = paths.iter().map(|path| remove::tree(path));
            let failed = outcomes.fold(None, |failed, outcome| outcome.err().or(failed));
            failed.map_or(0, rustix::io::Errno::raw_os_error)
        })
        .map_err(|failure| Error::step(name, failure))?;
        Ok(Tracked {
            sandbox: name.to_owned(),
            kind: Kind::Remover,
            hold: process.descriptor,
            child: true,
            starting: None,
            failure: None,
            leaves: Vec::new(),
        })
    }

    /// The remover has ended.
    pub(super) fn removed(&mut self, name: &str, exit: Exit) -> Result<(), Error> {
        let outcome = match exit {
            Exit::Exited(0) => Ok(()),
            Exit::Exited(number) => Err(Error::NotRemoved { name: name.to_owned(), reason: Errno(number).to_string() }),
            other => Err(Error::NotRemoved { name: name.to_owned(), reason: format!("the remover ended: {other:?}") }),
        };
        self.destroyed(name, outcome)
    }

    /// What could not be removed has its other name, and is tried again when the next launcher starts.
    fn destroyed(&mut self, name: &str, outcome: Result<(), Error>) -> Result<(), Error> {
        let Some(ending) = self.sandboxes.get_mut(name).and_then(|sandbox| sandbox.ending.take()) else {
            return Ok(());
        };
        if !self.sandboxes.get(name).is_some_and(|sandbox| sandbox.home.directory.exists())
            && self.sandboxes.remove(name).is_some_and(|sandbox| sandbox.record.is_none())
        {
            // As long as it was there, it might have referred to any layer, and none was let go.
            self.sweep_layers();
        }
        ending
            .kills
            .into_iter()
            .chain(ending.destroys)
            .try_for_each(|id| self.answer(id, outcome.clone().map(|()| Answer::Done)))
    }
}
