//! The provider trait: creates and operates sandboxes, on this machine or through a remote API.
//!
//! An operation that a provider does not support returns `Error::Unsupported` before any side effect. Provider failures
//! (`Error`) and failures of the work itself (an `Exit`) are separate.

use crate::BoxFuture;
use crate::id::{ProjectId, SandboxId, SessionId};
use crate::sandbox::{ProviderKind, Settings};
use crate::string_enum;
use crate::time::Timestamp;
use bytes::Bytes;
use futures_core::Stream;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::net::TcpStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

pub mod caches;
pub mod capabilities;
pub mod files;
pub mod observed;
pub use caches::{
    CacheRef, CacheUse, MAX_CACHE_DEPTH, PACKAGE_CACHE_DIR, checkout_commit, checkout_key, checkout_key_prefix,
    is_checkout_name, provider_cache_name,
};
pub use capabilities::{Capabilities, PortAbility};
pub use files::{
    Download, FileError, FileErrorCode, FileInfo, FileKind, FileOperation, FileOperationOutput, FileResult, ReadScope,
    UploadSummary, WriteOptions,
};

pub type ByteStream = Pin<Box<dyn Stream<Item = Result<Bytes, Error>> + Send>>;
pub type ExecStream = Pin<Box<dyn Stream<Item = Result<ExecEvent, Error>> + Send>>;

/// The provider's own id of a sandbox; stored as soon as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProviderId(pub String);

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("the {provider} provider cannot {ability}")]
    Unsupported { provider: ProviderKind, ability: &'static str },
    /// Permanent: bad configuration or an inactive snapshot. Do not retry.
    #[error("the provider refused: {detail}")]
    Refused { detail: String },
    /// Quota or rate limit; may succeed after `until`.
    #[error("the provider's quota is exhausted: {detail}")]
    Exhausted { detail: String, until: Option<Timestamp> },
    /// Time-out or transport failure. Retry with the same key.
    #[error("the provider is unreachable: {detail}")]
    Unreachable { detail: String },
    /// Temporarily unavailable during another operation. Retry shortly.
    #[error("temporarily unavailable: {detail}")]
    Busy { detail: String },
    /// The command has no stdin, or its stdin is closed.
    #[error("{detail}")]
    NoInput { detail: String },
    #[error("the provider no longer has this sandbox")]
    Gone,
    /// The set-up layer to start from was evicted, or its chain is too deep. Start without it.
    #[error("the set-up layer {name} is gone")]
    CacheGone { name: String },
}

/// Every code of an [`Error`].
pub const ERROR_CODES: &[&str] = &[
    "provider_unsupported",
    "provider_refused",
    "provider_exhausted",
    Error::UNREACHABLE_CODE,
    "provider_busy",
    "provider_no_input",
    "provider_gone",
    "provider_cache_gone",
];

impl Error {
    const UNREACHABLE_CODE: &str = "provider_unreachable";

    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unreachable { .. } => true,
            Self::Unsupported { .. }
            | Self::Refused { .. }
            | Self::Exhausted { .. }
            | Self::Busy { .. }
            | Self::NoInput { .. }
            | Self::Gone
            | Self::CacheGone { .. } => false,
        }
    }

    /// Stable error code for a failed creation.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unsupported { .. } => "provider_unsupported",
            Self::Refused { .. } => "provider_refused",
            Self::Exhausted { .. } => "provider_exhausted",
            Self::Unreachable { .. } => Self::UNREACHABLE_CODE,
            Self::Busy { .. } => "provider_busy",
            Self::NoInput { .. } => "provider_no_input",
            Self::Gone => "provider_gone",
            Self::CacheGone { .. } => "provider_cache_gone",
        }
    }
}

/// Labels that every sandbox carries at its provider, so that the server finds it again after a restart.
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
    /// Content of the workspace before the worker starts.
    pub source: Option<RepositorySource>,
    /// The agent's program, from this machine.
    pub programs: Vec<ReadOnlyMount>,
    /// The set-up layer to start from; not with an image's or a snapshot's own files.
    pub cache: Option<CacheUse>,
}

