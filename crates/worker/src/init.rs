//! The worker as the first process of a sandbox.
//!
//! In a local one it inherits everything that it needs as descriptors, and nothing that it starts inherits them again;
//! in a container it makes them itself (`container`). The server dials the socket; the spool is a directory that the
//! agent can't reach; the hands do all that touches the agent's files.

use crate::acceptor::{Acceptor, Doors};
use crate::container::{self, Mounts};
use crate::dispatcher;
use crate::environment::Environment;
use crate::exec::{self, Exec};
use crate::exit::SETUP_WRONG;
use crate::hands::{Keeper, Starter};
use crate::link::Accepting;
use crate::logins::Logins;
use crate::memory::Memory;
use crate::outward::Outward;
use crate::setup::{self, Manner, Worker};
use crate::{Exit, executor, signals, transcript};
use atoll_core::id::SandboxId;
use atoll_jail::inside::{self, Signals};
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

/// For sending what is left after the end.
const FLUSH: Duration = Duration::from_secs(20);
/// For the agent to end after the sandbox has: it is told so first, then killed, its last changes are looked at and
/// its transcript is saved.
const STOP_GRACE: Duration = Duration::from_secs(12);
/// For the tool under way after a signal from outside, and then the same.
const LEAVE_GRACE: Duration = Duration::from_secs(22);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the variable {0} is missing or makes no sense: `init` is started by whoever makes a sandbox")]
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

/// What whoever made the sandbox left for it.
struct Inherited {
    sandbox: SandboxId,
    user: u32,
    path: String,
    socket: OwnedFd,
    /// In a local sandbox it is mounted nowhere: it is there as long as the descriptor is.
    spool: OwnedFd,
    groups: Vec<OwnedFd>,
    memory: Memory,
}

impl Inherited {
    fn take() -> Result<Self, Error> {
        match optional("ATOLL_LINK_DIR")? {
            Some(link) => Self::make(Mounts { link, spool: variable("ATOLL_SPOOL_DIR")? }),
            None => Self::of_launcher(),
        }
    }

    /// In a container nothing can be inherited.
    fn make(mounts: Mounts) -> Result<Self, Error> {
        let user = variable("ATOLL_AGENT_UID")?;
        let owned = [Path::new(exec::WORKSPACE), Path::new(HOME)];
        let made = container::prepare(&mounts, &owned, user, optional("ATOLL_MEMORY_LIMIT")?)?;
        Ok(Self {
            sandbox: variable("ATOLL_SANDBOX")?,
            user,
            path: search(),
            socket: made.socket,
            spool: made.spool,
            groups: Vec::new(),
            memory: made.memory,
        })
    }

    fn of_launcher() -> Result<Self, Error> {
        let count: i32 = variable("ATOLL_CGROUP_FDS")?;
        let group = |number| take(number, "cgroup.procs of the agent's leaf");
        Ok(Self {
            sandbox: variable("ATOLL_SANDBOX")?,
            user: variable("ATOLL_AGENT_UID")?,
            path: search(),
            socket: take(SOCKET, "the server's socket")?,
            spool: take(SPOOL, "the spool")?,
            groups: (FIRST_GROUP..FIRST_GROUP.saturating_add(count)).map(group).collect::<Result<_, _>>()?,
            memory: Memory {
                kills: optional("ATOLL_OOM_FD")?.map(|number| take(number, "the memory's counter")).transpose()?,
                peak: optional("ATOLL_PEAK_FD")?.map(|number| take(number, "the memory's peak")).transpose()?,
                limit: optional("ATOLL_MEMORY_LIMIT")?,
            },
        })
    }
}

fn search() -> String {
    std::env::var("PATH").unwrap_or_else(|_| inside::PATH.to_owned())
}

fn take(descriptor: i32, what: &'static str) -> Result<OwnedFd, Error> {
    inside::take(descriptor).map_err(|source| Error::Descriptor { descriptor, what, source })
}

fn variable<T: FromStr>(name: &'static str) -> Result<T, Error> {
    optional(name)?.ok_or(Error::Variable(name))
}

fn optional<T: FromStr>(name: &'static str) -> Result<Option<T>, Error> {
    match std::env::var(name) {
        Ok(value) => value.parse().map(Some).map_err(|_| Error::Variable(name)),
        Err(_) => Ok(None),
    }
}

