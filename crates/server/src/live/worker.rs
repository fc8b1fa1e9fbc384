//! The WebSocket of a worker: messages go down as leases, receipts come up.

use super::Upgrade;
use crate::app::{heartbeat, inbox, limits};
use crate::auth::{Caller, LinkedWorker};
use crate::extract::{Id, Params};
use crate::follow::LOOK_AGAIN;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::{LeaseId, MessageId, ProjectId, SandboxId, SessionId};
use atoll_core::limit::Limit;
use atoll_core::sandbox::AgentLimits;
use atoll_protocol::frame::{Command, ServerFrame, WorkerFrame};
use atoll_protocol::{Ack, Heartbeat, LeaseRequest, Nack};
use atoll_store::{approvals, messages, sandboxes};
use axum::Extension;
use axum::extract::State;
use axum::extract::ws::{Message, WebSocket};
use axum::response::Response;
use serde::Deserialize;
use serde_json::json;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, timeout};
use uuid::Uuid;

const PING: Duration = Duration::from_secs(20);
const STUCK: Duration = Duration::from_secs(30);
/// How many messages one look into the inbox hands out.
const AT_ONCE: u32 = 16;

#[derive(Debug, Deserialize, utoipa::IntoParams)]
#[into_params(parameter_in = Query)]
pub struct StreamQuery {
    #[param(value_type = String, format = "uuid")]
    stream: Uuid,
    boot: Option<i64>,
}

/// The worker's own stream: messages as leases, receipts back.
#[utoipa::path(get, path = "/sandboxes/{id}/stream", tag = "worker", params(("id" = SandboxId, Path), StreamQuery),
    responses((status = 101, description = "A WebSocket")))]
pub async fn open(
    State(app): State<Arc<App>>,
    caller: Caller,
    Id(id): Id<SandboxId>,
    Params(query): Params<StreamQuery>,
    linked: Option<Extension<LinkedWorker>>,
    Upgrade(upgrade): Upgrade,
) -> Result<Response> {
    caller.must_be_worker_of(id)?;
    // Registers the stream, so that a refusal is an HTTP answer; it also finds the session.
    let request = LeaseRequest { stream: query.stream, boot: query.boot, max: 0, wait_s: 0, renew: Vec::new() };
    let session = app
        .write(move |work| {
            Box::pin(async move {
                inbox::lease(work, id, &request).await?;
                Ok(work.locked(id).await?.0)
            })
        })
        .await?;
    let upgrade = upgrade.max_message_size(bounds::MB).max_frame_size(bounds::MB).read_buffer_size(4096);
    Ok(upgrade.on_upgrade(move |socket| async move {
        metrics::gauge!(crate::metrics::WORKERS).increment(1.0);
        let mut connection = Connection {
            app,
            id,
            session: session.id,
            project: session.project_id,
            stream: query.stream,
            boot: query.boot,
            socket,
            asked: 0,
            limits: None,
            answers: HashSet::new(),
            pings: linked.is_none(),
        };
        drop(connection.serve().await);
        metrics::gauge!(crate::metrics::WORKERS).decrement(1.0);
    }))
}

struct Connection {
    app: Arc<App>,
    id: SandboxId,
    session: SessionId,
    project: ProjectId,
    stream: Uuid,
    boot: Option<i64>,
    socket: WebSocket,
    asked: u64,
    /// What this connection has said of limits.
    limits: Option<(AgentLimits, bool)>,
    /// Approvals whose answer this connection has carried.
    answers: HashSet<String>,
    /// On the same machine the kernel says when the other end is gone: an idle worker is left to sleep.
    pings: bool,
}

/// Why the connection ends: the worker is gone, or has no say any more; it comes back or it stops.
struct Over;