/// File or directory of this machine that a sandbox sees read-only, below [`crate::agent::AGENTS_DIR`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ReadOnlyMount {
    /// Absolute, without symbolic links.
    pub host_path: PathBuf,
    pub relative_path: String,
}

/// Repository to import: a git bundle on this machine, and the branch to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RepositorySource {
    pub bundle: PathBuf,
    /// File with the submodules and large files of the commit. A checkout layer that is at the commit has them.
    pub parts: Option<PathBuf>,
    /// Directories of a sparse checkout; all files without one.
    pub sparse_dirs: Vec<String>,
    /// True if commits have pointers in place of large files.
    pub uses_lfs: bool,
    /// The commit of the checkout layer that the bundle builds on.
    pub layer_commit: Option<String>,
    /// Name of a new checkout layer, which the provider stores before the worker starts.
    pub store_as: Option<String>,
    pub commit: String,
    pub branch: String,
    pub author: Author,
}

/// Author of the commits that Atoll makes in a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Author {
    pub name: String,
    pub email: String,
}

/// A git operation on a sandbox's workspace.
///
/// A workspace is untrusted, so git never runs on the host: the provider runs it without a network, where it can
/// damage only that workspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GitOperation {
    /// Bundle of everything since `base`, with uncommitted changes as a last commit.
    ExportBundle { base: String, message: String, author: Author },
    /// A new repository around the files of a workspace whose own one is gone or unusable.
    RestoreRepository(RepositorySource),
    /// Differences from `base`: a list as JSON, or the patch.
    Diff { base: String, paths: Vec<String>, as_patch: bool },
    /// Brings the workspace to the state of a user's worktree, from a stream in this file.
    ReceiveWorktree { stream: PathBuf },
    /// Bundle of the workspace's changes since a state that the worktree has.
    SendWorktree { base: String },
    /// Adds every path that is neither tracked nor ignored to `.git/info/exclude`, so that no result contains what
    /// set-up left.
    ExcludeUntracked,
}

/// Result of a [`GitOperation`]; its output is in the file passed to the operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GitResult {
    pub exit: CommandExit,
    /// The beginning of its error output.
    pub error_output: String,
}

string_enum! {
    "provider's sandbox state"
    ProviderState { Starting = "starting", Running = "running", Stopped = "stopped", Paused = "paused", Ending = "ending" }
}

/// A sandbox as its provider reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProviderSandbox {
    pub id: ProviderId,
    pub state: ProviderState,
    pub labels: BTreeMap<String, String>,
    /// Limits that the provider cannot enforce here, as sentences for users.
    pub notices: Vec<String>,
    /// A disk limit that is not enforced here, as a sentence for users.
    pub disk_notice: Option<String>,
    /// The set-up layer that it started from.
    pub cache: Option<CacheUse>,
}

/// Result of a lookup. Callers must not treat `Unreachable` as `Gone`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxLookup {
    Found(ProviderSandbox),
    Gone,
    Unreachable { detail: String },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecCommand {
    Argv(Vec<String>),
    Shell(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PtySize {
    pub columns: u16,
    pub rows: u16,
}

#[derive(Debug, Clone)]
pub struct ExecSpec {
    pub command: ExecCommand,
    pub cwd: Option<String>,
    pub env: BTreeMap<String, String>,
    pub has_stdin: bool,
    /// Run as the sandbox's own root, if it has a root with privileges.
    pub as_root: bool,
    pub terminal: Option<PtySize>,
    pub timeout: Option<Duration>,
}

/// Reference to a running or ended command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRef {
    pub sandbox: ProviderId,
    pub exec: String,
}

/// A running or recently ended command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecInfo {
    pub exec: String,
    pub argv: Vec<String>,
    /// Terminal size, if it has a terminal.
    pub terminal: Option<PtySize>,
    /// Time since the start.
    pub age: Duration,
    /// Cursor at the current end of its output.
    pub cursor: u64,
    /// Number of clients that follow its output.
    pub readers: usize,
    pub ended: Option<CommandExit>,
}