pub fn main() -> ExitCode {
    // Before anything else: what it inherits would else go on to whatever it starts.
    let started = Inherited::take().and_then(start);
    let (sentence, code) = match started {
        Ok(Exit::Done) => return ExitCode::SUCCESS,
        Ok(exit) => (exit.to_string(), exit.code()),
        Err(error) => (crate::link::chain(&error), SETUP_WRONG),
    };
    drop(writeln!(io::stderr().lock(), "atoll-worker: {sentence}"));
    ExitCode::from(code)
}

fn start(inherited: Inherited) -> Result<Exit, Error> {
    let failed = |action| move |source| Error::Start { action, source };
    inside::prepare_init().map_err(failed("shut itself off from the agent"))?;
    atoll_jail::prompt(atoll_jail::Heirs::Ordinary);
    // Before any thread: each inherits what is blocked.
    let signals = Signals::new().map_err(failed("read signals"))?;
    let log = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_writer(crate::log::Bounded);
    log.with_target(false).with_ansi(false).init();
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    // The one thread that opens the spool is not needed again.
    let runtime = runtime.enable_all().max_blocking_threads(1).thread_keep_alive(Duration::from_millis(1)).build();
    let runtime = runtime.map_err(failed("start the runtime"))?;
    let clock = Instant::now();
    let exit = runtime.block_on(Box::pin(run(inherited, signals, clock)))?;
    runtime.shutdown_background();
    Ok(exit)
}

async fn run(inherited: Inherited, signals: Signals, clock: Instant) -> Result<Exit, Error> {
    let failed = |action| move |source| Error::Start { action, source };
    let Inherited { sandbox, user, path, socket, spool, groups, memory } = inherited;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true).map_err(failed("listen"))?;
    let listener = tokio::net::UnixListener::from_std(listener).map_err(failed("listen"))?;
    // It stands nowhere in the agent's files, which can then be exchanged.
    std::env::set_current_dir("/").map_err(failed("leave the workspace"))?;
    let outward = Outward::open().map(Arc::new).inspect_err(|error| {
        tracing::warn!(%error, "programs in this sandbox have no way out: its proxy's port can't be listened on");
    });
    let worker = std::env::current_exe().map_err(failed("find its own program"))?;

    let other_user = Some(user).filter(|user| *user != rustix::process::geteuid().as_raw());
    let starter = Starter { program: PathBuf::from("/proc/self/exe"), user: other_user, groups };
    let (keeper, hands) = Keeper::new(starter);
    tokio::spawn(keeper.run());
    let told_to_go = signals::from_outside(signals).map_err(failed("read signals"))?;

    let home = optional("ATOLL_HOME")?.unwrap_or_else(|| HOME.to_owned());
    let environment = Arc::new(Environment::new(sandbox, &path, &home, USER));
    let memory = Arc::new(memory);
    let workspace = optional("ATOLL_WORKSPACE")?.unwrap_or_else(|| PathBuf::from(exec::WORKSPACE));
    let pool = Arc::new(Accepting::default());
    let exec =
        Exec { hands: hands.clone(), environment: environment.clone(), memory: memory.clone(), cwd: workspace.clone() };
    let (asks, quiet) = tokio::sync::mpsc::channel(1);
    let doors = Doors { pool: pool.clone(), exec, outward: outward.ok(), asks };
    tokio::spawn(Acceptor { listener, doors: Arc::new(doors) }.run());

    let manner = Manner {
        messages: true,
        flush_timeout: Some(FLUSH),
        stop_grace: STOP_GRACE,
        leave_grace: Some(LEAVE_GRACE),
        seldom: Some(clock),
    };
    let spool_path = PathBuf::from(format!("/proc/self/fd/{}", spool.as_raw_fd()));
    // Beside the rest: a command needs no spool, and a disk may be slow.
    let opening = spawn_blocking(move || Worker::open(spool_path, sandbox, pool, None, manner));
    let mut prepared = opening.await.map_err(|error| failed("open the spool")(error.into()))??;
    prepared.writer.hold_at_most(crate::spool::MOST_OF_A_SANDBOX);
    let transcripts = Some(transcript::Keeper {
        hands: hands.clone(),
        environment: Arc::clone(&environment),
        server: prepared.server.clone(),
        spool: prepared.spool.clone(),
        worker: worker.clone(),
        workspace: workspace.clone(),
    });
    let logins = Some(Logins {
        hands: hands.clone(),
        environment: Arc::clone(&environment),
        server: prepared.server.clone(),
        stream: prepared.stream,
    });
    let tools = executor::Tools { hands, environment, memory, worker, workspace, transcripts, logins };
    let program = executor::start(tools, quiet);
    let exit = dispatcher::run(prepared, program, told_to_go).await?;
    drop(spool);
    Ok(exit)
}
