//! Routes that copy a user's worktree into a sandbox and its changes out. Contents are streams.

use crate::error::Result;
use crate::http::{Client, NO_QUERY};
use atoll_api::{SyncedWorktree, WorktreeQuery};
use atoll_core::id::SandboxId;
use reqwest::{Body, Method, Response};

impl Client {
    /// Sends a worktree: `POST /sandboxes/{sandbox}/worktree/in`.
    pub async fn send_worktree(&self, sandbox: SandboxId, stream: Body) -> Result<SyncedWorktree> {
        let request = self.request(Method::POST, &format!("/sandboxes/{sandbox}/worktree/in"), NO_QUERY);
        self.send_bytes(request, stream).await
    }

    /// Fetches the workspace's changes: `POST /sandboxes/{sandbox}/worktree/out`. An empty response means that there are
    /// none. Read the response with [`Client::read_chunk`].
    pub async fn fetch_worktree(&self, sandbox: SandboxId, base: &str) -> Result<Response> {
        let query = WorktreeQuery { base: base.to_owned() };
        self.send(self.request(Method::POST, &format!("/sandboxes/{sandbox}/worktree/out"), &query)).await
    }
}
