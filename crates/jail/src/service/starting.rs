//! Starts workers and one-shots: what they are given, and the record of it.

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
use super::files::Taken;
use super::processes::{Kind, Starting, Tracked};
use crate::cgroup::{Bounds, Held, Leaf, ONE_SHOT};
use crate::error::{AtStep, Error, Failure, Step};
use crate::inside;
use crate::owner::give_spool;
use crate::place::{AGENT, Limits};
use crate::record::{Home, Identity, Life, Record};
use crate::setup::{Descriptor, Files, Plan, ProcessLimits, Role};
use crate::start::{self, Started};

/// Where the worker is inside.
pub(crate) const WORKER: &str = "/opt/atoll/worker";

/// Connections that wait until the worker takes them.
const BACKLOG: i32 = 128;

const MAX_LOG: u64 = 1 << 20;

/// How long the cgroups of the last worker may take to go before the next one starts in them.
const GROUP_PATIENCE: Duration = Duration::from_millis(100);

impl Service {
    pub(super) fn start_worker(&mut self, request: u64, name: &str) -> Result<(), Error> {
        self.may_start(name)?;
        if self.has_worker(name) {
            return Err(Error::Alive { name: name.to_owned() });
        }
        self.free_groups(name)?;
        let files = self.take_files(name, Role::Worker)?;
        let (sandbox, record) = self.sandbox(name)?;
        let limits = &record.spec.limits;
        let worker = self.leaf(name, "worker", &Bounds::worker(limits))?;
        let agent = match self.leaf(name, "agent", &self.agent_bounds(name, limits)) {
            Ok(agent) => agent,
            Err(error) => {
                worker.remove();
                return Err(error);
            }
        };
        Self::forget_pause(&sandbox.home, &agent);
        let started = self.begin_worker(&sandbox.home, record, files, &worker, &agent);
        self.track(request, name, Kind::Worker, vec![worker, agent], started)?;
        if let Some(sandbox) = self.sandboxes.get_mut(name) {
            sandbox.exit = None;
        }
        Ok(())
    }

    pub(super) fn run(&mut self, run: u64, name: &str, argv: &[String], given: Vec<OwnedFd>) -> Result<(), Error> {
        self.may_start(name)?;
        let arguments = strings(argv.iter().cloned())?;
        if arguments.is_empty() || given.len() != 3 {
            return Err(Error::Spec { reason: "a program to run needs a name and three descriptors".to_owned() });
        }
        let files = self.take_files(name, Role::Agent)?;
        let (sandbox, record) = self.sandbox(name)?;
        let leaf = self.leaf(name, &format!("{ONE_SHOT}{run}"), &self.agent_bounds(name, &record.spec.limits))?;
        let environment = strings(self.run_environment(name))?;
        let descriptors: Vec<Descriptor<'_>> =
            given.iter().map(|descriptor| Descriptor::Of(descriptor.as_fd())).collect();
        let started = self
            .plan(&sandbox.home, record, files, Role::Agent, &arguments, &environment, &descriptors)
            .and_then(|plan| start::start(&plan, &leaf, |_| Ok(())).map_err(|failure| Error::step(name, failure)));
        self.track(run, name, Kind::Run { run }, vec![leaf], started)
    }

    pub(super) fn may_start(&self, name: &str) -> Result<(), Error> {
        match self.sandbox(name)?.0.ending {
            Some(_) => Err(Error::Ending { name: name.to_owned() }),
            None => Ok(()),
        }
    }

    /// Groups of a worker that has just ended must not be removed under the feet of the next.
    fn free_groups(&mut self, name: &str) -> Result<(), Error> {
        let started = Instant::now();
        while self.is_leaving(name) && started.elapsed() < GROUP_PATIENCE {
            std::thread::sleep(Duration::from_millis(1));
            self.retry()?;
        }
        self.keep_groups(name);
        Ok(())
    }

    fn leaf(&self, name: &str, leaf: &str, bounds: &Bounds) -> Result<Leaf, Error> {
        let made = self.groups.make(name, leaf, bounds);
        made.at(Step::Group).map_err(|failure| Error::step(name, failure))
    }

    /// Watches a process that was started; if it was not, its cgroups go again.
    pub(super) fn track(
        &mut self,
        request: u64,
        name: &str,
        kind: Kind,
        leaves: Vec<Leaf>,
        started: Result<Started, Error>,
    ) -> Result<(), Error> {
        match started {
            Ok(Started { process, status, go }) => {
                self.tracked.push(Tracked {
                    sandbox: name.to_owned(),
                    kind,
                    hold: process.descriptor,
                    child: true,
                    starting: Some(Starting { request, status, _go: Some(go) }),
                    failure: None,
                    leaves,
                });
                Ok(())
            }
            Err(error) => {
                self.leave(name, leaves);
                Err(error)
            }
        }
    }

