//! Connections that stay open: SSE and WebSocket for readers, WebSocket for workers and for terminals.

pub mod client;
pub mod feed;
mod rights;
pub mod sse;
pub mod terminal;
pub mod worker;

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use axum::extract::FromRequestParts;
use axum::extract::ws::WebSocketUpgrade;
use axum::http::request::Parts;
use std::sync::Arc;

/// A request for a WebSocket; anything else is refused in our own words.
pub struct Upgrade(pub WebSocketUpgrade);

impl FromRequestParts<Arc<App>> for Upgrade {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let upgrade = WebSocketUpgrade::from_request_parts(parts, app).await;
        upgrade.map(Self).map_err(|_| Problem::new(Code::BadRequest, "this path takes WebSockets only"))
    }
}
