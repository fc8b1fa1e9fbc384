//! Errors of forges, classified by the caller's reaction. None repeats a token.

use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The forge cannot be reached, or has an internal error.
    #[error("the forge is unavailable: {detail}")]
    Unavailable { detail: String },
    #[error("the forge's rate limit is used up; it accepts requests again in {} s", .retry_after.as_secs())]
    RateLimited { retry_after: Duration },
    #[error("the forge rejects the credentials: {detail}")]
    Unauthorized { detail: String },
    #[error("the forge does not allow this with the given token: {detail}")]
    Forbidden { detail: String },
    /// Also for resources that the token may not see.
    #[error("the forge has no such {what}, or the token may not see it")]
    NotFound { what: &'static str },
    /// A request that the forge will not accept later either.
    #[error("the forge refuses: {detail}")]
    Refused { detail: String },
    #[error("unexpected response of the forge: {detail}")]
    UnexpectedResponse { detail: String },
    /// The configuration of the client is unusable.
    #[error("{detail}")]
    Configuration { detail: String },
}

impl Error {
    /// A later attempt may succeed without a change by a person.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Unavailable { .. } | Self::RateLimited { .. } => true,
            Self::Unauthorized { .. }
            | Self::Forbidden { .. }
            | Self::NotFound { .. }
            | Self::Refused { .. }
            | Self::UnexpectedResponse { .. }
            | Self::Configuration { .. } => false,
        }
    }

    /// The stable code of a reason.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Unavailable { .. } => "forge_unavailable",
            Self::RateLimited { .. } => "forge_rate_limited",
            Self::Unauthorized { .. } => "forge_unauthorized",
            Self::Forbidden { .. } => "forge_forbidden",
            Self::NotFound { .. } => "forge_not_found",
            Self::Refused { .. } => "forge_refused",
            Self::UnexpectedResponse { .. } => "forge_unexpected_response",
            Self::Configuration { .. } => "forge_configuration",
        }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
