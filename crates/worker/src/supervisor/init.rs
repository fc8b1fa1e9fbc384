//! Starts the worker as the first process of a sandbox.
//!
//! In a local sandbox it inherits its descriptors and does not pass them on; in a container it creates them
//! (`container`). The server connects to the socket. The agent cannot reach the spool. The spawner does everything that
//! touches the agent's files.

use crate::environment::Environment;
use crate::exec::{self, Exec};
use crate::link::AcceptedConnections;
use crate::logins::Logins;
use crate::memory_counters::MemoryCounters;
use crate::setup::{self, PreparedWorker};
use crate::spawner::{SpawnerLauncher, SpawnerSupervisor};
use crate::supervisor::acceptor::{Acceptor, ConnectionHandlers};
use crate::supervisor::container::{self, Mounts};
use crate::supervisor::egress_socket::EgressSocket;
use crate::supervisor::log::BoundedLog;
use crate::supervisor::signals;
use crate::{executor, transcript};
use atoll_core::id::SandboxId;
use atoll_dispatcher::{Behaviour, Exit, SETUP_FAILED};
use atoll_jail::init_process::{self, SignalFd};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::spawn_blocking;
use tokio::time::Instant;

const SOCKET: i32 = 3;
const SPOOL: i32 = 4;
const FIRST_GROUP: i32 = 5;
const HOME: &str = "/home/agent";
const USER: &str = "agent";

