#![doc = include_str!("../README.md")]

mod admin_routes;
mod backoff;
mod branch_workflow_routes;
mod command_stream;
mod error;
mod event_socket;
mod event_stream;
mod file_routes;
mod forge_routes;
mod guardian_routes;
mod http;
mod page_routes;
mod sandbox_routes;
mod session_routes;
mod sse;
mod task_routes;
mod terminal_socket;
mod ticket_routes;
mod websocket;
mod worktree_routes;

pub use atoll_api as api;
pub use atoll_api::events::EventData;
pub use atoll_core::event::Event;
pub use command_stream::{CommandOutput, CommandStream, output_bytes};
pub use error::{Error, Result};
pub use event_socket::{EventSocket, EventSocketItem};
pub use event_stream::{EventStream, EventStreamItem};
pub use http::{Client, is_loopback};
pub use reqwest::{Body, Method, Response, Url};
pub use terminal_socket::{TerminalItem, TerminalSocket};
