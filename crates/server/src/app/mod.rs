//! The application layer: rules applied to rows, in one transaction each.
//!
//! A handler calls one function here through `App::write`. What it changes, the events it appends
//! and the jobs it leaves are committed together; what the rest of the server should know is
//! collected in the `Outbox` and told after the commit.

pub mod approvals;
pub mod continuous;
pub mod create;
pub mod fence;
pub mod guardian;
pub mod heartbeat;
pub mod inbox;
pub mod ingest;
pub mod lifecycle;
pub mod limits;
pub mod logins;
pub mod network;
pub mod notices;
pub mod pausing;
mod priced;
pub mod results;
pub mod secrets;
pub mod sessions;
pub mod transcripts;

use crate::options::Policy;
use crate::problem::{Problem, Result};
use atoll_core::event::{Event, NewEvent, Source};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::redact::Redactor;
use atoll_core::sandbox::{Network, SandboxState};
use atoll_core::time::Timestamp;
use atoll_store::sandboxes::Sandbox;
use atoll_store::sessions::{self as session_rows, Session};
use atoll_store::{Tx, events, sandboxes};
use serde_json::value::RawValue;

/// What to tell the rest of the server after the commit.
#[derive(Debug, Default)]
pub struct Outbox {
    pub events: Vec<Event>,
    pub inboxes: Vec<SessionId>,
    pub states: Vec<(SandboxId, SandboxState)>,
    pub jobs: bool,
    /// Network policies with the version of the row that holds them.
    pub networks: Vec<(SandboxId, i64, Network)>,
    /// What sandboxes may have spent at most until their task is done, in millionths of a dollar.
    pub tasks: Vec<(SandboxId, Option<i64>)>,
    /// Files of blobs that are off the books.
    pub blobs: Vec<String>,
}

/// One transaction in progress.
pub struct Work<'t> {
    pub tx: &'t mut dyn Tx,
    pub out: Outbox,
    /// What the wall says.
    pub now: Timestamp,
    /// What deadlines and leases count by.
    pub steady: Timestamp,
    pub policy: std::sync::Arc<Policy>,
    pub secrets: std::sync::Arc<crate::secrets::Secrets>,
    pub agents: std::sync::Arc<crate::agents::Agents>,
    pub gateway: std::sync::Arc<crate::gateway::Gateway>,
}

/// JSON without the secrets that are known.
pub fn redacted(data: Box<RawValue>, redactor: &Redactor) -> Box<RawValue> {
    match redactor.redact_json(data.get()) {
        None => data,
        // It is JSON again; if it were not, the whole thing would go rather than leak.
        Some(text) => RawValue::from_string(text)
            .unwrap_or_else(|_| atoll_core::json::raw(&serde_json::json!({ "redacted": "the whole of it" }))),
    }
}

impl Work<'_> {
    /// Appends events to a sandbox's log. The caller writes the row afterwards.
    pub async fn log(&mut self, sandbox: &mut Sandbox, mut new: Vec<NewEvent>) -> Result<()> {
        let redactor = self.secrets.redactor(sandbox.project_id);
        for event in &mut new {
            match event.source {
                Source::Agent | Source::Worker => {} // redacted when it was checked
                Source::System | Source::Guardian | Source::User | Source::Forge => {
                    let data = std::mem::replace(&mut event.data, RawValue::NULL.to_owned());
                    event.data = redacted(data, &redactor);
                }
            }
        }
        let stored = events::append(self.tx, sandbox, new, self.now).await?;
        self.out.events.extend(stored);
        Ok(())
    }

    /// Words of a person, without the secrets that the project knows.
    pub fn redacted(&self, project: ProjectId, text: String) -> String {
        self.secrets.redactor(project).redact(&text).unwrap_or(text)
    }

    /// The sandbox with its session locked: nobody else changes either until the commit.
    pub async fn locked(&mut self, id: SandboxId) -> Result<(Session, Sandbox)> {
        let gone = || Problem::not_found("sandbox");
        let (session, _) = sandboxes::owner(self.tx, id).await?.ok_or_else(gone)?;
        let session = session_rows::lock(self.tx, session).await?.ok_or_else(gone)?;
        let sandbox = sandboxes::get(self.tx, id).await?.ok_or_else(gone)?;
        Ok((session, sandbox))
    }
}
