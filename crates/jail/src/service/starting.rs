//! Starts workers and one-shot runs.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::Service;
use super::file_mounts::PreparedMounts;
use super::processes::{PendingStart, ProcessKind, TrackedProcess};
use crate::cgroup::{CgroupLeaf, LeafFiles, LeafLimits, ONE_SHOT_PREFIX};
use crate::error::{AtStep, Error, LaunchStep, StepFailure};
use crate::id_ranges::IdMap;
use crate::init_process;
use crate::process_start::{self, StartingProcess};
use crate::record::{ProcessIdentity, SandboxDir, SandboxRecord, WorkerRecord};
use crate::sandbox::{AGENT_UID, IdMapKind, ResourceLimits};
use crate::server_user::chown_spool;
use crate::setup::{Descriptor, FileSources, ProcessLimits, Role, SetupPlan, UserShare};

/// The worker's path inside.
pub(crate) const WORKER_PATH: &str = "/opt/atoll/worker";

/// Maximum pending connections to the worker.
const SOCKET_BACKLOG: i32 = 128;

const MAX_LOG_BYTES: u64 = 1 << 20;

/// Time-out for the last worker's cgroups to go before the next one reuses them.
const CGROUP_REUSE_TIMEOUT: Duration = Duration::from_millis(100);

