//! Every refusal the outside can meet: a stable code, a status, a sentence. Nothing internal.

use atoll_core::bounds::OutOfBounds;
use atoll_core::inbox::Refused;
use atoll_core::lifecycle::Illegal;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

macro_rules! codes {
    ($($(#[$meta:meta])* $variant:ident = $code:literal, $status:ident, $title:literal;)+) => {
        /// The stable codes. Each has a page in `docs/errors`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Code { $($(#[$meta])* $variant,)+ }

        impl Code {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $code,)+ }
            }

            pub const fn status(self) -> StatusCode {
                match self { $(Self::$variant => StatusCode::$status,)+ }
            }

            pub const fn title(self) -> &'static str {
                match self { $(Self::$variant => $title,)+ }
            }

            /// The page for people.
            pub const fn page(self) -> &'static str {
                match self {
                    $(Self::$variant => include_str!(concat!("../../../docs/errors/", $code, ".md")),)+
                }
            }
        }
    };
}

codes! {
    BadRequest = "bad_request", BAD_REQUEST, "The request can't be understood";
    BadCursor = "bad_cursor", BAD_REQUEST, "The cursor is not one of this list's";
    Unauthorized = "unauthorized", UNAUTHORIZED, "A valid token is needed";
    Forbidden = "forbidden", FORBIDDEN, "This token may not do that";
    ForeignHost = "foreign_host", FORBIDDEN, "The Host header names a host that this server doesn't serve";
    ForeignOrigin = "foreign_origin", FORBIDDEN, "The request comes from a page of another origin";
    NotFound = "not_found", NOT_FOUND, "There is no such thing";
    MethodNotAllowed = "method_not_allowed", METHOD_NOT_ALLOWED, "This path doesn't take that method";
    Conflict = "conflict", CONFLICT, "Somebody else changed it at the same time";
    SessionBusy = "session_busy", CONFLICT, "The session has a live sandbox";
    SessionClosed = "session_closed", CONFLICT, "The session is closed";
    SandboxEnding = "sandbox_ending", CONFLICT, "The sandbox is ending";
    SandboxEnded = "sandbox_ended", CONFLICT, "The sandbox has ended";
    ApprovalResolved = "approval_resolved", CONFLICT, "This has been decided already";
    SandboxBusy = "sandbox_busy", CONFLICT, "The sandbox is in the middle of something";
    SandboxPaused = "sandbox_paused", CONFLICT, "The sandbox is paused";
    SandboxGone = "sandbox_gone", CONFLICT, "The provider no longer has the sandbox";
    IllegalTransition = "illegal_transition", CONFLICT, "The sandbox can't do that in its state";
    StreamFenced = "stream_fenced", CONFLICT, "Another worker has taken over";
    KeyGap = "key_gap", CONFLICT, "Events are missing before these";
    NotYourLease = "not_your_lease", CONFLICT, "The lease is not the message's current one";
    MessageNotQueued = "message_not_queued", CONFLICT, "The message can't be changed any more";
    NoAgent = "no_agent", CONFLICT, "There is no agent to do the work";
    AgentMissing = "agent_missing", CONFLICT, "The agent is not on this machine";
    AgentKeyMissing = "agent_key_missing", CONFLICT, "There is no key for the agent's models";
    NoRepository = "no_repository", CONFLICT, "The sandbox has no repository";
    ProviderRefused = "provider_refused", CONFLICT, "The provider says no";
    ResultsPending = "results_pending", CONFLICT, "The results are not out yet";
    NoInput = "no_input", CONFLICT, "The command takes no input";
    FileNotFound = "file_not_found", NOT_FOUND, "There is no such file in the sandbox";
    FileIsDirectory = "file_is_directory", CONFLICT, "It is a directory";
    NotADirectory = "not_a_directory", CONFLICT, "It is no directory";
    FileDenied = "file_denied", CONFLICT, "The agent's user may not do that";
    FileExists = "file_exists", CONFLICT, "There is something already";
    DirectoryNotEmpty = "directory_not_empty", CONFLICT, "The directory is not empty";
    FileUnsupported = "file_unsupported", CONFLICT, "That can't be done with such a file";
    FileChanged = "file_changed", CONFLICT, "The file changed meanwhile";
    SandboxFull = "sandbox_full", INSUFFICIENT_STORAGE, "The sandbox has no room left";
    RangeNotSatisfiable = "range_not_satisfiable", RANGE_NOT_SATISFIABLE, "No byte of the file is in that range";
    NameTaken = "name_taken", CONFLICT, "The name is taken";
    SecretKeyUnusable = "secret_key_unusable", CONFLICT, "A secret can't be sealed or opened";
    InUse = "in_use", CONFLICT, "Something still depends on it";
    TooLarge = "too_large", PAYLOAD_TOO_LARGE, "The body is too large";
    UnsupportedMediaType = "unsupported_media_type", UNSUPPORTED_MEDIA_TYPE, "The body's type isn't understood";
    NotARepository = "not_a_repository", UNPROCESSABLE_ENTITY, "The repository can't be used";
    Invalid = "invalid", UNPROCESSABLE_ENTITY, "The body is not valid";
    NotABatch = "not_a_batch", UNPROCESSABLE_ENTITY, "The body is not a batch of events";
    BlobMismatch = "blob_mismatch", UNPROCESSABLE_ENTITY, "The bytes don't have the hash of the path";
    IdempotencyMismatch = "idempotency_mismatch", UNPROCESSABLE_ENTITY, "The Idempotency-Key was used for something else";
    RateLimited = "rate_limited", TOO_MANY_REQUESTS, "Too many requests";
    TooManyReaders = "too_many_readers", TOO_MANY_REQUESTS, "Too many readers are connected";
    Internal = "internal", INTERNAL_SERVER_ERROR, "Something went wrong inside Atoll";
    ProviderUnsupported = "provider_unsupported", CONFLICT, "The provider can't do that";
    ProviderUnreachable = "provider_unreachable", SERVICE_UNAVAILABLE, "The provider can't be reached";
    StoreUnavailable = "store_unavailable", SERVICE_UNAVAILABLE, "The database can't be reached";
    DiskFull = "disk_full", SERVICE_UNAVAILABLE, "The disk is full";
    ShuttingDown = "shutting_down", SERVICE_UNAVAILABLE, "The server is stopping";
}

