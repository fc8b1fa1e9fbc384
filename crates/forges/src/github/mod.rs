//! GitHub over REST.

mod app_token;
mod client;
pub mod device_login;
mod operations;
mod payloads;
mod retry_rule;
pub mod webhook;

pub use app_token::AppCredentials;
pub(crate) use client::is_loopback;
pub use client::{GitHub, GitHubOptions};

use secrecy::SecretString;

/// The credentials of requests.
#[derive(Debug, Clone)]
pub enum Credentials {
    /// A token of the deployment or of a user.
    Token(SecretString),
    /// An App, which gets a token for each repository that it is installed on.
    App(AppCredentials),
}
