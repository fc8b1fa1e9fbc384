//! The worker: the static binary in a sandbox. It runs the agent, stores its events on disk until the server has
//! acknowledged them, and delivers messages.
//!
//! Dependencies point downwards:
//!
//! ```text
//! supervisor       pid 1 of a sandbox: inherited descriptors, signals, the server's connections
//!   atoll_dispatcher   the main loop and the links to the server; the fake provider runs it, too
//!   executor       owns the agent's process and its turns
//!     transcript, logins   the agent's transcript and login files
//!     services     the programs that run beside the agent
//!   transfer       the server's file transfers, one connection each
//!     exec         the server's commands, one connection each
//!       link       HTTP and WebSocket connections to the server
//!       spawner    the helper process with the agent's rights, which spawns every program
//! git              git operations that run in the workspace
//! demo, opencode   the process of the demo agent, and the bridge to OpenCode's server
//! ```
//!
//! A worker started by hand (`setup::prepare_worker`) has no supervisor: it serves the program at its stdin and stdout.
//!
//! Invariant: the worker never waits for the server before it answers the program. It prints an event's key when the
//! event is on disk.

pub mod demo;
pub mod environment;
pub mod exec;
pub mod executor;
pub mod git;
pub mod link;
pub mod logins;
pub mod memory_counters;
pub mod opencode;
mod output_tail;
pub mod ports;
mod readiness;
mod services;
pub mod setup;
pub mod spawner;
pub mod supervisor;
pub mod transcript;
pub mod transfer;
