//! The port behind which sandboxes are made, on this machine or behind a remote API.
//!
//! What a provider can't do is `Error::Unsupported` before any side effect. Errors are of two
//! kinds that are never confused: the provider failed, or the work failed (an `Exit`).

use crate::BoxFuture;
use crate::id::{ProjectId, SandboxId, SessionId};
use crate::sandbox::{IsolationTier, Network, ProviderKind, Settings};
use crate::time::Timestamp;
use crate::words;
use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

pub mod capabilities;
pub mod files;
pub use capabilities::Capabilities;
pub use files::{
    Download, FileDone, FileEntry, FileError, FileFault, FileJob, FileKind, Uploaded, Worked, WriteOptions,
};

pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, Error>> + Send>>;
pub type ExecStream = Pin<Box<dyn Stream<Item = Result<ExecEvent, Error>> + Send>>;
pub type Answer<'a, T> = BoxFuture<'a, Result<T, Error>>;

/// The provider's own name for a sandbox; stored the moment it is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProviderId(pub String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the {provider} provider can't {ability}")]
    Unsupported { provider: ProviderKind, ability: &'static str },
    /// Bad configuration, an inactive snapshot: trying again can't help.
    #[error("the provider refused: {detail}")]
    Refused { detail: String },
    /// Quota or rate limit: may go on at `until`.
    #[error("the provider has no room: {detail}")]
    Exhausted { detail: String, until: Option<Timestamp> },
    /// A time-out or fault on the way: worth another try under the same key.
    #[error("the provider could not be reached: {detail}")]
    Unreachable { detail: String },
    /// Not in the middle of what it does: may be asked again a little later.
    #[error("not now: {detail}")]
    Busy { detail: String },
    /// A command that takes none, or whose input has ended.
    #[error("{detail}")]
    NoInput { detail: String },
    #[error("the provider no longer has this sandbox")]
    Gone,
}

impl Error {
    pub const fn is_worth_a_retry(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Unsupported { .. }
            | Self::Refused { .. }
            | Self::Exhausted { .. }
            | Self::Busy { .. }
            | Self::NoInput { .. }
            | Self::Gone => false,
        }
    }

    /// The stable code that a failed creation shows.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "provider_unsupported",
            Self::Refused { .. } => "provider_refused",
            Self::Exhausted { .. } => "provider_exhausted",
            Self::Unreachable { .. } => "provider_unreachable",
            Self::Busy { .. } => "provider_busy",
            Self::NoInput { .. } => "provider_no_input",
            Self::Gone => "provider_gone",
        }
    }
}

/// Every sandbox at a provider carries these, so that it is found again after a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub deployment: String,
    pub sandbox: SandboxId,
    pub session: SessionId,
    pub project: ProjectId,
}

impl Identity {
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            ("atoll", "1".to_owned()),
            ("atoll.deployment", self.deployment.clone()),
            ("atoll.sandbox", self.sandbox.to_string()),
            ("atoll.session", self.session.to_string()),
            ("atoll.project", self.project.to_string()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }
}

#[derive(Debug, Clone)]
pub struct CreateSpec {
    pub identity: Identity,
    pub labels: BTreeMap<String, String>,
    pub settings: Settings,
    /// What stands in the workspace before the worker starts.
    pub source: Option<Source>,
    /// The agent's program, from this machine.
    pub programs: Vec<Shown>,
}

/// A file or directory of this machine that a sandbox is shown, read-only, below [`crate::agent::PLACE`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Shown {
    /// Absolute, and without links.
    pub from: PathBuf,
    pub at: String,
}

/// A repository on its way in: a git bundle on this machine, and the branch that the work is done on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub bundle: PathBuf,
    pub commit: String,
    pub branch: String,
    pub author: Author,
}

/// Who stands in the commits of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    pub name: String,
    pub email: String,
}

/// What git does over a sandbox's workspace. A workspace is hostile, so this never runs on the
/// host: the provider runs it where only that workspace can be harmed, and without a network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitJob {
    /// A bundle of everything since `base`, with what was left uncommitted as a last commit.
    Out { base: String, message: String, author: Author },
    /// What differs from `base`: a list as JSON, or the patch.
    Diff { base: String, paths: Vec<String>, patch: bool },
}

