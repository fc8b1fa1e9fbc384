//! Questions whose answer takes a while: a process of their own finds it, so that nobody else has to wait.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use rustix::pipe::PipeFlags;

use super::Service;
use super::processes::{Kind, Starting, Tracked};
use crate::error::{AtStep, Errno, Error, Step};
use crate::layers::Part;
use crate::place::{Clock, DiskUse, Ids};
use crate::wire::Answer;
use crate::writers::Whom;
use crate::{kernel, maps, measure, prompt, unlinked, writers};

/// How many sandboxes' counters are told in one packet.
const CLOCKS: usize = 500;
/// How many may count a sandbox's files at once: whoever asked may have given up waiting.
const COUNTERS: usize = 2;

impl Service {
    /// Counts a sandbox's files, under its ids: some are closed to this user, but not to the sandbox's root.
    pub(super) fn count_disk(&mut self, request: u64, name: &str) -> Result<(), Error> {
        let (sandbox, record) = self.sandbox(name)?;
        if let Some(found) = self.counted_by_kernel(record)? {
            return self.answer(request, Ok(Answer::Disk(found)));
        }
        // All that it can see and that was ever written in it; an imported root is everybody's.
        let store = &self.store()?.layers;
        let layers = &store.directory;
        let stack = [&record.stack.top].into_iter().chain(&record.stack.below);
        let parts =
            stack.flat_map(|layer| [Part::Files, Part::System].map(|part| layers.join(layer).join(part.directory())));
        let roots: Vec<_> = parts.chain([sandbox.home.temporary(store, &record.stack)]).collect();
        let about = sandbox.home.directory.clone();
        let life = sandbox.home.read_life().filter(|_| self.has_worker(name));
        let at_work = |tracked: &&Tracked| tracked.sandbox == name && tracked.kind == Kind::Counter;
        if self.tracked.iter().filter(at_work).count() >= COUNTERS {
            let reason = "its files are being counted, which takes long".to_owned();
            return Err(Error::Busy { name: name.to_owned(), reason });
        }
        // The sandbox's own root may look at what its processes have open; one with the same ids beside it may not.
        let of_user = matches!(record.map.ids, Ids::Shared | Ids::Single);
        let owner = self.worker(name).filter(|_| of_user).map(|worker| worker.hold.try_clone()).transpose();
        let owner = owner.at(Step::Descriptors).map_err(|failure| Error::step(name, failure))?;
        let (map, joins, ending) = (record.map.clone(), owner.is_some(), Error::Ending { name: name.to_owned() });
        let work = move || {
            // It comes again about every second, and may be long: nobody's command should be late for it.
            prompt::give_way();
            if owner.is_some_and(|owner| kernel::join(owner.as_fd(), libc::CLONE_NEWUSER).is_err()) {
                return Err(ending);
            }
            let failed = |error| Error::file("count the files of", &about, Errno::from(error));
            let (named, unlinked) = (measure::trees(&roots).map_err(failed)?, life.as_ref().map(unlinked::count));
            let DiskUse { bytes, files, .. } = unlinked.unwrap_or_default();
            Ok(Answer::Disk(DiskUse { bytes: named.bytes + bytes, files: named.files + files, ..named }))
        };
        let spawn = |work: Box<dyn FnOnce() -> i32 + '_>| match joins {
            true => kernel::spawn(0, None, work).at(Step::Clone),
            false => maps::spawn_as_owner(&map, work),
        };
        self.send_out(request, name, Kind::Counter, spawn, work)
    }

    pub(super) fn stop_writers(&mut self, request: u64, name: &str, whom: Whom) -> Result<(), Error> {
        let (sandbox, record) = self.sandbox(name)?;
        // Who is paused writes nothing.
        let life = sandbox.home.read_life().filter(|_| self.has_worker(name) && !self.is_paused(name));
        let Some(life) = life else { return self.answer(request, Ok(Answer::Stopped(0))) };
        // What processes of other ids have open is closed to this user, but not to the sandbox's root.
        let owner = self.worker(name).filter(|_| record.map.ids == Ids::Shared);
        let owner = owner.and_then(|worker| worker.hold.try_clone().ok());
        let work = move || {
            // If that fails all that can't be looked at count as writers.
            let _ = owner.map(|owner| kernel::join(owner.as_fd(), libc::CLONE_NEWUSER));
            Ok(Answer::Stopped(writers::stop(&life, whom)))
        };
        self.send_out(request, name, Kind::Stopper, |work| kernel::spawn(0, None, work).at(Step::Clone), work)
    }

    /// Lets a process do `work`; its answer is told when it has one.
    fn send_out(
        &mut self,
        request: u64,
        name: &str,
        kind: Kind,
        spawn: impl FnOnce(Box<dyn FnOnce() -> i32 + '_>) -> Result<kernel::Process, crate::error::Failure>,
        work: impl FnOnce() -> Result<Answer, Error>,
    ) -> Result<(), Error> {
        let failed = |failure| Error::step(name, failure);
        let (answer, said) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(Step::Descriptors).map_err(failed)?;
        let process = spawn(Box::new(|| {
            self.close_copies();
            kernel::close_copy(answer.as_fd());
            let text = serde_json::to_vec(&work()).unwrap_or_default();
            let Ok(said) = said.try_clone() else { return 71 };
            i32::from(File::from(said).write_all(&text).is_err())
        }))
        .map_err(failed)?;
        drop(said);
        self.tracked.push(Tracked {
            sandbox: name.to_owned(),
            kind,
            hold: process.descriptor,
            child: true,
            starting: Some(Starting { request, status: File::from(answer), _go: None }),
            failure: None,
            leaves: Vec::new(),
        });
        Ok(())
    }

    /// What an errand found; one that was ended on its way found nothing.
    pub(super) fn found(name: &str, text: &[u8]) -> Result<Answer, Error> {
        if text.is_empty() {
            return Err(Error::Ending { name: name.to_owned() });
        }
        serde_json::from_slice(text).unwrap_or_else(|error| Err(Error::protocol(error)))
    }

    /// The processor time of every living sandbox, in one go.
    pub(super) fn clocks(&mut self, request: u64) -> Result<(), Error> {
        let workers = self.tracked.iter().filter(|tracked| tracked.kind == Kind::Worker);
        let clocks: Vec<Clock> = workers
            .map(|tracked| {
                let of = |index: usize| tracked.leaves.get(index).and_then(crate::cgroup::Leaf::clock);
                Clock { name: tracked.sandbox.clone(), worker: of(0), agent: of(1) }
            })
            .collect();
        for part in clocks.chunks(CLOCKS) {
            self.answer(request, Ok(Answer::Clocks(part.to_vec())))?;
        }
        self.spread(&clocks);
        self.answer(request, Ok(Answer::Done))
    }
}
