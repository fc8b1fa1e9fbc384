//! Secrets: values that a sandbox uses by name, and that no response contains.

use atoll_core::id::{ProjectId, SecretId};
use atoll_core::time::Timestamp;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A secret without its value.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Secret {
    pub id: SecretId,
    pub name: String,
    /// Its project; absent for a secret of the deployment, which all projects can use.
    pub project_id: Option<ProjectId>,
    /// Hosts that the server may send it to.
    pub upstreams: Vec<String>,
    /// Sandboxes that use it contain its value.
    pub exposed: bool,
    /// The environment variable that holds it in a sandbox.
    pub expose: Option<String>,
    /// The file below the agent's home that holds it in a sandbox.
    pub expose_file: Option<String>,
    pub created_by: Option<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewSecret {
    /// 1 byte to 64 KiB of text; 32 KiB for a variable; JSON for a file.
    #[serde(deserialize_with = "read_secret", serialize_with = "write_secret")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, min_length = 1, max_length = 65536))]
    pub value: SecretString,
    /// Its project; absent for a secret of the deployment, which only an admin can set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub project_id: Option<ProjectId>,
    /// Hosts that the server may send it to, such as `api.example.org` or `*.example.org`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(max_items = 50))]
    pub upstreams: Vec<String>,
    /// Put it into this environment variable of sandboxes that use it. Every program in the sandbox can read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose: Option<String>,
    /// Write it to this file below the agent's home before each prompt. Fields whose names contain `refresh` stay
    /// blank there, so that no program in the sandbox can renew the login.
    #[cfg_attr(feature = "openapi", schema(max_length = 200))]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expose_file: Option<String>,
}

fn read_secret<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SecretString, D::Error> {
    String::deserialize(deserializer).map(SecretString::from)
}

fn write_secret<S: Serializer>(value: &SecretString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(value.expose_secret())
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct SecretListQuery {
    /// Only secrets that this project's sandboxes can use: its own and the deployment's.
    pub project_id: Option<ProjectId>,
    /// Number of items, 1 to 200.
    #[cfg_attr(feature = "openapi", param(minimum = 1, maximum = 200))]
    pub limit: Option<i64>,
    pub cursor: Option<String>,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::IntoParams), into_params(parameter_in = Query))]
pub struct RemoveSecretQuery {
    /// Its project; absent for a secret of the deployment.
    pub project_id: Option<ProjectId>,
}

/// The result of sealing all secrets with a new key.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyRotation {
    /// The key that seals secrets from now on.
    pub key_id: String,
    /// Number of secrets that the new key seals.
    pub sealed: u64,
    /// Secrets that the server could not open, and left as they are.
    pub left: Vec<Secret>,
}
