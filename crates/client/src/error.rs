//! Errors of requests.

use atoll_api::{ErrorCode, ProblemDocument};
use std::error::Error as _;
use std::time::Duration;

pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The server's response is a problem document.
    #[error("{}", .problem.detail)]
    Problem {
        problem: Box<ProblemDocument>,
        /// The server's `Retry-After` header.
        retry_after: Option<Duration>,
    },
    /// There was no response.
    #[error("no server answers at {url}: {cause}")]
    Unreachable { url: String, cause: String },
    /// The server's certificate is not trusted.
    #[error("the server at {url} is not trusted: {cause}")]
    Untrusted { url: String, cause: String },
    /// The connection broke in the middle of a response.
    #[error("the response of {url} broke off: {cause}")]
    BrokenResponse { url: String, cause: String },
    /// The response is not one of an Atoll server.
    #[error("{url} does not respond like an Atoll server: {detail}")]
    UnexpectedResponse { url: String, detail: String },
    /// The client cannot be set up.
    #[error("invalid client configuration: {0}")]
    Configuration(String),
}

impl Error {
    /// The server's error code, if there is one that this version knows.
    pub fn code(&self) -> Option<ErrorCode> {
        self.problem().and_then(ProblemDocument::error_code)
    }

    pub fn problem(&self) -> Option<&ProblemDocument> {
        match self {
            Self::Problem { problem, .. } => Some(problem),
            Self::Unreachable { .. }
            | Self::Untrusted { .. }
            | Self::BrokenResponse { .. }
            | Self::UnexpectedResponse { .. }
            | Self::Configuration(_) => None,
        }
    }

    /// A later retry may succeed: the server is away, stopping or too busy.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::BrokenResponse { .. } | Self::UnexpectedResponse { .. } => true,
            Self::Untrusted { .. } | Self::Configuration(_) => false,
            Self::Problem { .. } => matches!(
                self.code(),
                Some(
                    ErrorCode::StoreUnavailable
                        | ErrorCode::DiskFull
                        | ErrorCode::ShuttingDown
                        | ErrorCode::RateLimited
                        | ErrorCode::TooManyConnections
                        | ErrorCode::TooManyReaders
                )
            ),
        }
    }
}

/// The innermost cause, which is the specific one.
pub(crate) fn innermost_cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "the request timed out".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    if let Some(source) = error.source().filter(|_| cause.to_string().is_empty()) {
        return source.to_string();
    }
    cause.to_string()
}