    fn begin_worker(
        &self,
        home: &Home,
        record: &Record,
        files: Taken,
        worker: &Leaf,
        agent: &Leaf,
    ) -> Result<Started, Error> {
        let name = &record.spec.name;
        let layers = &self.store()?.layers;
        let prepared = listen(&home.link()).and_then(|listener| {
            if let Some(owner) = self.settings.owner {
                owner.admit_to(home)?;
                // It may have been handed out after the last worker's end.
                if let (Some(user), Some(group)) = (record.map.user(0), record.map.group(0)) {
                    give_spool(&home.spool(layers, &record.stack), user, group)?;
                }
            }
            Ok((listener, null()?, log(&home.log())?, agent.hold()?))
        });
        let (listener, null, log, held) =
            prepared.at(Step::Descriptors).map_err(|failure| Error::step(name, failure))?;
        let Held { admissions, oom, peak } = &held;
        let mut descriptors = vec![
            Descriptor::Of(null.as_fd()),
            Descriptor::Of(null.as_fd()),
            Descriptor::Of(log.as_fd()),
            Descriptor::Of(listener.as_fd()),
            Descriptor::Spool,
        ];
        let mut environment = vec![
            format!("ATOLL_SANDBOX={name}"),
            format!("ATOLL_AGENT_UID={AGENT}"),
            format!("ATOLL_CGROUP_FDS={}", admissions.len()),
            format!("PATH={}", self.path(files.wanted.system)),
            "LANG=C.UTF-8".to_owned(),
        ];
        descriptors.extend(admissions.iter().map(|file| Descriptor::Of(file.as_fd())));
        for (file, variable) in [(oom, "ATOLL_OOM_FD"), (peak, "ATOLL_PEAK_FD")] {
            if let Some(file) = file {
                environment.push(format!("{variable}={}", descriptors.len()));
                descriptors.push(Descriptor::Of(file.as_fd()));
            }
        }
        if oom.is_some() {
            environment.push(format!("ATOLL_MEMORY_LIMIT={}", record.spec.limits.memory_bytes));
        }
        let arguments = strings([WORKER, "init"].map(str::to_owned))?;
        let environment = strings(environment)?;
        let plan = self.plan(home, record, files, Role::Worker, &arguments, &environment, &descriptors)?;
        let template = plan.template.to_path_buf();
        let known = |pid| -> Result<(), Failure> {
            let process = Identity::of(pid).at_with(Step::Wait, "identity")?;
            let life = Life { process, worker: worker.clone(), agent: agent.clone(), template };
            home.write_life(&life).at_with(Step::Wait, "record")
        };
        start::start(&plan, worker, known).map_err(|failure| Error::step(name, failure))
    }

    #[allow(clippy::too_many_arguments, reason = "each is one part of the plan")]
    pub(super) fn plan<'a>(
        &'a self,
        home: &'a Home,
        record: &'a Record,
        taken: Taken,
        role: Role,
        arguments: &'a [CString],
        environment: &'a [CString],
        descriptors: &'a [Descriptor<'a>],
    ) -> Result<Plan<'a>, Error> {
        let Taken { wanted, store, trees, scratch, programs } = taken;
        let layers = &self.store()?.layers;
        Ok(Plan {
            path: self.path(wanted.system),
            files: Files { layers, stack: &record.stack, wanted, store, taken: trees, scratch, programs },
            view: &self.view,
            template: &self.store()?.template,
            worker: &self.settings.worker,
            home,
            // A one-shot is git of our own, and the one that fills the workspace must write there.
            protected: if role == Role::Worker { &record.spec.protected } else { &[] },
            programs: if role == Role::Worker { &record.spec.programs } else { &[] },
            map: &record.map,
            hostname: &record.spec.hostname,
            limits: self.process_limits(&record.spec.limits),
            filter: &self.filter,
            landlock: self.landlock,
            writable_root: wanted.system,
            role,
            arguments,
            environment,
            descriptors,
        })
    }

    /// Where programs are looked for: an imported root knows nothing of the host's tools.
    pub(super) fn path(&self, imported: bool) -> &str {
        if imported { inside::PATH } else { &self.view.path }
    }

    pub(super) fn process_limits(&self, limits: &Limits) -> ProcessLimits {
        let enforces = self.groups.enforces();
        ProcessLimits {
            open_files: limits.open_files,
            data: (!enforces.memory).then_some(limits.memory_bytes),
            processes: (!enforces.pids).then_some(u64::from(limits.pids)),
            shared_memory: limits.memory_bytes / 2,
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

pub(super) fn strings(texts: impl IntoIterator<Item = String>) -> Result<Vec<CString>, Error> {
    let outcome: Result<Vec<CString>, _> = texts.into_iter().map(CString::new).collect();
    outcome.map_err(|_| Error::Spec { reason: "a program's arguments can't hold a zero byte".to_owned() })
}

pub(super) fn null() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null")
}

/// What the last worker said is kept for the next to find, unless it has become much.
fn log(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().create(true).append(true).mode(0o600).open(path)?;
    if file.metadata()?.len() > MAX_LOG {
        file.set_len(0)?;
    }
    Ok(file)
}

/// Binds through the directory's descriptor: a path may be longer than an address can hold.
fn listen(link: &Path) -> io::Result<OwnedFd> {
    match fs::remove_file(link.join("sock")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let directory = rustix::fs::openat(CWD, link, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}/sock", directory.as_raw_fd()))?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}
