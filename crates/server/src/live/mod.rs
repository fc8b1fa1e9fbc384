//! Long-lived connections: SSE and WebSocket for readers, WebSocket for workers and terminals.

mod access_recheck;
pub mod event_socket;
pub mod sse;
pub mod subscription;
pub mod terminal_socket;
pub mod worker_socket;

pub use access_recheck::RECHECK_INTERVAL;

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::request::Parts;
use std::sync::Arc;

/// Extracts a WebSocket upgrade; another request gets a problem response.
pub struct SocketUpgrade(pub WebSocketUpgrade);

impl FromRequestParts<Arc<App>> for SocketUpgrade {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let upgrade = WebSocketUpgrade::from_request_parts(parts, app).await;
        upgrade.map(Self).map_err(|_| Problem::new(Code::BadRequest, "this path accepts only WebSocket requests"))
    }
}