string_enum! {
    "output stream"
    OutputStream { Stdout = "stdout", Stderr = "stderr" }
}

/// Exit of a command. Unknown is never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum CommandExit {
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
    /// The output before this cursor has been dropped.
    Gap {
        cursor: u64,
    },
    Ended(CommandExit),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    pub offset: u64,
    pub length: Option<u64>,
}

/// Content to upload or download: one file, or a tree as tar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Transfer {
    /// An upload without a range replaces the existing file atomically, once it is complete.
    File {
        path: String,
        range: Option<ByteRange>,
        /// Used only for uploads.
        write: WriteOptions,
    },
    /// Content of a directory, created if absent. A download may also name one file.
    Tar { root: String },
}

impl Transfer {
    /// A transfer of one whole file.
    pub fn file(path: &str) -> Self {
        Self::File { path: path.to_owned(), range: None, write: WriteOptions::default() }
    }
}

/// Name of a project's snapshot at its provider, prefixed with the project so that projects cannot use each other's.
pub fn provider_snapshot_name(project: ProjectId, name: &str) -> String {
    format!("{project}.{name}")
}

/// A named snapshot of files, used to start sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SnapshotRef {
    pub name: String,
    /// Disk usage of the snapshot alone; absent until measured.
    pub bytes: Option<u64>,
    /// Image that the snapshot is based on.
    pub image: Option<String>,
    pub created_at: Option<Timestamp>,
}

/// An imported root file system, used to start sandboxes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ImageRef {
    pub name: String,
    pub bytes: Option<u64>,
    pub layers: u32,
    pub created_at: Option<Timestamp>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ResourceUsage {
    pub cpu_seconds: f64,
    pub memory_bytes: u64,
    /// Disk use of the sandbox alone; `None` if the provider cannot measure it.
    pub disk_bytes: Option<u64>,
    pub pids: u64,
    pub network_bytes: u64,
}

#[derive(Debug, Clone, Default)]
pub struct ProviderPage {
    pub items: Vec<ProviderSandbox>,
    pub next_cursor: Option<String>,
}

/// Spool and exit status of a worker that has died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadWorker {
    pub spool: PathBuf,
    /// Unknown if no process observed the exit.
    pub exit: CommandExit,
}

/// Calls a method of an observed provider, and reports its end.
macro_rules! observe_call {
    ($this:ident, $method:ident($($argument:ident),*)) => {{
        let end = $this.observer.begin_call($this.inner.kind(), stringify!($method));
        let call = $this.inner.$method($($argument),*);
        Box::pin(async move {
            let result = call.await;
            end(observed::CallResult::failure_code(&result));
            result
        })
    }};
}

