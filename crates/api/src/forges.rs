//! Forges, and the caller's logins at them.

use atoll_core::forge::ForgeKind;
use atoll_core::string_enum;
use atoll_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// A forge of the server, with the credentials that the caller's work can use there.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Forge {
    pub name: ForgeKind,
    /// The host of its repositories, such as `github.com`.
    pub host: String,
    /// The caller's own login.
    pub login: Option<ForgeLogin>,
    /// The server has an App there, for the repositories that it is installed on.
    pub has_app: bool,
    /// The server has a token of its own there.
    pub has_token: bool,
    /// Users can log in.
    pub allows_login: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForgeList {
    pub items: Vec<Forge>,
}

/// A user's login at a forge, without its tokens.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForgeLogin {
    /// The user's name at the forge, if the forge told it.
    pub account: Option<String>,
    /// End of the current token; the server renews it before.
    pub expires_at: Option<Timestamp>,
    pub created_at: Timestamp,
}

/// A code that the user confirms at the forge.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StartedForgeLogin {
    pub user_code: String,
    /// The page of the forge that asks for the code.
    pub verification_uri: String,
    /// Lifetime of the code in seconds.
    pub expires_in_s: u64,
    /// Seconds between two polls.
    pub interval_s: u64,
}

string_enum! {
    /// The state of a login that was started.
    "state of the login"
    ForgeLoginState {
        /// The user has not confirmed the code yet.
        Pending = "pending",
        /// The server has the user's token.
        Granted = "granted",
        /// The user denied it.
        Denied = "denied",
        /// The code expired.
        Expired = "expired",
    }
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ForgeLoginProgress {
    pub state: ForgeLoginState,
    /// Seconds until the next poll, while the login is pending.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interval_s: Option<u64>,
    /// The login, once it is granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub login: Option<ForgeLogin>,
}