#[derive(Debug, Clone)]
pub struct Problem {
    pub code: Code,
    pub detail: String,
    /// Further members of the document.
    pub more: Map<String, Value>,
    pub retry_after_s: Option<u64>,
}

pub type Result<T, E = Problem> = std::result::Result<T, E>;

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), more: Map::new(), retry_after_s: None }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    pub fn not_found(what: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no such {what}, or you may not see it"))
    }

    pub fn forbidden(detail: &str) -> Self {
        Self::new(Code::Forbidden, detail)
    }

    pub fn unauthorized() -> Self {
        Self::new(Code::Unauthorized, "send `Authorization: Bearer TOKEN` with a valid token")
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    /// Something that must not happen: logged here, once, and told to nobody outside.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!(error = %what, "internal error");
        Self::new(Code::Internal, "the server's log says what happened")
    }
}

impl From<atoll_core::provider::Error> for Problem {
    fn from(error: atoll_core::provider::Error) -> Self {
        use atoll_core::provider::Error as E;
        let code = match &error {
            E::Unsupported { .. } => Code::ProviderUnsupported,
            E::Refused { .. } => Code::ProviderRefused,
            E::Exhausted { .. } | E::Unreachable { .. } => Code::ProviderUnreachable,
            E::Busy { .. } => Code::SandboxBusy,
            E::NoInput { .. } => Code::NoInput,
            E::Gone => Code::SandboxGone,
        };
        Self::new(code, error.to_string())
    }
}

impl From<atoll_store::Error> for Problem {
    fn from(error: atoll_store::Error) -> Self {
        use atoll_store::Error as E;
        match error {
            E::Unavailable { detail } => {
                tracing::warn!(%detail, "the database is unavailable");
                Self::new(Code::StoreUnavailable, "nothing was stored; try again").retry_after(1)
            }
            E::InDoubt { detail } => {
                tracing::warn!(%detail, "the database went away during a commit");
                let sentence = "it is not known whether it was stored; try again under the same keys";
                Self::new(Code::StoreUnavailable, sentence).retry_after(1)
            }
            E::Full { detail } => {
                tracing::warn!(%detail, "the disk is full");
                Self::new(Code::DiskFull, "nothing was stored; make room on the server's disk").retry_after(5)
            }
            E::Conflict { what } => Self::new(Code::Conflict, format!("the {what} changed meanwhile; try again")),
            E::Taken { what } => Self::new(Code::NameTaken, format!("there is already {what}")),
            E::BadText => Self::invalid("text must not contain NUL characters"),
            E::Locked(_) | E::Newer { .. } | E::Internal { .. } => Self::internal(error),
        }
    }
}

impl From<OutOfBounds> for Problem {
    fn from(error: OutOfBounds) -> Self {
        let field = error.field.clone();
        Self::invalid(error.to_string()).with("field", field)
    }
}

impl From<Illegal> for Problem {
    fn from(error: Illegal) -> Self {
        Self::new(Code::IllegalTransition, format!("the sandbox is {}", error.from)).with("state", error.from.as_str())
    }
}

impl From<Refused> for Problem {
    fn from(error: Refused) -> Self {
        match error {
            Refused::NotQueued(state) => {
                Self::new(Code::MessageNotQueued, error.to_string()).with("state", state.as_str())
            }
            Refused::Held | Refused::NotYourLease => Self::new(Code::NotYourLease, error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.code.status();
        let mut document = Map::new();
        document.insert("type".into(), format!("/docs/errors/{}", self.code.as_str()).into());
        document.insert("title".into(), self.code.title().into());
        document.insert("status".into(), status.as_u16().into());
        document.insert("code".into(), self.code.as_str().into());
        document.insert("detail".into(), self.detail.into());
        document.extend(self.more);
        let body = Value::Object(document).to_string();
        let mut response = (status, body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some(seconds) = self.retry_after_s {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_page_that_says_what_to_do() {
        for code in Code::ALL {
            let page = code.page();
            assert!(page.starts_with(&format!("# {}\n", code.as_str())), "{}", code.as_str());
            assert!(page.contains("## What to do"), "{}", code.as_str());
        }
    }
}