/// How a `GitJob` ended; what it gave is in the file that it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitDone {
    pub exit: Exit,
    /// The beginning of its error output.
    pub said: String,
}

words! {
    "provider's sandbox state"
    ProviderState { Starting = "starting", Running = "running", Stopped = "stopped", Paused = "paused", Ending = "ending" }
}

/// A sandbox as its provider sees it. `epoch` changes when the place behind the id is replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub id: ProviderId,
    pub state: ProviderState,
    pub epoch: u64,
    pub labels: BTreeMap<String, String>,
    pub expires_at: Option<Timestamp>,
    /// What the provider can't enforce here and somebody should know, in sentences.
    pub notices: Vec<String>,
}

/// Three outcomes that must never be taken for each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lookup {
    Found(Found),
    Gone,
    Unreachable { detail: String },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopMode {
    Gently,
    Force,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    Argv(Vec<String>),
    Shell(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub columns: u16,
    pub rows: u16,
}

#[derive(Debug, Clone)]
pub struct ExecSpec {
    pub command: Command,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub stdin: bool,
    /// As the sandbox's own root, where it has one that may do something.
    pub as_root: bool,
    pub terminal: Option<Size>,
    pub timeout: Option<Duration>,
}

/// A running or ended command: found again by id, fenced by the sandbox's epoch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRef {
    pub sandbox: ProviderId,
    pub exec: String,
    pub epoch: u64,
}

/// A command that runs, or ended a while ago.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecInfo {
    pub exec: String,
    pub argv: Vec<String>,
    /// The size of its terminal, if it has one.
    pub terminal: Option<Size>,
    /// Since it was started.
    pub age: Duration,
    /// Where its output ends by now.
    pub cursor: u64,
    /// How many follow it at the moment.
    pub readers: usize,
    pub ended: Option<Exit>,
}

words! {
    "output stream"
    OutputStream { Stdout = "stdout", Stderr = "stderr" }
}

/// How a command ended. Unknown is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Exit {
    Exited { code: i32 },
    Signalled { signal: i32 },
    OutOfMemory,
    TimedOut,
    Unknown,
}

#[derive(Debug, Clone)]
pub enum ExecEvent {
    Output {
        stream: OutputStream,
        data: Bytes,
        cursor: u64,
    },
    /// Output before this cursor is no longer kept.
    Gap {
        cursor: u64,
    },
    Ended(Exit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub offset: u64,
    pub length: Option<u64>,
}

/// What is moved in or out: one file, or a tree as tar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transfer {
    /// On its way in without a range it takes the place of the one that is there only when it is whole.
    File {
        path: String,
        range: Option<Range>,
        /// Only of use on its way in.
        write: WriteOptions,
    },
    /// What is in a directory, which is made if it is not there; on its way out also one file.
    Tar { root: String },
}

impl Transfer {
    /// The whole of one file.
    pub fn file(path: &str) -> Self {
        Self::File { path: path.to_owned(), range: None, write: WriteOptions::default() }
    }
}

/// What a project's snapshot is called at its provider: one project never begins with the files of another.
pub fn snapshot_of(project: ProjectId, name: &str) -> String {
    format!("{project}.{name}")
}

/// Files that are kept by name, to begin sandboxes with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotRef {
    pub name: String,
    /// What it alone takes on disk; unknown until it is counted.
    pub bytes: Option<u64>,
    /// The image below it.
    pub image: Option<String>,
    pub created_at: Option<Timestamp>,
}

/// A root that was imported, to begin sandboxes with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImageRef {
    pub name: String,
    pub bytes: Option<u64>,
    pub layers: u32,
    pub created_at: Option<Timestamp>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    pub url: String,
    pub headers: BTreeMap<String, String>,
    pub expires_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
    pub pids: u64,
    pub network_bytes: u64,
}

