//! The WebSocket of a worker: messages go down as leases, lease renewals and live text come up.

use super::SocketUpgrade;
use super::event_socket::encode_frame;
use crate::app::{guardian, inbox, limits};
use crate::auth::{Caller, LinkedWorker};
use crate::event_follower::RECHECK_INTERVAL;
use crate::extract::{Id, Params};
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::EventsFrame;
use atoll_core::bounds;
use atoll_core::id::{LeaseId, MessageId, ProjectId, SandboxId, SessionId};
use atoll_core::limit::Limit;
use atoll_core::sandbox::AgentLimits;
use atoll_protocol::LeaseRequest;
use atoll_protocol::frame::{ServerFrame, WorkerCommand, WorkerFrame};
use atoll_store::{approvals, messages, sandboxes};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket};
use axum::response::Response;
use serde::Deserialize;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

const PING_INTERVAL: Duration = Duration::from_secs(20);
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Messages to lease per transaction.
const LEASE_BATCH: u32 = 16;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    #[param(value_type = String, format = "uuid")]
    stream: Uuid,
    boot: Option<i64>,
}

/// Stream messages to a worker.
#[utoipa::path(get, path = "/sandboxes/{id}/stream", tag = "worker", params(("id" = SandboxId, Path), StreamQuery),
    responses((status = 101, description = "A WebSocket")))]
pub async fn open_worker_socket(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<StreamQuery>,
    linked: Option<Extension<LinkedWorker>>,
    SocketUpgrade(upgrade): SocketUpgrade,
) -> Result<Response> {
    caller.require_worker_of(id)?;
    // Registers the stream before the upgrade, so that a refusal is an HTTP response; also finds the session.
    let request = LeaseRequest { stream: query.stream, boot: query.boot, max: 0, wait_s: 0, renew: Vec::new() };
    let session = app
        .write(async move |work| {
            inbox::lease_messages(work, id, &request).await?;
            Ok(work.lock_sandbox(id).await?.0)
        })
        .await?;
    let upgrade = upgrade.max_message_size(bounds::MB).max_frame_size(bounds::MB).read_buffer_size(4096);
    Ok(upgrade.on_upgrade(move |socket| async move {
        metrics::gauge!(crate::metrics::WORKERS).increment(1.0);
        let mut connection = WorkerSocket {
            app,
            id,
            session: session.id,
            project: session.project_id,
            stream: query.stream,
            boot: query.boot,
            socket,
            last_frame_id: 0,
            sent_limits: None,
            sent_denials: 0,
            sent_answers: HashSet::new(),
            lease_pass: HashSet::new(),
            has_more_messages: false,
            sends_pings: linked.is_none(),
        };
        drop(connection.serve_socket().await);
        metrics::gauge!(crate::metrics::WORKERS).decrement(1.0);
    }))
}

struct WorkerSocket {
    app: Arc<App>,
    id: SandboxId,
    session: SessionId,
    project: ProjectId,
    stream: Uuid,
    boot: Option<i64>,
    socket: WebSocket,
    last_frame_id: u64,
    /// Limits that this connection has sent.
    sent_limits: Option<(AgentLimits, bool)>,
    /// Number of the guardian's denials that this connection has sent.
    sent_denials: usize,
    /// Approvals whose decision this connection has sent.
    sent_answers: HashSet<String>,
    /// Messages leased in the current pass over the inbox. A pass leases each message once: leases that expire during
    /// it would keep it going.
    lease_pass: HashSet<MessageId>,
    /// The pass is not over. It takes turns with the worker's frames, such as renewals.
    has_more_messages: bool,
    /// False on the same machine, where the kernel reports a closed connection and pings would wake an idle worker.
    sends_pings: bool,
}

/// The worker disconnected or is fenced; it reconnects or stops.
struct SocketClosed;