/// Time to send the rest after the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(20);
/// Time for the agent after the sandbox has ended: terminate, kill, flush file changes, save the transcript.
const STOP_GRACE: Duration = Duration::from_secs(12);
/// Time for the agent after a signal: finish the current tool, then as above.
const SIGNAL_GRACE: Duration = Duration::from_secs(22);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the variable {0} is missing or invalid; only a provider may start `init`")]
    Variable(&'static str),
    #[error("descriptor {descriptor} ({what}) was not inherited")]
    Descriptor { descriptor: i32, what: &'static str, source: io::Error },
    #[error("failed to {action}")]
    Start { action: &'static str, source: io::Error },
    #[error(transparent)]
    Container(#[from] container::Error),
    #[error(transparent)]
    Setup(#[from] setup::Error),
}

/// Environment and descriptors that the provider passed to the worker.
struct Inherited {
    sandbox: SandboxId,
    user: u32,
    path: String,
    socket: OwnedFd,
    /// In a local sandbox it is not mounted: only this descriptor reaches it.
    spool: OwnedFd,
    groups: Vec<OwnedFd>,
    memory: MemoryCounters,
}

impl Inherited {
    fn take() -> Result<Self, Error> {
        match optional_variable("ATOLL_LINK_DIR")? {
            Some(link) => Self::create_in_container(Mounts { link, spool: required_variable("ATOLL_SPOOL_DIR")? }),
            None => Self::take_from_launcher(),
        }
    }

    /// Creates the descriptors in a container, which cannot inherit any.
    fn create_in_container(mounts: Mounts) -> Result<Self, Error> {
        let user = required_variable("ATOLL_AGENT_UID")?;
        let owned = [Path::new(exec::WORKSPACE), Path::new(HOME)];
        let prepared = container::prepare_container(&mounts, &owned, user, optional_variable("ATOLL_MEMORY_LIMIT")?)?;
        Ok(Self {
            sandbox: required_variable("ATOLL_SANDBOX")?,
            user,
            path: search_path(),
            socket: prepared.socket,
            spool: prepared.spool,
            groups: Vec::new(),
            memory: prepared.memory,
        })
    }

    fn take_from_launcher() -> Result<Self, Error> {
        let count: i32 = required_variable("ATOLL_CGROUP_FDS")?;
        let group = |number| take_descriptor(number, "cgroup.procs of the agent's leaf");
        Ok(Self {
            sandbox: required_variable("ATOLL_SANDBOX")?,
            user: required_variable("ATOLL_AGENT_UID")?,
            path: search_path(),
            socket: take_descriptor(SOCKET, "the server's socket")?,
            spool: take_descriptor(SPOOL, "the spool")?,
            groups: (FIRST_GROUP..FIRST_GROUP.saturating_add(count)).map(group).collect::<Result<_, _>>()?,
            memory: MemoryCounters {
                kills: optional_variable("ATOLL_OOM_FD")?
                    .map(|number| take_descriptor(number, "the memory's counter"))
                    .transpose()?,
                peak: optional_variable("ATOLL_PEAK_FD")?
                    .map(|number| take_descriptor(number, "the memory's peak"))
                    .transpose()?,
                limit: optional_variable("ATOLL_MEMORY_LIMIT")?,
            },
        })
    }
}

fn search_path() -> String {
    std::env::var("PATH").unwrap_or_else(|_| init_process::DEFAULT_PATH.to_owned())
}

fn take_descriptor(descriptor: i32, what: &'static str) -> Result<OwnedFd, Error> {
    init_process::take_inherited_fd(descriptor).map_err(|source| Error::Descriptor { descriptor, what, source })
}

fn required_variable<T: FromStr>(name: &'static str) -> Result<T, Error> {
    optional_variable(name)?.ok_or(Error::Variable(name))
}

fn optional_variable<T: FromStr>(name: &'static str) -> Result<Option<T>, Error> {
    match std::env::var(name) {
        Ok(value) => value.parse().map(Some).map_err(|_| Error::Variable(name)),
        Err(_) => Ok(None),
    }
}

pub fn main() -> ExitCode {
    // First of all: take the descriptors before any child can inherit them.
    let started = Inherited::take().and_then(start_worker);
    let (message, code) = match started {
        Ok(Exit::Done) => return ExitCode::SUCCESS,
        Ok(exit) => (exit.to_string(), exit.code()),
        Err(error) => (atoll_dispatcher::link::chain(&error), SETUP_FAILED),
    };
    drop(writeln!(io::stderr().lock(), "atoll-worker: {message}"));
    ExitCode::from(code)
}

fn start_worker(inherited: Inherited) -> Result<Exit, Error> {
    let failed = |action| move |source| Error::Start { action, source };
    init_process::harden_process().map_err(failed("isolate itself from the agent"))?;
    atoll_jail::request_short_slices(atoll_jail::SliceInheritance::Reset);
    // Before any thread starts: threads inherit the signal mask.
    let signals = SignalFd::new().map_err(failed("read signals"))?;
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(BoundedLog);
    log.with_target(false).with_ansi(false).init();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // Only the thread that opens the spool is needed, and only once.
    let runtime = runtime.enable_all().max_blocking_threads(1).thread_keep_alive(Duration::from_millis(1)).build();
    let runtime = runtime.map_err(failed("start the runtime"))?;
    let clock = Instant::now();
    let exit = runtime.block_on(Box::pin(run_worker(inherited, signals, clock)))?;
    runtime.shutdown_background();
    Ok(exit)
}

async fn run_worker(inherited: Inherited, signals: SignalFd, clock: Instant) -> Result<Exit, Error> {
    let failed = |action| move |source| Error::Start { action, source };
    let Inherited { sandbox, user, path, socket, spool, groups, memory } = inherited;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true).map_err(failed("listen"))?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(failed("listen"))?;
    // Its working directory must not keep the agent's files from being replaced.
    std::env::set_current_dir("/").map_err(failed("leave the workspace"))?;
    let egress = EgressSocket::bind().map(Arc::new).inspect_err(|error| {
        tracing::warn!(%error, "failed to listen on the proxy port; programs in this sandbox have no network");
    });
    let worker = std::env::current_exe().map_err(failed("find its own program"))?;

    let other_user = Some(user).filter(|user| *user != rustix::process::geteuid().as_raw());
    let launcher = SpawnerLauncher { program: PathBuf::from("/proc/self/exe"), user: other_user, groups };
    let (supervisor, spawner) = SpawnerSupervisor::new(launcher);
    tokio::spawn(supervisor.run());
    let exit_signals = signals::receive_from_outside(signals).map_err(failed("read signals"))?;

    let home = optional_variable("ATOLL_HOME")?.unwrap_or_else(|| HOME.to_owned());
    let environment = Arc::new(Environment::new(sandbox, &path, &home, USER));
    let memory = Arc::new(memory);
    let workspace = optional_variable("ATOLL_WORKSPACE")?.unwrap_or_else(|| PathBuf::from(exec::WORKSPACE));
    let pool = Arc::new(AcceptedConnections::default());
    let exec = Exec {
        spawner: spawner.clone(),
        environment: environment.clone(),
        memory: memory.clone(),
        cwd: workspace.clone(),
    };
    let (quiesce, quiesce_requests) = tokio::sync::mpsc::channel(1);
    let handlers = ConnectionHandlers { pool: pool.clone(), exec, egress: egress.ok(), quiesce };
    tokio::spawn(Acceptor { listener, handlers: Arc::new(handlers) }.run());

    let behaviour = Behaviour {
        messages: true,
        flush_timeout: Some(FLUSH_TIMEOUT),
        stop_grace: STOP_GRACE,
        signal_grace: Some(SIGNAL_GRACE),
        timer_origin: Some(clock),
    };
    let spool_path = PathBuf::from(format!("/proc/self/fd/{}", spool.as_raw_fd()));
    // On another thread: commands need no spool, and the disk may be slow.
    let limit = Some(atoll_spool::MAX_SANDBOX_SPOOL_BYTES);
    let opening = spawn_blocking(move || setup::open_worker(spool_path, sandbox, pool, None, behaviour, limit));
    let opened = opening.await.map_err(|error| failed("open the spool")(error.into()))??;
    let PreparedWorker { worker: prepared, server, lock } = opened;
    let transcripts = Some(transcript::TranscriptStore {
        spawner: spawner.clone(),
        environment: Arc::clone(&environment),
        server: server.clone(),
        worker: worker.clone(),
        workspace: workspace.clone(),
    });
    let logins = Some(Logins {
        spawner: spawner.clone(),
        environment: Arc::clone(&environment),
        server,
        stream: prepared.stream,
    });
    let tools = executor::Tools { spawner, environment, memory, worker, workspace, transcripts, logins };
    let program = executor::start_executor(tools, quiesce_requests);
    let exit = atoll_dispatcher::run_worker(prepared, program, exit_signals).await;
    drop((lock, spool));
    Ok(exit)
}
