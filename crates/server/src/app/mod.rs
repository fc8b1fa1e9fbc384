//! The application layer: the rules, each in one transaction.
//!
//! A handler calls one function of this layer. The function's changes, events and jobs are committed together; the
//! `Outbox` collects the effects for the rest of the server, which run after the commit.

pub mod approvals;
pub mod blob_transfer;
pub mod branch_export;
pub mod branch_workflow;
pub mod caches;
pub mod commands;
pub mod continuous;
pub mod create;
pub mod diffs;
pub mod event_log;
pub mod fence;
pub mod files;
pub mod forges;
pub mod guardian;
pub mod health;
pub mod heartbeat;
pub mod idle;
pub mod inbox;
pub mod ingest;
pub mod lease_wait;
pub mod lifecycle;
pub mod limits;
pub mod live_results;
pub mod log_export;
pub mod logins;
pub mod messages;
pub mod monitoring;
pub mod network;
pub mod notices;
pub mod pausing;
pub mod previews;
mod pricing;
pub mod projects;
pub mod provider_list;
pub mod restarts;
pub mod results;
pub mod row_wait;
pub mod sandbox_plan;
pub mod sandboxes;
pub mod saved_work;
pub mod secrets;
pub mod services;
pub mod sessions;
pub mod setup;
pub mod sign_ins;
pub mod snapshots;
pub mod targets;
pub mod task_dispatch;
pub mod task_work;
pub mod tasks;
pub mod ticket_work;
pub mod tickets;
pub mod tokens;
pub mod traces;
pub mod transcript_export;
pub mod transcripts;
mod turn_diff;
pub mod users;
pub mod views;
pub mod webhooks;
pub mod worktrees;

use crate::problem::{Problem, Result};
use crate::telemetry::FinishedSpan;
use atoll_core::event::{Event, EventSource, NewEvent};
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::Capabilities;
use atoll_core::sandbox::{Network, ProviderKind, SandboxState};
use atoll_core::time::Timestamp;
use atoll_core::trace::TraceContext;
use atoll_store::jobs::Job;
use atoll_store::sandboxes::SandboxRow;
use atoll_store::sessions::{self as session_rows, SessionRow};
use atoll_store::{Tx, events, sandboxes as sandbox_rows};
use serde_json::value::RawValue;

/// Effects of a transaction that run after its commit.
#[derive(Debug, Default)]
pub struct Outbox {
    pub events: Vec<Event>,
    pub inboxes: Vec<SessionId>,
    pub states: Vec<(SandboxId, SandboxState)>,
    pub jobs: bool,
    /// The queue of tasks may have changed.
    pub tasks_changed: bool,
    /// Jobs that the transaction has claimed for this server's runner.
    pub claimed_jobs: Vec<Job>,
    /// Network policies with the version of the row that holds them.
    pub networks: Vec<(SandboxId, i64, Option<Network>)>,
    /// Cost limits of continuous loops, in millionths of a dollar.
    pub tasks: Vec<(SandboxId, Option<i64>)>,
    /// Blob files that no row refers to any more.
    pub blobs: Vec<String>,
    /// Finished spans of sampled traces.
    pub spans: Vec<FinishedSpan>,
}

/// A unit of work: one write transaction with its clock, policy and outbox.
pub struct Work<'t> {
    pub tx: &'t mut dyn Tx,
    pub out: Outbox,
    /// The wall clock.
    pub now: Timestamp,
    /// The monotonic clock of deadlines and leases.
    pub steady: Timestamp,
    pub config: std::sync::Arc<atoll_config::Config>,
    pub secrets: std::sync::Arc<crate::secrets::Secrets>,
    pub agents: std::sync::Arc<crate::agents::Agents>,
    pub gateway: std::sync::Arc<crate::gateway::Gateway>,
    pub providers: std::sync::Arc<crate::providers::Providers>,
    pub circuits: std::sync::Arc<crate::circuits::Circuits>,
    /// The server's own URL.
    pub public_url: String,
    /// The trace of the request or job.
    pub trace: Option<TraceContext>,
}

impl Work<'_> {
    /// What a provider declares about itself.
    pub fn capabilities(&self, kind: ProviderKind) -> Capabilities {
        self.providers.get(kind).capabilities()
    }

    /// Appends events to a sandbox's log. The caller writes the row afterwards.
    pub async fn log(&mut self, sandbox: &mut SandboxRow, mut new: Vec<NewEvent>) -> Result<()> {
        let redactor = self.secrets.redactor(sandbox.project_id);
        for event in &mut new {
            match event.source {
                EventSource::Agent | EventSource::Worker => {} // redacted by `ingest`
                EventSource::System | EventSource::Guardian | EventSource::User | EventSource::Forge => {
                    let data = std::mem::replace(&mut event.data, RawValue::NULL.to_owned());
                    event.data = redactor.redact_raw_json(data);
                }
            }
        }
        let stored = events::append_events(self.tx, sandbox, new, self.now).await?;
        self.out.events.extend(stored);
        Ok(())
    }

    /// Removes the project's secrets from text.
    pub fn redact_text(&self, project: ProjectId, text: String) -> String {
        self.secrets.redactor(project).redact(&text).unwrap_or(text)
    }

    /// Locks the sandbox's session until the commit and reads both rows.
    pub async fn lock_sandbox(&mut self, id: SandboxId) -> Result<(SessionRow, SandboxRow)> {
        let not_found = || Problem::not_found("sandbox");
        let (session, _) = sandbox_rows::find_owner_ids(self.tx, id).await?.ok_or_else(not_found)?;
        let session = session_rows::lock_session(self.tx, session).await?.ok_or_else(not_found)?;
        let sandbox = sandbox_rows::find_sandbox(self.tx, id).await?.ok_or_else(not_found)?;
        Ok((session, sandbox))
    }
}
