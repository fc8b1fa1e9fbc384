//! Git mechanics shared by the host (this crate) and the sandbox (the worker).
//!
//! The user, the repository and the settings are each side's policy: the host does not trust the repository; in the
//! sandbox, the jail protects.

pub mod bundle;
pub mod changes;
pub mod checkout_parts;
pub mod filters;
mod git_output;
pub mod git_program;
pub mod large_files;
pub mod subprocess;
pub mod sync;

pub use git_output::{GitFailure, GitOutput};
