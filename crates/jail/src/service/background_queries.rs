//! Requests that take long: a child process finds the answer, so that the launcher stays responsive.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;

use rustix::pipe::PipeFlags;

use super::Service;
use super::processes::{PendingStart, ProcessKind, TrackedProcess};
use crate::error::{AtStep, Errno, Error, LaunchStep};
use crate::file_writers::KillScope;
use crate::layers::LayerPart;
use crate::sandbox::{CpuTimes, DiskUsage, IdMapKind};
use crate::wire::Answer;
use crate::{disk_usage, file_writers, id_maps, kernel, scheduling, unlinked_files};

/// CPU times per packet.
const CPU_TIMES_PER_PACKET: usize = 500;
/// Maximum concurrent scans of one sandbox: the client may have given up on earlier ones.
const MAX_DISK_SCANS: usize = 2;

impl Service {
    /// Measures a sandbox's files with its ids: the launcher's user may not be able to read all of them.
    pub(super) fn measure_disk(&mut self, request: u64, name: &str) -> Result<(), Error> {
        let (sandbox, record) = self.find_sandbox(name)?;
        if let Some(found) = self.kernel_disk_usage(record)? {
            return self.send_answer(request, Ok(Answer::Disk(found)));
        }
        // All layers that were written in it; an image and a cache are shared and do not count.
        let store = &self.data_dir()?.layers;
        let layers = &store.directory;
        let parts = record.stack.counted_layers().flat_map(|layer| {
            [LayerPart::Files, LayerPart::System].map(|part| layers.join(layer).join(part.dir_name()))
        });
        let roots: Vec<_> = parts.chain([sandbox.dir.tmp_dir(store, &record.stack)]).collect();
        let about = sandbox.dir.directory.clone();
        let worker_record = sandbox.dir.read_worker_record().filter(|_| self.has_worker(name));
        let at_work = |tracked: &&TrackedProcess| tracked.sandbox == name && tracked.kind == ProcessKind::DiskCounter;
        if self.tracked.iter().filter(at_work).count() >= MAX_DISK_SCANS {
            let reason = "its disk usage is being measured".to_owned();
            return Err(Error::Busy { name: name.to_owned(), reason });
        }
        // Only the sandbox's own root may inspect its processes' open files, not another process with the same ids.
        let of_user = matches!(record.map.ids, IdMapKind::SubIds | IdMapKind::SingleId);
        let owner = self.find_worker(name).filter(|_| of_user).map(|worker| worker.pidfd.try_clone()).transpose();
        let owner = owner.at(LaunchStep::Descriptors).map_err(|failure| Error::step(name, failure))?;
        let (map, joins, ending) = (record.map.clone(), owner.is_some(), Error::Ending { name: name.to_owned() });
        let work = move || {
            // A scan may be long and repeats about every second: it must not delay agents.
            scheduling::lower_priority();
            if owner.is_some_and(|owner| kernel::join_namespaces(owner.as_fd(), libc::CLONE_NEWUSER).is_err()) {
                return Err(ending);
            }
            let failed = |error| Error::file("measure the files of", &about, Errno::from(error));
            let (named, unlinked) = (
                disk_usage::measure_trees(&roots).map_err(failed)?,
                worker_record.as_ref().map(unlinked_files::measure_unlinked),
            );
            let DiskUsage { bytes, files, .. } = unlinked.unwrap_or_default();
            Ok(Answer::Disk(DiskUsage { bytes: named.bytes + bytes, files: named.files + files, ..named }))
        };
        let spawn = |work: Box<dyn FnOnce() -> i32 + '_>| match joins {
            true => kernel::spawn(0, None, work).at(LaunchStep::Namespaces),
            false => id_maps::spawn_with_read_access(&map, work),
        };
        self.spawn_query(request, name, ProcessKind::DiskCounter, spawn, work)
    }

    pub(super) fn kill_writers(&mut self, request: u64, name: &str, scope: KillScope) -> Result<(), Error> {
        let (sandbox, record) = self.find_sandbox(name)?;
        // A paused sandbox writes nothing.
        let worker_record = sandbox.dir.read_worker_record().filter(|_| self.has_worker(name) && !self.is_paused(name));
        let Some(worker_record) = worker_record else { return self.send_answer(request, Ok(Answer::Killed(0))) };
        // The launcher's user cannot inspect processes of other ids; the sandbox's root can.
        let owner = self.find_worker(name).filter(|_| record.map.ids == IdMapKind::SubIds);
        let owner = owner.and_then(|worker| worker.pidfd.try_clone().ok());
        let work = move || {
            // If joining fails, processes that cannot be inspected count as writers.
            let _ = owner.map(|owner| kernel::join_namespaces(owner.as_fd(), libc::CLONE_NEWUSER));
            Ok(Answer::Killed(file_writers::kill_writers(&worker_record, scope)))
        };
        self.spawn_query(
            request,
            name,
            ProcessKind::WriterKiller,
            |work| kernel::spawn(0, None, work).at(LaunchStep::Namespaces),
            work,
        )
    }

    /// Runs `work` in a child process; its answer is sent when it ends.
    fn spawn_query(
        &mut self,
        request: u64,
        name: &str,
        kind: ProcessKind,
        spawn: impl FnOnce(Box<dyn FnOnce() -> i32 + '_>) -> Result<kernel::ChildProcess, crate::error::StepFailure>,
        work: impl FnOnce() -> Result<Answer, Error>,
    ) -> Result<(), Error> {
        let failed = |failure| Error::step(name, failure);
        let (answer, answer_writer) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors).map_err(failed)?;
        let process = spawn(Box::new(|| {
            self.close_launcher_fds();
            kernel::close_inherited(answer.as_fd());
            let text = serde_json::to_vec(&work()).unwrap_or_default();
            let Ok(answer_writer) = answer_writer.try_clone() else { return 71 };
            i32::from(File::from(answer_writer).write_all(&text).is_err())
        }))
        .map_err(failed)?;
        drop(answer_writer);
        self.tracked.push(TrackedProcess {
            sandbox: name.to_owned(),
            kind,
            pidfd: process.pidfd,
            is_child: true,
            starting: Some(PendingStart { request, status: File::from(answer), _go_ahead: None }),
            failure: None,
            cgroups: Vec::new(),
        });
        Ok(())
    }

    /// Parses the answer of such a child; one that was killed has none.
    pub(super) fn parse_query_answer(name: &str, text: &[u8]) -> Result<Answer, Error> {
        if text.is_empty() {
            return Err(Error::Ending { name: name.to_owned() });
        }
        serde_json::from_slice(text).unwrap_or_else(|error| Err(Error::protocol(error)))
    }

    /// Sends the CPU times of all running sandboxes.
    pub(super) fn send_cpu_times(&mut self, request: u64) -> Result<(), Error> {
        let workers = self.tracked.iter().filter(|tracked| tracked.kind == ProcessKind::Worker);
        let cpu_times: Vec<CpuTimes> = workers
            .map(|tracked| {
                let of = |index: usize| tracked.cgroups.get(index).and_then(crate::cgroup::CgroupLeaf::cpu_micros);
                CpuTimes { name: tracked.sandbox.clone(), worker: of(0), agent: of(1) }
            })
            .collect();
        for part in cpu_times.chunks(CPU_TIMES_PER_PACKET) {
            self.send_answer(request, Ok(Answer::CpuTimes(part.to_vec())))?;
        }
        self.rebalance_cpus(&cpu_times);
        self.send_answer(request, Ok(Answer::Done))
    }
}
