//! Sign-in to the web page.

use crate::User;
use atoll_core::id::{ProjectId, SignInId, TokenId};
use atoll_core::principal::Role;
use atoll_core::time::Timestamp;
use secrecy::SecretString;
use serde::{Deserialize, Deserializer, Serialize};

/// Signs in with exactly one of the two.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewSignIn {
    /// The code of a one-time link.
    #[serde(default, deserialize_with = "read_secret")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub code: Option<SecretString>,
    /// An API token of a user or service.
    #[serde(default, deserialize_with = "read_secret")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub api_key: Option<SecretString>,
}

fn read_secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SecretString>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.map(SecretString::from))
}

/// A new sign-in; the response also sets its cookie.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StartedSignIn {
    pub id: SignInId,
    /// The user; absent for a service.
    pub user: Option<User>,
    pub created_at: Timestamp,
    pub expires_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignIn {
    pub id: SignInId,
    /// The token that it was made with. It ends with the token.
    pub token_id: TokenId,
    pub created_at: Timestamp,
    pub last_used_at: Timestamp,
    pub expires_at: Timestamp,
    /// What the browser called itself.
    pub user_agent: Option<String>,
    /// The request came with this sign-in.
    pub is_current: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInList {
    pub items: Vec<SignIn>,
}

/// A one-time link that signs a browser in with the rights of the caller.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignInLink {
    /// Path and fragment of the link. Browsers do not send the fragment, so it is in no log.
    pub path: String,
    pub expires_at: Timestamp,
}

/// The caller of the request.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Me {
    /// The user; absent for a service.
    pub user: Option<User>,
    /// The role in the deployment; absent for a service of one project.
    pub role: Option<Role>,
    /// The only project of a service.
    pub project_id: Option<ProjectId>,
    pub token_id: TokenId,
    /// The sign-in that the request came with.
    pub sign_in_id: Option<SignInId>,
}
