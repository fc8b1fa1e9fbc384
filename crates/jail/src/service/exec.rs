//! Runs programs in running sandboxes.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};

use rustix::pipe::PipeFlags;

use super::Service;
use super::file_mounts::PreparedMounts;
use super::processes::{ProcessKind, TrackedProcess};
use super::starting::to_c_strings;
use crate::error::{AtStep, Error, LaunchStep};
use crate::process_start::StartingProcess;
use crate::sandbox::ProgramSpec;
use crate::setup::overlay::OverlayRequest;
use crate::setup::{Descriptor, Role};
use crate::{kernel, live_sandbox};

/// Maximum programs per sandbox: each costs the server and the launcher resources too.
const MAX_EXECS: usize = 64;

impl Service {
    pub(super) fn exec_program(
        &mut self,
        run: u64,
        name: &str,
        program: &ProgramSpec,
        streams: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        self.check_startable(name)?;
        let ProgramSpec { argv, env: environment, working_dir: directory, as_root } = program;
        let arguments = to_c_strings(argv.iter().cloned())?;
        let directory = to_c_strings(directory.clone())?.pop().unwrap_or_else(|| c"/workspace".to_owned());
        if arguments.is_empty() || streams.len() != 3 {
            return Err(Error::InvalidSpec { reason: "a program needs a name and three descriptors".to_owned() });
        }
        self.await_starting(name);
        let (sandbox, record) = self.find_sandbox(name)?;
        let imported = record.stack.image.is_some();
        if *as_root {
            let reason = match (imported, record.map.has_root()) {
                (false, _) => {
                    "only a sandbox with an image (imported root) has one; the host's directories are read-only"
                }
                (true, false) => "this user has no id ranges (/etc/subuid), so `agent` is the only user inside",
                (true, true) => "",
            };
            if !reason.is_empty() {
                return Err(Error::NoRootUser { name: name.to_owned(), reason: reason.to_owned() });
            }
        }
        let is_worker = |tracked: &&TrackedProcess| tracked.sandbox == name && tracked.kind == ProcessKind::Worker;
        let Some(worker) = self.tracked.iter().find(is_worker) else {
            return Err(Error::NotRunning { name: name.to_owned() });
        };
        let runs =
            |tracked: &&TrackedProcess| tracked.sandbox == name && matches!(tracked.kind, ProcessKind::Exec { .. });
        if self.tracked.iter().filter(runs).count() >= MAX_EXECS {
            let reason = format!("{MAX_EXECS} commands run in it already");
            return Err(Error::Busy { name: name.to_owned(), reason });
        }
        // The new process would stop before it could exec.
        if self.is_paused(name) {
            return Err(Error::Busy { name: name.to_owned(), reason: "it is paused".to_owned() });
        }
        let failed = |failure| Error::step(name, failure);
        let leaf_files = worker.cgroups.get(1).map(|agent| agent.open_files()).transpose();
        let procs_files = leaf_files
            .at(LaunchStep::Cgroup)
            .map_err(failed)?
            .map(|leaf_files| leaf_files.procs_files)
            .unwrap_or_default();
        let environment = to_c_strings(self.exec_environment(name, imported, *as_root, environment))?;
        let descriptors: Vec<Descriptor<'_>> =
            streams.iter().map(|descriptor| Descriptor::Fd(descriptor.as_fd())).collect();
        let role = if *as_root { Role::Root } else { Role::Agent };
        let mounts = PreparedMounts {
            overlays: OverlayRequest { files: false, system: imported },
            mounted: None,
            store: None,
            files: None,
            scratch: None,
            programs: None,
        };
        let plan = self.build_plan(&sandbox.dir, record, mounts, role, &arguments, &environment, &descriptors)?;
        let (status, status_writer) =
            rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors).map_err(failed)?;
        let (_, go) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC).at(LaunchStep::Descriptors).map_err(failed)?;
        let process = kernel::spawn(0, None, || {
            self.close_launcher_fds();
            kernel::close_inherited(status.as_fd());
            live_sandbox::run_in_sandbox(&plan, &directory, worker.pidfd.as_fd(), &procs_files, status_writer.as_fd())
        });
        let kills = self.agent_oom_kills(name);
        let started = process.at(LaunchStep::Namespaces).map_err(failed);
        let started = started.map(|process| StartingProcess { process, status: File::from(status), go_ahead: go });
        self.track_process(run, name, ProcessKind::Exec { run, oom_kills_before: kills }, Vec::new(), started)
    }

    fn exec_environment(
        &self,
        name: &str,
        imported: bool,
        as_root: bool,
        more: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let (home, user) = if as_root { ("/root", "root") } else { ("/home/agent", "agent") };
        let mut all = BTreeMap::from([
            ("ATOLL_SANDBOX", name),
            ("PATH", self.search_path(imported)),
            ("LANG", "C.UTF-8"),
            ("HOME", home),
            ("USER", user),
            ("LOGNAME", user),
            ("IS_SANDBOX", "1"),
        ]);
        all.extend(more.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        all.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
    }
}