impl Connection {
    async fn serve(&mut self) -> std::result::Result<(), Over> {
        let mut inboxes = self.app.hub.inboxes();
        let mut states = self.app.hub.states();
        let mut stopping = self.app.stopping.clone();
        let mut ping = tokio::time::interval_at(Instant::now() + PING, PING);
        let mut look = tokio::time::interval(LOOK_AGAIN);
        self.say_again().await?;
        loop {
            tokio::select! {
                changed = inboxes.recv() => match changed {
                    Ok(session) if session != self.session => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => {
                        self.hand_out().await?;
                        self.tell_answers().await?;
                    }
                    Err(RecvError::Closed) => return Ok(()),
                },
                changed = states.recv() => match changed {
                    Ok((id, state)) if id == self.id && !state.takes_messages() => {
                        self.asked += 1;
                        let command = ServerFrame::Command { id: self.asked, command: Command::Stop { state } };
                        self.send(&command).await?;
                    }
                    Ok((id, _)) if id != self.id => {}
                    Ok(_) | Err(RecvError::Lagged(_)) => self.tell_limits().await?,
                    Err(RecvError::Closed) => return Ok(()),
                },
                frame = self.socket.recv() => match frame {
                    Some(Ok(Message::Text(text))) => self.take(&text).await?,
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                    Some(Ok(Message::Binary(_) | Message::Close(_)) | Err(_)) | None => return Ok(()),
                },
                _ = ping.tick(), if self.pings => {
                    self.asked += 1;
                    self.send(&ServerFrame::Ping { id: self.asked }).await?;
                }
                // The first tick is at once; later ones find what a lost wake-up or an expired lease left.
                _ = look.tick() => if self.is_waiting().await {
                    self.hand_out().await?;
                },
                _ = stopping.changed() => return Ok(()),
            }
        }
    }

    /// Sends what this worker holds already: what was under way when an earlier connection broke
    /// would else come only when its lease has run out.
    async fn say_again(&mut self) -> std::result::Result<(), Over> {
        let (session, stream) = (self.session, self.stream);
        let held = self.app.read(move |tx| Box::pin(async move { inbox::held(tx, session, stream).await })).await;
        for message in held.unwrap_or_default() {
            self.send(&ServerFrame::Message { message }).await?;
        }
        self.tell_limits().await?;
        self.tell_answers().await
    }

