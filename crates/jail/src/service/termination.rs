//! Ends sandboxes: kill the processes, remove the cgroups, remove the files, then answer.

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::processes::{ProcessKind, TrackedProcess};
use super::{Service, TrackedSandbox};
use crate::cgroup::CgroupLeaf;
use crate::error::{Errno, Error};
use crate::id_ranges::IdMap;
use crate::layers::REMOVING_PREFIX;
use crate::sandbox::Exit;
use crate::wire::Answer;
use crate::{id_maps, tree_removal};

/// Time-out for killed processes: one in uninterruptible sleep cannot exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(30);
/// Time-out for removing a cgroup without processes.
const CGROUP_REMOVAL_TIMEOUT: Duration = Duration::from_secs(5);

/// A sandbox that is being killed or destroyed, with the requests that wait for it.
pub(super) struct Termination {
    pub kills: Vec<u64>,
    pub destroys: Vec<u64>,
    pub removing: bool,
    since: Instant,
}

impl Termination {
    fn new() -> Self {
        Self { kills: Vec::new(), destroys: Vec::new(), removing: false, since: Instant::now() }
    }

    pub fn deadline(&self) -> Instant {
        // Removing files has no time-out.
        self.since + if self.removing { Duration::from_secs(86_400) } else { KILL_TIMEOUT }
    }
}

/// A cgroup that could not be removed yet.
pub(super) struct LeavingCgroup {
    sandbox: String,
    leaf: CgroupLeaf,
    since: Instant,
}

impl Service {
    pub(super) fn kill_sandbox(&mut self, id: u64, name: &str) -> Result<(), Error> {
        match self.sandboxes.get_mut(name) {
            None => return self.send_answer(id, Err(Error::UnknownSandbox { name: name.to_owned() })),
            Some(sandbox) => sandbox.ending.get_or_insert_with(Termination::new).kills.push(id),
        }
        self.kill_processes(name);
        self.advance_termination(name)
    }

    pub(super) fn destroy_sandbox(&mut self, id: u64, name: &str) -> Result<(), Error> {
        match self.sandboxes.get_mut(name) {
            None => return self.send_answer(id, Ok(Answer::Done)),
            Some(sandbox) => sandbox.ending.get_or_insert_with(Termination::new).destroys.push(id),
        }
        self.kill_processes(name);
        self.advance_termination(name)
    }

    /// Killing the init process of a pid namespace kills all its processes.
    fn kill_processes(&self, name: &str) {
        for tracked in
            self.tracked.iter().filter(|tracked| tracked.sandbox == name && tracked.kind != ProcessKind::Remover)
        {
            tracked.kill();
            for freezer in tracked.cgroups.iter().filter_map(|leaf| leaf.freezer.as_ref()) {
                freezer.kill_frozen();
            }
        }
    }

    /// Removes cgroups now, or later if their processes are still exiting.
    pub(super) fn remove_cgroups(&mut self, name: &str, leaves: Vec<CgroupLeaf>) {
        for leaf in leaves.into_iter().filter(|leaf| !leaf.remove()) {
            self.leaving_cgroups.push(LeavingCgroup { sandbox: name.to_owned(), leaf, since: Instant::now() });
        }
    }

    pub(super) fn has_leaving_cgroups(&self, name: &str) -> bool {
        self.leaving_cgroups.iter().any(|leaving| leaving.sandbox == name)
    }

    /// Keeps cgroups that will be used again.
    pub(super) fn keep_cgroups(&mut self, name: &str) {
        self.leaving_cgroups.retain(|leaving| leaving.sandbox != name);
    }