impl Service {
    pub(super) fn start_worker(&mut self, request: u64, name: &str) -> Result<(), Error> {
        self.check_startable(name)?;
        if self.has_worker(name) {
            return Err(Error::AlreadyRunning { name: name.to_owned() });
        }
        self.wait_for_old_cgroups(name)?;
        let files = self.prepare_mounts(name, Role::Worker)?;
        let (sandbox, record) = self.find_sandbox(name)?;
        let limits = &record.spec.limits;
        let worker = self.create_leaf(name, "worker", &LeafLimits::for_worker(limits))?;
        let agent = match self.create_leaf(name, "agent", &self.agent_limits(name, limits)) {
            Ok(agent) => agent,
            Err(error) => {
                worker.remove();
                return Err(error);
            }
        };
        Self::clear_pause(&sandbox.dir, &agent);
        let started = self.spawn_worker(&sandbox.dir, record, files, &worker, &agent);
        self.track_process(request, name, ProcessKind::Worker, vec![worker, agent], started)?;
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            sandbox.exit = None;
        }
        Ok(())
    }

    pub(super) fn run_program(
        &mut self,
        run: u64,
        name: &str,
        argv: &[String],
        streams: Vec<OwnedFd>,
    ) -> Result<(), Error> {
        self.check_startable(name)?;
        let arguments = to_c_strings(argv.iter().cloned())?;
        if arguments.is_empty() || streams.len() != 3 {
            return Err(Error::InvalidSpec { reason: "a program needs a name and three descriptors".to_owned() });
        }
        let files = self.prepare_mounts(name, Role::Agent)?;
        let (sandbox, record) = self.find_sandbox(name)?;
        let leaf =
            self.create_leaf(name, &format!("{ONE_SHOT_PREFIX}{run}"), &self.agent_limits(name, &record.spec.limits))?;
        let environment = to_c_strings(self.run_environment(name))?;
        let descriptors: Vec<Descriptor<'_>> =
            streams.iter().map(|descriptor| Descriptor::Fd(descriptor.as_fd())).collect();
        let started = self
            .build_plan(&sandbox.dir, record, files, Role::Agent, &arguments, &environment, &descriptors)
            .and_then(|plan| {
                process_start::start_process(&plan, &leaf, |_| Ok(())).map_err(|failure| Error::step(name, failure))
            });
        self.track_process(run, name, ProcessKind::Run { run }, vec![leaf], started)
    }

    pub(super) fn check_startable(&self, name: &str) -> Result<(), Error> {
        self.check_program_protection(name)?;
        match self.find_sandbox(name)?.0.ending {
            Some(_) => Err(Error::Ending { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Fails if programs of a sandbox could write to the launcher's program.
    pub(super) fn check_program_protection(&self, name: &str) -> Result<(), Error> {
        self.program_protection.clone().map_err(|failure| Error::step(name, failure))
    }

    /// Waits for the cgroups of an exited worker, which must not be removed under the next one.
    fn wait_for_old_cgroups(&mut self, name: &str) -> Result<(), Error> {
        let started = Instant::now();
        while self.has_leaving_cgroups(name) && started.elapsed() < CGROUP_REUSE_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
            self.retry_pending()?;
        }
        self.keep_cgroups(name);
        Ok(())
    }

    fn create_leaf(&self, name: &str, leaf: &str, limits: &LeafLimits) -> Result<CgroupLeaf, Error> {
        let created = self.cgroups.create_leaf(name, leaf, limits);
        created.at(LaunchStep::Cgroup).map_err(|failure| Error::step(name, failure))
    }

    /// Tracks a started process, or removes its cgroups if the start failed.
    pub(super) fn track_process(
        &mut self,
        request: u64,
        name: &str,
        kind: ProcessKind,
        leaves: Vec<CgroupLeaf>,
        started: Result<StartingProcess, Error>,
    ) -> Result<(), Error> {
        match started {
            Ok(StartingProcess { process, status, go_ahead: go }) => {
                self.tracked.push(TrackedProcess {
                    sandbox: name.to_owned(),
                    kind,
                    pidfd: process.pidfd,
                    is_child: true,
                    starting: Some(PendingStart { request, status, _go_ahead: Some(go) }),
                    failure: None,
                    cgroups: leaves,
                });
                Ok(())
            }
            Err(error) => {
                self.remove_cgroups(name, leaves);
                Err(error)
            }
        }
    }

    fn spawn_worker(
        &self,
        dir: &SandboxDir,
        record: &SandboxRecord,
        files: PreparedMounts,
        worker: &CgroupLeaf,
        agent: &CgroupLeaf,
    ) -> Result<StartingProcess, Error> {
        let name = &record.spec.name;
        let layers = &self.data_dir()?.layers;
        let prepared = bind_socket(&dir.socket_dir()).and_then(|listener| {
            if let Some(owner) = self.settings.server_user {
                owner.grant_socket_access(dir)?;
                // The server may own the spool since the last worker's exit.
                if let (Some(user), Some(group)) = (record.map.host_uid(0), record.map.host_gid(0)) {
                    chown_spool(&dir.spool_dir(layers, &record.stack), user, group)?;
                }
            }
            Ok((listener, open_null()?, open_log(&dir.log_path())?, agent.open_files()?))
        });
        let (listener, null, log, leaf_files) =
            prepared.at(LaunchStep::Descriptors).map_err(|failure| Error::step(name, failure))?;
        let LeafFiles { procs_files, oom, peak } = &leaf_files;
        let mut descriptors = vec![
            Descriptor::Fd(null.as_fd()),
            Descriptor::Fd(null.as_fd()),
            Descriptor::Fd(log.as_fd()),
            Descriptor::Fd(listener.as_fd()),
            Descriptor::Spool,
        ];
        let mut environment = vec![
            format!("ATOLL_SANDBOX={name}"),
            format!("ATOLL_AGENT_UID={AGENT_UID}"),
            format!("ATOLL_CGROUP_FDS={}", procs_files.len()),
            format!("PATH={}", self.search_path(files.overlays.system)),
            "LANG=C.UTF-8".to_owned(),
        ];
        descriptors.extend(procs_files.iter().map(|file| Descriptor::Fd(file.as_fd())));
        for (file, variable) in [(oom, "ATOLL_OOM_FD"), (peak, "ATOLL_PEAK_FD")] {
            if let Some(file) = file {
                environment.push(format!("{variable}={}", descriptors.len()));
                descriptors.push(Descriptor::Fd(file.as_fd()));
            }
        }
        if oom.is_some() {
            environment.push(format!("ATOLL_MEMORY_LIMIT={}", record.spec.limits.memory_bytes));
        }
        let arguments = to_c_strings([WORKER_PATH, "init"].map(str::to_owned))?;
        let environment = to_c_strings(environment)?;
        let plan = self.build_plan(dir, record, files, Role::Worker, &arguments, &environment, &descriptors)?;
        let template = plan.template.to_path_buf();
        let known = |pid| -> Result<(), StepFailure> {
            let process = ProcessIdentity::read_from_proc(pid).at_with(LaunchStep::Wait, "identity")?;
            let worker_record = WorkerRecord { process, worker: worker.clone(), agent: agent.clone(), template };
            dir.write_worker_record(&worker_record).at_with(LaunchStep::Wait, "record")
        };
        process_start::start_process(&plan, worker, known).map_err(|failure| Error::step(name, failure))
    }

    #[allow(clippy::too_many_arguments, reason = "each is one part of the plan")]
    pub(super) fn build_plan<'a>(
        &'a self,
        dir: &'a SandboxDir,
        record: &'a SandboxRecord,
        mounts: PreparedMounts,
        role: Role,
        arguments: &'a [CString],
        environment: &'a [CString],
        descriptors: &'a [Descriptor<'a>],
    ) -> Result<SetupPlan<'a>, Error> {
        let PreparedMounts { overlays, mounted, store, files, scratch, programs } = mounts;
        let layers = &self.data_dir()?.layers;
        Ok(SetupPlan {
            path: self.search_path(overlays.system),
            files: FileSources { layers, stack: &record.stack, overlays, mounted, store, files, scratch, programs },
            view: &self.view,
            template: &self.data_dir()?.template,
            worker: &self.settings.worker_binary,
            sandbox_dir: dir,
            // A one-shot run is our own git, which must be able to write the whole workspace.
            protected: if role == Role::Worker { &record.spec.protected } else { &[] },
            programs: if role == Role::Worker { &record.spec.programs } else { &[] },
            map: &record.map,
            hostname: &record.spec.hostname,
            limits: self.process_limits(&record.spec.limits, &record.map),
            filter: &self.filter,
            landlock: self.landlock,
            writable_root: overlays.system,
            role,
            arguments,
            environment,
            descriptors,
        })
    }

    /// The `PATH` of programs inside: an imported root has none of the host's tools.
    pub(super) fn search_path(&self, imported: bool) -> &str {
        if imported { init_process::DEFAULT_PATH } else { &self.view.path }
    }

    pub(super) fn process_limits(&self, limits: &ResourceLimits, map: &IdMap) -> ProcessLimits {
        let enforces = self.cgroups.enforcement();
        ProcessLimits {
            open_files: limits.open_files,
            data: (!enforces.memory).then_some(limits.memory_bytes),
            processes: (!enforces.pids).then_some(u64::from(limits.pids)),
            shared_memory: limits.memory_bytes / 2,
            // Otherwise the owner of the sandbox's user namespace owns no other one.
            user_share: (map.ids != IdMapKind::OwnRange).then(UserShare::read_from_proc),
        }
    }

    pub(super) fn run_environment(&self, name: &str) -> Vec<String> {
        vec![
            format!("ATOLL_SANDBOX={name}"),
            format!("PATH={}", self.view.path),
            "LANG=C.UTF-8".to_owned(),
            "HOME=/home/agent".to_owned(),
            "USER=agent".to_owned(),
            "LOGNAME=agent".to_owned(),
            "IS_SANDBOX=1".to_owned(),
        ]
    }
}

pub(super) fn to_c_strings(texts: impl IntoIterator<Item = String>) -> Result<Vec<CString>, Error> {
    let outcome: Result<Vec<CString>, _> = texts.into_iter().map(CString::new).collect();
    outcome.map_err(|_| Error::InvalidSpec { reason: "a program's arguments cannot contain a zero byte".to_owned() })
}

pub(super) fn open_null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

/// Opens the worker's log for appending; truncates a large one.
fn open_log(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    if file.metadata()?.len() > MAX_LOG_BYTES {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Binds through the directory's descriptor: the path may be too long for an address.
fn bind_socket(link: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(link.join("sock")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let directory = rustix::fs::openat(CWD, link, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/sock", directory.as_raw_fd()))?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, SOCKET_BACKLOG)?;
    Ok(socket)
}