/// Declares the provider trait twice: for implementers with `async fn`, and object-safe for callers.
macro_rules! provider_traits {
    (
        required { $($(#[$rmeta:meta])* fn $required:ident($($rarg:ident: $rtype:ty),*) -> $rout:ty;)+ }
        defaults { $($(#[$dmeta:meta])* fn $default:ident($($darg:ident: $dtype:ty),*) -> $dout:ty = $value:expr;)+ }
        unsupported { $($(#[$ometa:meta])* fn $optional:ident($($oarg:ident: $otype:ty),*) -> $oout:ty, $ability:literal;)+ }
    ) => {
        /// The provider contract as a provider implements it, with `async fn`. See [`Provider`].
        #[expect(clippy::needless_lifetimes, reason = "methods without references have the lifetime, too")]
        pub trait ImplementProvider: Send + Sync {
            fn kind(&self) -> ProviderKind;
            fn capabilities(&self) -> Capabilities;
            /// Closes the server's connections to all workers, which keep running.
            fn disconnect_all(&self) {}
            $($(#[$rmeta])* fn $required<'a>(&'a self, $($rarg: $rtype),*) -> impl Future<Output = $rout> + Send;)+
            $($(#[$dmeta])* fn $default<'a>(&'a self, $($darg: $dtype),*) -> impl Future<Output = $dout> + Send {
                $(let _ = $darg;)*
                async { $value }
            })+
            $($(#[$ometa])* fn $optional<'a>(&'a self, $($oarg: $otype),*) -> impl Future<Output = Result<$oout, Error>> + Send {
                $(let _ = $oarg;)*
                async { Err(Error::Unsupported { provider: ImplementProvider::kind(self), ability: $ability }) }
            })+
        }

        /// Operations on sandboxes. The caller sets a deadline for every call; `destroy` is idempotent, and
        /// `create` is idempotent per key. Every [`ImplementProvider`] is one.
        pub trait Provider: Send + Sync {
            fn kind(&self) -> ProviderKind;
            fn capabilities(&self) -> Capabilities;
            fn disconnect_all(&self);
            $(fn $required<'a>(&'a self, $($rarg: $rtype),*) -> BoxFuture<'a, $rout>;)+
            $(fn $default<'a>(&'a self, $($darg: $dtype),*) -> BoxFuture<'a, $dout>;)+
            $(fn $optional<'a>(&'a self, $($oarg: $otype),*) -> BoxFuture<'a, Result<$oout, Error>>;)+
        }

        impl<P: ImplementProvider> Provider for P {
            fn kind(&self) -> ProviderKind {
                ImplementProvider::kind(self)
            }

            fn capabilities(&self) -> Capabilities {
                ImplementProvider::capabilities(self)
            }

            fn disconnect_all(&self) {
                ImplementProvider::disconnect_all(self);
            }

            $(fn $required<'a>(&'a self, $($rarg: $rtype),*) -> BoxFuture<'a, $rout> {
                Box::pin(ImplementProvider::$required(self, $($rarg),*))
            })+
            $(fn $default<'a>(&'a self, $($darg: $dtype),*) -> BoxFuture<'a, $dout> {
                Box::pin(ImplementProvider::$default(self, $($darg),*))
            })+
            $(fn $optional<'a>(&'a self, $($oarg: $otype),*) -> BoxFuture<'a, Result<$oout, Error>> {
                Box::pin(ImplementProvider::$optional(self, $($oarg),*))
            })+
        }

        impl Provider for observed::ObservedProvider {
            fn kind(&self) -> ProviderKind {
                self.inner.kind()
            }

            fn capabilities(&self) -> Capabilities {
                self.inner.capabilities()
            }

            fn disconnect_all(&self) {
                self.inner.disconnect_all();
            }

            $(fn $required<'a>(&'a self, $($rarg: $rtype),*) -> BoxFuture<'a, $rout> {
                observe_call!(self, $required($($rarg),*))
            })+
            $(fn $default<'a>(&'a self, $($darg: $dtype),*) -> BoxFuture<'a, $dout> {
                observe_call!(self, $default($($darg),*))
            })+
            $(fn $optional<'a>(&'a self, $($oarg: $otype),*) -> BoxFuture<'a, Result<$oout, Error>> {
                observe_call!(self, $optional($($oarg),*))
            })+
        }
    };
}

