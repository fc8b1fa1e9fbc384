//! Repositories behind a URL.
//!
//! - `RemoteUrl` checks a URL and names the repository.
//! - `RemoteCredential` passes a token or a key to git, never through arguments, configuration or files.
//! - `Mirror` is the server's bare copy of a repository: sandboxes start from it, and results land in it.
//! - `push_commit` and `delete_branch` change the remote repository.
//! - `request_large_file_access` asks a server behind ssh where its large files are.
//!
//! `connection` is the only place that lets git use a network. All calls block.

mod connection;
mod credential;
mod error;
mod large_file_access;
mod mirror;
mod push;
mod push_refusal;
mod url;

pub use credential::{DEFAULT_TOKEN_USER, RemoteCredential};
pub use error::{RemoteError, RemoteFailure};
pub use large_file_access::{LargeFileAccess, request_large_file_access};
pub(crate) use mirror::REMOTE_PREFIX;
pub use mirror::{Mirror, MirrorFetch, MirrorOptions, Pin};
pub use push::{Lease, PushOutcome, delete_branch, push_commit};
pub use push_refusal::PushRefusal;
pub use url::{InvalidUrl, Protocol, RemoteUrl};
