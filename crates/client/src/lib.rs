//! The Rust SDK of Atoll: a typed client of its HTTP API.
//!
//! [`Client`] has one method per route, with the types of [`api`]. Every method returns [`Error`] with the server's problem
//! document, or with the reason why there was no response.
//!
//! ```no_run
//! # async fn example() -> Result<(), atoll_client::Error> {
//! use atoll_client::{Client, EventStreamItem, api};
//!
//! let client = Client::new("http://127.0.0.1:4747", "atl_…")?;
//! let request = api::NewSandbox { prompt: Some("Fix the failing test".into()), ..Default::default() };
//! let sandbox = client.create_sandbox(&request).await?;
//! let mut events = client.follow_events(sandbox.id, &[], 0);
//! loop {
//!     if let EventStreamItem::Event(event) = events.next().await? {
//!         println!("{} {}", event.seq, event.event_type);
//!         if event.event_type.as_str() == "sandbox.completed" {
//!             break;
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! - Lists return an [`api::Page`]; [`Client::collect_pages`] reads all pages.
//! - [`Client::follow_events`] follows one sandbox over server-sent events, [`Client::open_event_socket`] many over one
//!   WebSocket. Both resume after a lost connection, with no gap and no repeat.
//! - [`Client::run_command`] and [`Client::open_terminal`] run programs in a sandbox.
//! - [`Client::download_file`] and [`Client::upload_file`] transfer files as streams.

mod admin_routes;
mod backoff;
mod command_stream;
mod error;
mod event_socket;
mod event_stream;
mod file_routes;
mod http;
mod sandbox_routes;
mod session_routes;
mod sse;
mod terminal_socket;
mod websocket;

pub use atoll_api as api;
pub use atoll_api::events::EventData;
pub use atoll_core::event::Event;
pub use command_stream::{CommandOutput, CommandStream, output_bytes};
pub use error::{Error, Result};
pub use event_socket::{EventSocket, EventSocketItem};
pub use event_stream::{EventStream, EventStreamItem};
pub use http::{Client, is_loopback};
pub use reqwest::{Body, Method, Url};
pub use terminal_socket::{TerminalItem, TerminalSocket};
