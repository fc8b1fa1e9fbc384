//! Connections that stay open: SSE and WebSocket for readers, WebSocket for workers.

pub mod client;
pub mod feed;
pub mod sse;
pub mod worker;
