//! What a provider does through the worker in a sandbox, over connections to the worker's socket:
//! the same wherever such a socket can be dialled.

pub(crate) mod exec;
pub mod link;
mod outward;

pub use link::{LinkHost, Notice};