impl WorkerSocket {
    async fn serve_socket(&mut self) -> std::result::Result<(), SocketClosed> {
        let mut inboxes = self.app.hub.subscribe_inboxes();
        let mut states = self.app.hub.subscribe_states();
        let mut stopping = self.app.stopping.clone();
        let mut ping = tokio::time::interval_at(Instant::now() + PING_INTERVAL, PING_INTERVAL);
        let mut look = tokio::time::interval(RECHECK_INTERVAL);
        self.send_leased_messages().await?;
        loop {
            let has_more_messages = self.has_more_messages;
            tokio::select! {
                changed = inboxes.recv() => match changed {
                    Ok(session) if session != self.session => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => {
                        self.lease_and_send().await?;
                        self.send_answers().await?;
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
                changed = states.recv() => match changed {
                    Ok((id, state)) if id == self.id && !state.accepts_messages() => {
                        self.last_frame_id += 1;
                        let command = ServerFrame::Command { id: self.last_frame_id, command: WorkerCommand::Stop { state } };
                        self.send_frame(&command).await?;
                    }
                    Ok((id, _)) if id != self.id => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => {
                        self.send_limits().await?;
                        self.send_denials().await?;
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
                frame = self.socket.recv() => match frame {
                    Some(Ok(Message::Text(text))) => self.handle_frame(&text).await?,
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Binary(_) | Message::Close(_)) | Err(_)) | None => return Ok(()),
                },
                _ = ping.tick(), if self.sends_pings => {
                    self.last_frame_id += 1;
                    self.send_frame(&ServerFrame::Ping { id: self.last_frame_id }).await?;
                }
                () = std::future::ready(()), if has_more_messages => self.lease_and_send().await?,
                // The first tick is immediate; later ones cover lost wake-ups and expired leases.
                _ = look.tick() => if self.has_available_messages().await {
                    self.lease_and_send().await?;
                },
                _ = stopping.changed() => return Ok(()),
            }
        }
    }

    /// Sends the messages that this worker has leased already. After a broken connection they would otherwise wait for
    /// their lease to expire.
    async fn send_leased_messages(&mut self) -> std::result::Result<(), SocketClosed> {
        let (session, stream) = (self.session, self.stream);
        let leased = self.app.read(async move |tx| inbox::leased_by_stream(tx, session, stream).await).await;
        for message in leased.unwrap_or_default() {
            self.send_frame(&ServerFrame::Message { message }).await?;
        }
        self.send_limits().await?;
        self.send_denials().await?;
        self.send_answers().await
    }

    /// Sends the agent's limits if they changed on this connection.
    async fn send_limits(&mut self) -> std::result::Result<(), SocketClosed> {
        let id = self.id;
        let row = self.app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await;
        let Ok(Some(row)) = row else { return Ok(()) };
        let sent = (row.settings.limits.unwrap_or_default(), row.status.pausing_limit().is_some_and(Limit::is_money));
        // A worker without limits gets none. A worker with the gateway always gets them: its project's budget may have
        // been raised while it was disconnected and paused.
        let providers = self.app.providers();
        let has_gateway = providers.is_ok_and(|all| all.get(row.provider).capabilities().runs_agents());
        let had_none = !has_gateway
            && row.settings.limits.is_none()
            && self.sent_limits.is_none()
            && sent == (AgentLimits::default(), false);
        if had_none || self.sent_limits.replace(sent) == Some(sent) {
            return Ok(());
        }
        self.send_frame(&limits::limits_frame(&row)).await
    }

    /// Sends the calls that the guardian denies if there are new ones.
    async fn send_denials(&mut self) -> std::result::Result<(), SocketClosed> {
        let id = self.id;
        let denied = self.app.read(async move |tx| guardian::list_denials(tx, id).await).await;
        let calls = denied.unwrap_or_default();
        if calls.len() <= self.sent_denials {
            return Ok(());
        }
        self.sent_denials = calls.len();
        self.send_frame(&ServerFrame::Denials { calls }).await
    }

    /// Sends the decisions on the agent's approvals, once per connection.
    async fn send_answers(&mut self) -> std::result::Result<(), SocketClosed> {
        let id = self.id;
        let answered = self.app.read(async move |tx| Ok(approvals::list_unconfirmed_answers(tx, id).await?)).await;
        for answer in answered.unwrap_or_default().iter().filter_map(approvals::ApprovalRow::answer) {
            if self.sent_answers.insert(answer.approval_id.clone()) {
                self.send_frame(&ServerFrame::Approval { answer }).await?;
            }
        }
        Ok(())
    }

    /// The inbox has available messages. A read is cheaper than a write transaction.
    async fn has_available_messages(&mut self) -> bool {
        let (id, session, steady) = (self.id, self.session, self.app.clock.steady_now());
        let waiting = self.app.read(async move |tx| {
            let row = sandboxes::find_sandbox(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
            Ok(!messages::list_leasable_messages(tx, session, row.status.turn_state(), steady, 1).await?.is_empty())
        });
        waiting.await.unwrap_or(false)
    }

    /// Leases a batch of the available messages and sends it.
    async fn lease_and_send(&mut self) -> std::result::Result<(), SocketClosed> {
        let (id, stream, boot) = (self.id, self.stream, self.boot);
        let request = LeaseRequest { stream, boot, max: LEASE_BATCH, wait_s: 0, renew: Vec::new() };
        let leased = self.app.write(async move |work| inbox::lease_messages(work, id, &request).await).await;
        let messages = match leased {
            Ok(answer) => answer.items,
            Err(problem) if problem.is_server_error() => Vec::new(),
            Err(_) => return Err(SocketClosed),
        };
        self.has_more_messages = messages.len() == LEASE_BATCH as usize;
        for message in messages {
            self.has_more_messages &= self.lease_pass.insert(message.id);
            self.send_frame(&ServerFrame::Message { message }).await?;
        }
        if !self.has_more_messages {
            self.lease_pass.clear();
        }
        Ok(())
    }

    async fn handle_frame(&mut self, text: &str) -> std::result::Result<(), SocketClosed> {
        let Ok(frame) = serde_json::from_str::<WorkerFrame>(text) else {
            tracing::debug!(sandbox = %self.id, "ignoring an unknown frame of a worker");
            return Ok(());
        };
        match frame {
            WorkerFrame::Renew { leases } => self.renew_leases(leases).await,
            WorkerFrame::Live { data, .. } => {
                self.publish_live(data).await;
                Ok(())
            }
            WorkerFrame::Pong { .. } | WorkerFrame::Unknown => Ok(()),
        }
    }

    async fn renew_leases(&mut self, renew: Vec<LeaseId>) -> std::result::Result<(), SocketClosed> {
        let renew: Vec<LeaseId> = renew.into_iter().take(bounds::MAX_LEASES_AT_ONCE).collect();
        let (id, stream, boot) = (self.id, self.stream, self.boot);
        let request = LeaseRequest { stream, boot, max: 0, wait_s: 0, renew };
        let renewed = self.app.write(async move |work| inbox::lease_messages(work, id, &request).await).await;
        let lost = renewed.map(|answer| answer.lost).unwrap_or_default();
        for lease in lost {
            let detail = "the lease has ended: another stream leased the message, or it is acknowledged".to_owned();
            self.send_frame(&ServerFrame::Refused { lease, code: "not_your_lease".into(), detail }).await?;
        }
        Ok(())
    }

    /// Publishes streamed text to live readers. It is not stored.
    async fn publish_live(&mut self, data: serde_json::Value) {
        let Some(after_seq) = self.newest_seq().await else { return };
        let text = encode_frame(&EventsFrame::Live { sandbox_id: self.id, after_seq, data });
        if text.len() <= bounds::MAX_EVENT_DATA_BYTES {
            let text = self.app.secrets.redactor(self.project).redact(&text).unwrap_or(text);
            self.app.hub.publish_live(self.id, text);
        }
    }

    /// The newest seq of the log; `None` without readers. A reader of all sandboxes opens a log at its first news, so
    /// that only the first text is followed by a read of the store.
    async fn newest_seq(&mut self) -> Option<i64> {
        if !self.app.hub.has_readers() {
            return None;
        }
        if let Some(seq) = self.app.hub.newest_seq(self.id) {
            return Some(seq);
        }
        let id = self.id;
        let row = self.app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await;
        Some(row.ok()??.last_seq)
    }

    async fn send_frame(&mut self, frame: &ServerFrame) -> std::result::Result<(), SocketClosed> {
        let text = serde_json::to_string(frame).map_err(|_| SocketClosed)?;
        match timeout(SEND_TIMEOUT, self.socket.send(Message::Text(text.into()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(SocketClosed),
        }
    }
}
