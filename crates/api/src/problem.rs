//! Problem documents (RFC 9457) and their stable error codes.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

macro_rules! error_codes {
    ($($variant:ident = $code:literal, $status:literal, $title:literal;)+) => {
        /// The stable code of a problem. Each has a page in `docs/errors`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ErrorCode { $($variant,)+ }

        impl ErrorCode {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            /// The HTTP status of responses with this code.
            pub const fn status(self) -> u16 {
                match self { $(Self::$variant => $status,)+ }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// The page that explains the code to people, in Markdown.
            #[cfg(feature = "error-pages")]
            pub const fn page(self) -> &'static str {
                match self {
                    $(Self::$variant => include_str!(concat!("../../../docs/errors/", $code, ".md")),)+
                }
            }
        }
    };
}

error_codes! {
    BadRequest = "bad_request", 400, "The request is malformed";
    BadCursor = "bad_cursor", 400, "The cursor does not belong to this list";
    Unauthorized = "unauthorized", 401, "A valid token is needed";
    Forbidden = "forbidden", 403, "This token may not do that";
    ForeignHost = "foreign_host", 403, "The Host header names a host that this server doesn't serve";
    ForeignOrigin = "foreign_origin", 403, "The request comes from a page of another origin";
    Csrf = "csrf", 403, "The request does not come from the page itself";
    NotFound = "not_found", 404, "Not found";
    MethodNotAllowed = "method_not_allowed", 405, "The path does not support the method";
    Conflict = "conflict", 409, "A concurrent change conflicted";
    SessionBusy = "session_busy", 409, "The session has a live sandbox";
    SessionClosed = "session_closed", 409, "The session is closed";
    SandboxEnding = "sandbox_ending", 409, "The sandbox is ending";
    SandboxEnded = "sandbox_ended", 409, "The sandbox has ended";
    ApprovalResolved = "approval_resolved", 409, "The approval is already decided";
    ApprovalChanged = "approval_changed", 409, "The answer names another input than the approval has";
    SandboxBusy = "sandbox_busy", 409, "The sandbox is busy";
    SandboxPaused = "sandbox_paused", 409, "The sandbox is paused";
    SandboxStarting = "sandbox_starting", 409, "The sandbox is still being created";
    SandboxGone = "sandbox_gone", 409, "The provider no longer has the sandbox";
    IllegalTransition = "illegal_transition", 409, "The state does not allow this";
    StreamFenced = "stream_fenced", 409, "A newer worker replaced this one";
    KeyGap = "key_gap", 409, "Events are missing before these";
    NotYourLease = "not_your_lease", 409, "The lease is not the message's current one";
    MessageNotQueued = "message_not_queued", 409, "The message is no longer queued";
    NoAgent = "no_agent", 409, "No agent is available";
    AgentMissing = "agent_missing", 409, "The agent is not installed";
    AgentKeyMissing = "agent_key_missing", 409, "There is no key for the agent's models";
    NoRepository = "no_repository", 409, "The sandbox has no repository";
    ProviderRefused = "provider_refused", 409, "The provider refused the operation";
    ResultsPending = "results_pending", 409, "The results are not exported yet";
    WorktreeConflict = "worktree_conflict", 409, "Changes in the sandbox conflict with the worktree";
    WorktreeMismatch = "worktree_mismatch", 409, "The sandbox and the worktree have no state in common";
    NoInput = "no_input", 409, "The command takes no input";
    FileNotFound = "file_not_found", 404, "There is no such file in the sandbox";
    FileIsDirectory = "file_is_directory", 409, "The path is a directory";
    NotADirectory = "not_a_directory", 409, "The path is not a directory";
    FileDenied = "file_denied", 409, "Permission denied for the agent's user";
    FileExists = "file_exists", 409, "The path already exists";
    DirectoryNotEmpty = "directory_not_empty", 409, "The directory is not empty";
    FileUnsupported = "file_unsupported", 409, "The operation does not support this kind of file";
    FileChanged = "file_changed", 409, "The file changed during the operation";
    SandboxFull = "sandbox_full", 507, "The sandbox's disk is full";
    LogFull = "log_full", 413, "The sandbox's log is full";
    RangeNotSatisfiable = "range_not_satisfiable", 416, "The range is outside of the file";
    NameTaken = "name_taken", 409, "The name is taken";
    SecretKeyUnusable = "secret_key_unusable", 409, "A secret cannot be sealed or opened";
    TicketBlocked = "ticket_blocked", 409, "The ticket is blocked";
    DependencyCycle = "dependency_cycle", 422, "The dependencies would form a cycle";
    InUse = "in_use", 409, "The resource is still in use";
    TooLarge = "too_large", 413, "The body is too large";
    UnsupportedMediaType = "unsupported_media_type", 415, "The body's media type is not supported";
    NotARepository = "not_a_repository", 422, "The repository cannot be used";
    CloneFailed = "clone_failed", 422, "The remote repository cannot be used";
    ForgeAccess = "forge_access", 409, "The server has no access to the repository at its forge";
    ForgeRefused = "forge_refused", 409, "The forge refused the operation";
    ForgeUnavailable = "forge_unavailable", 503, "The forge is unavailable";
    Invalid = "invalid", 422, "The body is not valid";
    NotABatch = "not_a_batch", 422, "The body is not a batch of events";
    BlobMismatch = "blob_mismatch", 422, "The body does not match the hash in the path";
    IdempotencyMismatch = "idempotency_mismatch", 422, "The Idempotency-Key was used for another request";
    RateLimited = "rate_limited", 429, "Too many requests";
    TooManyConnections = "too_many_connections", 429, "Too many connections are open";
    TooManyReaders = "too_many_readers", 429, "Too many readers are connected";
    Internal = "internal", 500, "Internal error";
    ProviderUnsupported = "provider_unsupported", 409, "The provider does not support this";
    ProviderUnreachable = "provider_unreachable", 503, "The provider is unreachable";
    ProviderFailing = "provider_failing", 503, "The provider fails repeatedly";
    StoreUnavailable = "store_unavailable", 503, "The database is unavailable";
    DiskFull = "disk_full", 503, "The disk is full";
    ShuttingDown = "shutting_down", 503, "The server is shutting down";
}

impl ErrorCode {
    /// The code with this written form; a newer server may send codes that this version does not know.
    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.as_str() == code)
    }
}

/// The body of every response that reports an error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProblemDocument {
    /// Path of the page that explains the code.
    #[serde(rename = "type")]
    pub page_path: String,
    pub title: String,
    pub status: u16,
    /// The stable code, such as `not_found`.
    pub code: String,
    /// A sentence about this occurrence.
    pub detail: String,
    /// Further members, such as `field` or `state`.
    #[serde(flatten)]
    pub extra_members: Map<String, Value>,
}

impl ProblemDocument {
    pub fn new(code: ErrorCode, detail: impl Into<String>, extra_members: Map<String, Value>) -> Self {
        Self {
            page_path: format!("/docs/errors/{}", code.as_str()),
            title: code.title().to_owned(),
            status: code.status(),
            code: code.as_str().to_owned(),
            detail: detail.into(),
            extra_members,
        }
    }

    /// The code, if this version knows it.
    pub fn error_code(&self) -> Option<ErrorCode> {
        ErrorCode::from_code(&self.code)
    }
}