    /// Retries pending work and gives up on what takes too long.
    pub(super) fn retry_pending(&mut self) -> Result<(), Error> {
        self.advance_pauses()?;
        let mut freed = Vec::new();
        self.leaving_cgroups.retain(|leaving| {
            let done = leaving.leaf.remove() || leaving.since.elapsed() > CGROUP_REMOVAL_TIMEOUT;
            if done {
                freed.push(leaving.sandbox.clone());
            }
            !done
        });
        for name in freed {
            self.advance_termination(&name)?;
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
                let seconds = KILL_TIMEOUT.as_secs();
                self.send_answer(id, Err(Error::KillTimeout { name: name.clone(), seconds }))?;
            }
        }
        Ok(())
    }

    /// Advances a sandbox's termination if the previous step is complete.
    pub(super) fn advance_termination(&mut self, name: &str) -> Result<(), Error> {
        let busy = self.tracked.iter().any(|tracked| tracked.sandbox == name) || self.has_leaving_cgroups(name);
        let Some(sandbox) = self.sandboxes.get_mut(name) else { return Ok(()) };
        let Some(ending) = sandbox.ending.as_mut().filter(|_| !busy) else { return Ok(()) };
        let kills = std::mem::take(&mut ending.kills);
        if ending.destroys.is_empty() {
            sandbox.ending = None;
        } else {
            ending.removing = true;
            match self.start_remover(name) {
                Ok(remover) => self.tracked.push(remover),
                Err(error) => self.finish_destroy(name, Err(error))?,
            }
        }
        kills.into_iter().try_for_each(|id| self.send_answer(id, Ok(Answer::Done)))
    }

    /// Removes the files in a child process: it may take long, and an unprivileged user needs the sandbox's ids.
    fn start_remover(&self, name: &str) -> Result<TrackedProcess, Error> {
        let Some(TrackedSandbox { dir, record, .. }) = self.sandboxes.get(name) else {
            return Err(Error::UnknownSandbox { name: name.to_owned() });
        };
        // Rename first, so that a partly removed directory is never taken for a sandbox.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let renamed = dir.directory.with_file_name(format!("{REMOVING_PREFIX}{name}-{}", now.as_nanos()));
        let map = dir.read_map();
        if let Err(error) = fs::rename(&dir.directory, &renamed)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            return Err(Error::file("rename", &dir.directory, error));
        }
        // The record is gone from the directory: release the layers that only it referred to.
        let stack = record.as_ref().map(|record| record.stack.clone());
        let mut paths = self.release_layers(Some(name), stack.iter().flat_map(|stack| stack.all_layers()));
        paths.push(renamed);
        self.spawn_remover(name, paths, map)
    }

    pub(super) fn spawn_remover(
        &self,
        name: &str,
        paths: Vec<PathBuf>,
        map: Option<IdMap>,
    ) -> Result<TrackedProcess, Error> {
        let map = map.unwrap_or_else(|| self.id_source.fallback_map());
        let process = id_maps::spawn_as_mapped_root(&map, || {
            self.close_launcher_fds();
            let outcomes = paths.iter().map(|path| tree_removal::remove_tree(path));
            let failed = outcomes.fold(None, |failed, outcome| outcome.err().or(failed));
            failed.map_or(0, rustix::io::Errno::raw_os_error)
        })
        .map_err(|failure| Error::step(name, failure))?;
        Ok(TrackedProcess {
            sandbox: name.to_owned(),
            kind: ProcessKind::Remover,
            pidfd: process.pidfd,
            is_child: true,
            starting: None,
            failure: None,
            cgroups: Vec::new(),
        })
    }

    /// Handles the remover's exit.
    pub(super) fn finish_removal(&mut self, name: &str, exit: Exit) -> Result<(), Error> {
        let outcome = match exit {
            Exit::Exited(0) => Ok(()),
            Exit::Exited(number) => {
                Err(Error::RemoveFailed { name: name.to_owned(), reason: Errno(number).to_string() })
            }
            other => {
                Err(Error::RemoveFailed { name: name.to_owned(), reason: format!("the remover failed: {other:?}") })
            }
        };
        self.finish_destroy(name, outcome)
    }

    /// Finishes a destroy. The next launcher removes what could not be removed.
    fn finish_destroy(&mut self, name: &str, outcome: Result<(), Error>) -> Result<(), Error> {
        let Some(ending) = self.sandboxes.get_mut(name).and_then(|sandbox| sandbox.ending.take()) else {
            return Ok(());
        };
        if !self.sandboxes.get(name).is_some_and(|sandbox| sandbox.dir.directory.exists())
            && self.sandboxes.remove(name).is_some_and(|sandbox| sandbox.record.is_none())
        {
            // An unreadable record might have referred to any layer, so none was released before.
            self.collect_unused_layers();
        }
        ending
            .kills
            .into_iter()
            .chain(ending.destroys)
            .try_for_each(|id| self.send_answer(id, outcome.clone().map(|()| Answer::Done)))
    }
}