provider_traits! {
    required {
        fn create(spec: &'a CreateSpec, key: &'a str) -> Result<ProviderSandbox, Error>;
        fn get(id: &'a ProviderId) -> SandboxLookup;
        fn list(cursor: Option<&'a str>) -> Result<ProviderPage, Error>;
        fn find_by_labels(labels: &'a BTreeMap<String, String>) -> Result<Vec<ProviderSandbox>, Error>;
        fn destroy(id: &'a ProviderId) -> Result<(), Error>;
    }
    defaults {
        /// Fails with the reason if it cannot create sandboxes now.
        fn check_availability() -> Result<(), Error> = Ok(());
        /// Its sandboxes confine an agent so well that it needs no approvals.
        fn confines_agents() -> bool = false;
        /// Finds the data of a dead worker on this machine. Providers with remote workers have none.
        fn find_dead_worker(sandbox: SandboxId) -> Result<DeadWorker, Error> = Err(Error::Gone);
        /// Replaces the server's connections to the worker. Where workers connect to the server, there is nothing to do.
        fn reconnect(id: &'a ProviderId) -> Result<(), Error> = Ok(());
    }
    unsupported {
        /// Kills every process and keeps the files. For a graceful stop, the server uses the worker's link.
        fn stop(id: &'a ProviderId) -> (), "stop a sandbox and keep it";
        /// Kills every process and starts the worker again over the same files.
        fn restart_worker(id: &'a ProviderId) -> (), "restart a worker";
        fn pause(id: &'a ProviderId) -> (), "pause a sandbox";
        fn resume(id: &'a ProviderId) -> ProviderSandbox, "resume a paused sandbox";
        fn exec(id: &'a ProviderId, spec: &'a ExecSpec) -> ExecRef, "run commands";
        fn attach(exec: &'a ExecRef, cursor: u64) -> ExecStream, "re-attach to commands";
        fn write(exec: &'a ExecRef, data: Bytes) -> (), "write to commands";
        fn close_stdin(exec: &'a ExecRef) -> (), "write to commands";
        fn signal(exec: &'a ExecRef, signal: i32) -> (), "signal commands";
        fn resize(exec: &'a ExecRef, size: PtySize) -> (), "resize terminals";
        fn execs(id: &'a ProviderId) -> Vec<ExecInfo>, "list commands";
        /// Connects to a port on the sandbox's loopback interface. `None` if nothing listens there.
        fn connect_port(id: &'a ProviderId, port: u16) -> Option<TcpStream>, "connect to ports";
        fn upload(id: &'a ProviderId, transfer: &'a Transfer, data: ByteStream) -> FileResult<UploadSummary>, "upload files";
        fn download(id: &'a ProviderId, transfer: &'a Transfer, scope: ReadScope) -> FileResult<Download>, "download files";
        fn files(id: &'a ProviderId, job: &'a FileOperation) -> FileResult<FileOperationOutput>, "manage files";
        fn snapshot(id: &'a ProviderId, name: &'a str) -> SnapshotRef, "create snapshots";
        fn snapshots() -> Vec<SnapshotRef>, "store snapshots";
        fn forget_snapshot(name: &'a str) -> (), "store snapshots";
        /// Seals the current files of `id` as the set-up layer `name`, before its agent starts. The caller has ended
        /// the processes of set-up. An existing layer of that name is kept. The sandbox continues above the layer.
        fn seal_cache(id: &'a ProviderId, name: &'a str) -> CacheRef, "store set-up layers";
        fn caches() -> Vec<CacheRef>, "store set-up layers";
        /// Deletes a set-up layer. Sandboxes that started from it keep their files.
        fn forget_cache(name: &'a str) -> (), "store set-up layers";
        fn images() -> Vec<ImageRef>, "store images";
        fn import_image(name: &'a str, archive: ByteStream) -> ImageRef, "import images";
        fn forget_image(name: &'a str) -> (), "store images";
        /// Copies the current files of `id` to a new identity. Nothing runs there until `create` is
        /// called with the same identity.
        fn fork(id: &'a ProviderId, spec: &'a CreateSpec, key: &'a str) -> ProviderSandbox, "fork sandboxes";
        fn git(id: &'a ProviderId, job: &'a GitOperation, output: File) -> GitResult, "run git over a workspace";
        fn resources(id: &'a ProviderId) -> ResourceUsage, "measure resources";
    }
}
