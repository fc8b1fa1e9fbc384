//! Every error that clients can get: a stable code, a status and a detail. Internal details stay in the log.

pub use atoll_api::ErrorCode as Code;
use atoll_api::ProblemDocument;
use atoll_core::bounds::OutOfBounds;
use atoll_core::inbox::DeliveryError;
use atoll_core::lifecycle::IllegalTransition;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value};

#[derive(Debug, Clone)]
pub struct Problem {
    pub code: Code,
    pub detail: String,
    /// Additional members of the document.
    pub extensions: Map<String, Value>,
    pub retry_after_s: Option<u64>,
}

pub type Result<T, E = Problem> = std::result::Result<T, E>;

impl Problem {
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into(), extensions: Map::new(), retry_after_s: None }
    }

    pub fn with(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.extensions.insert(key.to_owned(), value.into());
        self
    }

    pub fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after_s = Some(seconds.max(1));
        self
    }

    /// The server failed, not the request: a retry may succeed.
    pub const fn is_server_error(&self) -> bool {
        self.code.status() >= 500
    }

    /// The failure was logged where it happened.
    pub const fn is_logged(&self) -> bool {
        matches!(self.code, Code::Internal | Code::StoreUnavailable | Code::DiskFull)
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

    pub fn csrf() -> Self {
        Self::new(Code::Csrf, "the sign-in's cookie works only for requests of Atoll's own page")
    }

    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    /// An unexpected error: logged here once, and hidden from the client.
    pub fn internal(what: impl std::fmt::Display) -> Self {
        tracing::error!(error = %what, "internal error");
        Self::new(Code::Internal, "see the server's log")
    }
}

impl From<atoll_core::provider::Error> for Problem {
    fn from(error: atoll_core::provider::Error) -> Self {
        use atoll_core::provider::Error as E;
        let code = match &error {
            E::Unsupported { .. } => Code::ProviderUnsupported,
            E::Refused { .. } | E::CacheGone { .. } => Code::ProviderRefused,
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
                Self::new(Code::StoreUnavailable, "nothing was stored; retry").retry_after(1)
            }
            E::CommitUnconfirmed { detail } => {
                tracing::warn!(%detail, "the database went away during a commit");
                let sentence = "the write may or may not be stored; retry with the same keys";
                Self::new(Code::StoreUnavailable, sentence).retry_after(1)
            }
            E::DiskFull { detail } => {
                tracing::warn!(%detail, "the disk is full");
                Self::new(Code::DiskFull, "nothing was stored; free space on the server's disk").retry_after(5)
            }
            E::Conflict { what } => Self::new(Code::Conflict, format!("the {what} changed meanwhile; retry")),
            E::AlreadyExists { what } => Self::new(Code::NameTaken, format!("there is already {what}")),
            E::InvalidText => Self::invalid("text must not contain NUL characters"),
            E::Locked(_) | E::DatabaseHeld(_) | E::NewerSchema { .. } | E::NotMigrated | E::Internal { .. } => {
                Self::internal(error)
            }
        }
    }
}

impl From<OutOfBounds> for Problem {
    fn from(error: OutOfBounds) -> Self {
        let field = error.field.clone();
        Self::invalid(error.to_string()).with("field", field)
    }
}

impl From<IllegalTransition> for Problem {
    fn from(error: IllegalTransition) -> Self {
        Self::new(Code::IllegalTransition, format!("the sandbox is {}", error.from)).with("state", error.from.as_str())
    }
}

impl From<DeliveryError> for Problem {
    fn from(error: DeliveryError) -> Self {
        match error {
            DeliveryError::NotQueued(state) => {
                Self::new(Code::MessageNotQueued, error.to_string()).with("state", state.as_str())
            }
            DeliveryError::Leased | DeliveryError::NotYourLease => Self::new(Code::NotYourLease, error.to_string()),
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let document = ProblemDocument::new(self.code, self.detail, self.extensions);
        let body = serde_json::to_string(&document).unwrap_or_default();
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
    fn every_code_has_a_page_with_a_remedy() {
        for code in Code::ALL {
            let page = code.page();
            assert!(page.starts_with(&format!("# {}\n", code.as_str())), "{}", code.as_str());
            assert!(page.contains("## What to do"), "{}", code.as_str());
        }
    }
}
