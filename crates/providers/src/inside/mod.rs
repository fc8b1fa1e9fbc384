//! What a provider does through the worker in a sandbox, over connections to the worker's socket:
//! the same wherever such a socket can be dialled.

mod clock;
pub(crate) mod exec;
pub(crate) mod files;
pub(crate) mod git;
mod input;
mod kept;
pub mod link;
mod outward;
mod standing;

pub use link::{Kept, LinkHost, Notice};

use atoll_core::provider::Exit;
use std::path::PathBuf;

/// The worker's program as it stands in every sandbox.
pub(crate) const WORKER: &str = "/opt/atoll/worker";

/// What is there when a worker is dead.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remains {
    pub spool: PathBuf,
    /// Unknown when nobody saw it.
    pub exit: Exit,
}
