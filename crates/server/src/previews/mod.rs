//! Previews: a reverse proxy to ports of sandboxes, each on an origin of its own.
//!
//! ```text
//! browser ─► TOKEN.localhost ─► guard ─► proxy: preview, rights, state ─► provider ─► worker: connect ─► program
//! ```
//!
//! The host name selects the proxy before any route of the API is considered, so a preview's origin has no API. The token
//! is the right to use one port; the program in the sandbox never receives it.

mod headers;
pub mod hosts;
mod proxy;
mod refusal;

pub use hosts::PreviewHosts;
pub use proxy::serve_preview;
pub use refusal::PreviewRefusal;

/// Concurrent requests and WebSockets of all previews; one sandbox gets at most a quarter.
pub const MAX_STREAMS: usize = 1024;