#[derive(Debug, Clone, Default)]
pub struct Page {
    pub items: Vec<Found>,
    pub next_cursor: Option<String>,
}

macro_rules! unsupported {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $kind:ty),*) -> $out:ty, $ability:literal;)+) => {
        $($(#[$meta])*
        fn $name<'a>(&'a self, $($arg: $kind),*) -> Answer<'a, $out> {
            $(let _ = $arg;)*
            let provider = self.kind();
            Box::pin(async move { Err(Error::Unsupported { provider, ability: $ability }) })
        })+
    };
}

/// The contract. Every call is bounded in time by its caller; `destroy` is idempotent, and
/// `create` is by its key.
pub trait Provider: Send + Sync {
    fn kind(&self) -> ProviderKind;
    fn capabilities(&self) -> Capabilities;
    fn create<'a>(&'a self, spec: &'a CreateSpec, key: &'a str) -> Answer<'a, Found>;
    fn get<'a>(&'a self, id: &'a ProviderId) -> BoxFuture<'a, Lookup>;
    fn list<'a>(&'a self, cursor: Option<&'a str>) -> Answer<'a, Page>;
    fn find<'a>(&'a self, labels: &'a BTreeMap<String, String>) -> Answer<'a, Vec<Found>>;
    fn destroy<'a>(&'a self, id: &'a ProviderId) -> Answer<'a, ()>;
    /// How well its sandboxes are kept apart, if it can say so.
    fn isolation(&self) -> BoxFuture<'_, Option<IsolationTier>> {
        Box::pin(async { None })
    }

    unsupported! {
        fn start(id: &'a ProviderId) -> Found, "start a stopped sandbox";
        fn stop(id: &'a ProviderId, mode: StopMode) -> (), "stop a sandbox and keep it";
        fn pause(id: &'a ProviderId) -> (), "pause a sandbox";
        fn resume(id: &'a ProviderId) -> Found, "resume a paused sandbox";
        fn exec(id: &'a ProviderId, spec: &'a ExecSpec) -> ExecRef, "run commands";
        fn attach(exec: &'a ExecRef, cursor: u64) -> ExecStream, "re-attach to commands";
        fn write(exec: &'a ExecRef, data: Bytes) -> (), "write to commands";
        fn close_stdin(exec: &'a ExecRef) -> (), "write to commands";
        fn signal(exec: &'a ExecRef, signal: i32) -> (), "signal commands";
        fn resize(exec: &'a ExecRef, size: Size) -> (), "resize terminals";
        fn execs(id: &'a ProviderId) -> Vec<ExecInfo>, "list commands";
        fn upload(id: &'a ProviderId, transfer: &'a Transfer, data: ByteStream) -> Worked<Uploaded>, "take files in";
        fn download(id: &'a ProviderId, transfer: &'a Transfer) -> Worked<Download>, "give files out";
        fn files(id: &'a ProviderId, job: &'a FileJob) -> Worked<FileDone>, "look at files";
        fn snapshot(id: &'a ProviderId, name: &'a str) -> SnapshotRef, "make snapshots";
        fn snapshots() -> Vec<SnapshotRef>, "keep snapshots";
        fn forget_snapshot(name: &'a str) -> (), "keep snapshots";
        fn images() -> Vec<ImageRef>, "keep images";
        fn import_image(name: &'a str, archive: ByteStream) -> ImageRef, "import images";
        fn forget_image(name: &'a str) -> (), "keep images";
        /// The files of `id` as they are now, under a new identity. Nothing runs in it until `create` is
        /// called with the same identity.
        fn fork(id: &'a ProviderId, spec: &'a CreateSpec, key: &'a str) -> Found, "fork sandboxes";
        fn preview(id: &'a ProviderId, port: u16, lifetime: Option<Duration>) -> Preview, "show previews";
        fn set_network(id: &'a ProviderId, network: &'a Network) -> (), "change the network of a running sandbox";
        fn git(id: &'a ProviderId, job: &'a GitJob, output: File) -> GitDone, "run git over a workspace";
        fn resources(id: &'a ProviderId) -> Usage, "measure resources";
    }
}