    /// How much the agent may use, whenever that is news on this connection.
    async fn tell_limits(&mut self) -> std::result::Result<(), Over> {
        let id = self.id;
        let row = self.app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, id).await?) })).await;
        let Ok(Some(row)) = row else { return Ok(()) };
        let told = (row.settings.limits.unwrap_or_default(), row.limit_paused.is_some_and(Limit::is_money));
        // Whoever never had any need not hear that. With the gateway a worker may stand still for its project's budget,
        // which was raised while it was not connected.
        let had_none = !heartbeat::has_gateway(row.provider)
            && row.settings.limits.is_none()
            && self.limits.is_none()
            && told == (AgentLimits::default(), false);
        if had_none || self.limits.replace(told) == Some(told) {
            return Ok(());
        }
        self.send(&limits::frame(&row)).await
    }

    /// What people said about what the agent asked, once on each connection.
    async fn tell_answers(&mut self) -> std::result::Result<(), Over> {
        let id = self.id;
        let answered = self.app.read(move |tx| Box::pin(async move { Ok(approvals::answered(tx, id).await?) })).await;
        for answer in answered.unwrap_or_default().iter().filter_map(approvals::Approval::answer) {
            if self.answers.insert(answer.approval_id.clone()) {
                self.send(&ServerFrame::Approval { answer }).await?;
            }
        }
        Ok(())
    }

    /// Whether a look into the inbox would find something: reading is cheaper than a transaction.
    async fn is_waiting(&mut self) -> bool {
        let (id, session, steady) = (self.id, self.session, self.app.clock.steady());
        let waiting = self.app.read(move |tx| {
            Box::pin(async move {
                let row = sandboxes::get(tx, id).await?.ok_or_else(|| Problem::not_found("sandbox"))?;
                Ok(!messages::available(tx, session, row.turn_state, steady, 1).await?.is_empty())
            })
        });
        waiting.await.unwrap_or(false)
    }

    /// Leases what is waiting and sends it.
    async fn hand_out(&mut self) -> std::result::Result<(), Over> {
        let (id, stream, boot) = (self.id, self.stream, self.boot);
        loop {
            let request = LeaseRequest { stream, boot, max: AT_ONCE, wait_s: 0, renew: Vec::new() };
            let leased =
                self.app.write(move |work| Box::pin(async move { inbox::lease(work, id, &request).await })).await;
            match leased {
                Ok(answer) if answer.items.is_empty() => return Ok(()),
                Ok(answer) => {
                    let whole = answer.items.len() < AT_ONCE as usize;
                    for message in answer.items {
                        self.send(&ServerFrame::Message { message }).await?;
                    }
                    if whole {
                        return Ok(());
                    }
                }
                Err(problem) if problem.code.status().is_server_error() => return Ok(()),
                Err(_) => return Err(Over),
            }
        }
    }

    async fn take(&mut self, text: &str) -> std::result::Result<(), Over> {
        let Ok(frame) = serde_json::from_str::<WorkerFrame>(text) else {
            tracing::debug!(sandbox = %self.id, "a worker's frame was not understood");
            return Ok(());
        };
        match frame {
            WorkerFrame::Renew { leases } => self.renew(leases).await,
            WorkerFrame::Ack { id, ack } => self.ack(id, ack).await,
            WorkerFrame::Nack { id, nack } => self.nack(id, nack).await,
            WorkerFrame::Heartbeat { heartbeat, quiet } => self.heartbeat(heartbeat, quiet).await,
            WorkerFrame::Live { data, .. } => {
                self.live(&data);
                Ok(())
            }
            WorkerFrame::Pong { .. } | WorkerFrame::Unknown => Ok(()),
        }
    }

    async fn renew(&mut self, renew: Vec<LeaseId>) -> std::result::Result<(), Over> {
        let renew: Vec<LeaseId> = renew.into_iter().take(bounds::LEASES_AT_ONCE).collect();
        let (id, stream, boot) = (self.id, self.stream, self.boot);
        let request = LeaseRequest { stream, boot, max: 0, wait_s: 0, renew };
        let renewed = self.app.write(move |work| Box::pin(async move { inbox::lease(work, id, &request).await })).await;
        let lost = renewed.map(|answer| answer.lost).unwrap_or_default();
        for lease in lost {
            let detail = "the lease is over: somebody else has the message, or it is done".to_owned();
            self.send(&ServerFrame::Refused { id: None, lease, code: "not_your_lease".into(), detail }).await?;
        }
        Ok(())
    }

    async fn ack(&mut self, message: MessageId, ack: Ack) -> std::result::Result<(), Over> {
        let id = self.id;
        let done = self.app.write(move |work| Box::pin(async move { inbox::ack(work, id, message, &ack).await })).await;
        self.settle(message, ack.lease, done).await
    }

    async fn nack(&mut self, message: MessageId, nack: Nack) -> std::result::Result<(), Over> {
        let (id, lease) = (self.id, nack.lease);
        let done =
            self.app.write(move |work| Box::pin(async move { inbox::nack(work, id, message, &nack).await })).await;
        self.settle(message, lease, done).await
    }

    async fn settle(&mut self, id: MessageId, lease: LeaseId, done: Result<()>) -> std::result::Result<(), Over> {
        let frame = match done {
            Ok(()) => ServerFrame::Settled { id, lease },
            Err(Problem { code, detail, .. }) => {
                ServerFrame::Refused { id: Some(id), lease, code: code.as_str().to_owned(), detail }
            }
        };
        self.send(&frame).await
    }

    async fn heartbeat(&mut self, beat: Heartbeat, quiet: bool) -> std::result::Result<(), Over> {
        let id = self.id;
        let answer =
            self.app.write(move |work| Box::pin(async move { heartbeat::heartbeat(work, id, &beat).await })).await;
        match answer {
            Ok(answer) if quiet && answer.start.is_none() && answer.state.takes_messages() => Ok(()),
            Ok(answer) => self.send(&ServerFrame::Heartbeat { answer: Box::new(answer) }).await,
            Err(problem) if problem.code.status().is_server_error() => Ok(()),
            Err(_) => Err(Over),
        }
    }

    /// Text as it is being written: to whoever is watching, to no log.
    fn live(&self, data: &serde_json::Value) {
        let Some(after_seq) = self.app.hub.newest(self.id) else { return };
        let frame = json!({ "type": "live", "sandbox_id": self.id, "after_seq": after_seq, "data": data });
        let text = frame.to_string();
        if text.len() <= bounds::EVENT_DATA {
            let text = self.app.secrets.redactor(self.project).redact(&text).unwrap_or(text);
            self.app.hub.live(self.id, text);
        }
    }

    async fn send(&mut self, frame: &ServerFrame) -> std::result::Result<(), Over> {
        let text = serde_json::to_string(frame).map_err(|_| Over)?;
        match timeout(STUCK, self.socket.send(Message::Text(text.into()))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Over),
        }
    }
}
