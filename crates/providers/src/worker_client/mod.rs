//! Client of the worker in a sandbox, over its socket. Shared by all providers with such a socket.

mod command_deadline;
mod command_input;
mod descriptor;
mod egress_listener;
pub(crate) mod exec;
pub(crate) mod file_transfer;
pub(crate) mod git_arguments;
pub mod link;
mod output_buffer;
mod pauses;
pub(crate) mod port_connection;

pub use link::{DiskLimitEffect, LinkHost, SandboxNotice};

/// Path of the worker binary in every sandbox.
pub(crate) const WORKER_PATH: &str = "/opt/atoll/worker";
