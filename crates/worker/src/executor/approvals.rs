//! Approvals: answers the agent's requests by the tool rules, or asks a person.

use super::approval_input::{ShownInput, hash_text, truncate_text, upload_input};
use super::tool_rules::{self, GrantedApprovals, GrantedCall, ToolVerdict};
use super::{Executor, call_denials, edit_diff};
use atoll_api::events::{ApprovalRequested, ApprovalResolved, EventData, GuardianChanged, GuardianDenied};
use atoll_core::approval::{ApprovalAnswer, ApprovalDecision};
use atoll_core::sandbox::Activity;
use atoll_dispatcher::program::input::Item;
use atoll_drivers::{AgentRequest, RequestAnswer, RequestKind, held_value_bytes};
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::Instant;
use uuid::Uuid;

/// Deny a request that has no answer after this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Size limit of an input in an event of the guardian.
const MAX_INPUT_BYTES: usize = 24 << 10;
/// Maximum number of requests that wait for a person.
const MAX_OPEN_APPROVALS: usize = 100;
/// Maximum memory of all of them.
const MAX_OPEN_BYTES: usize = 4 << 20;

#[derive(Debug, Default)]
pub(super) struct Approvals {
    open: Vec<OpenApproval>,
    granted: GrantedApprovals,
    /// Requests whose whole input is being uploaded.
    uploads: JoinSet<UploadedInput>,
    /// The agent has asked a person by itself, without a request to the executor.
    pub asked_natively: bool,
}

/// A request whose input is uploaded, or why it is not.
#[derive(Debug)]
pub(super) struct UploadedInput {
    event: ApprovalRequested,
    outcome: Result<(), String>,
}

#[derive(Debug)]
struct OpenApproval {
    approval_id: String,
    request: AgentRequest,
    /// The input that a rule substitutes.
    changed: Option<Value>,
    deadline: Instant,
}

impl Approvals {
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.deadline).min()
    }

    pub(super) async fn next_upload(&mut self) -> Option<UploadedInput> {
        match self.uploads.join_next().await {
            Some(uploaded) => uploaded.ok(),
            None => std::future::pending().await,
        }
    }

    fn take_first(&mut self, is_wanted: impl Fn(&OpenApproval) -> bool) -> Option<OpenApproval> {
        let at = self.open.iter().position(is_wanted)?;
        Some(self.open.remove(at))
    }

    /// True if one more request can wait for a person. The first one always can.
    fn has_room_for(&self, request: &AgentRequest) -> bool {
        let held: usize = self.open.iter().map(|open| held_bytes(&open.request)).sum();
        self.open.is_empty() || (self.open.len() < MAX_OPEN_APPROVALS && held + held_bytes(request) <= MAX_OPEN_BYTES)
    }
}

fn held_bytes(request: &AgentRequest) -> usize {
    let id = request.tool_use_id.as_ref().map_or(0, String::len);
    request.id.len() + id + request.tool.len() + held_value_bytes(&request.input)
}

impl Executor {
    pub(super) fn handle_approval_request(&mut self, request: AgentRequest) {
        if let Some(reason) = self.denials.check_call(&request) {
            return self.deny_request(&request, call_denials::GUARDIAN_RULE, reason);
        }
        let may_change = self.launch.driver.as_ref().is_some_and(|driver| driver.abilities().hooks);
        match tool_rules::decide_request(
            &request,
            &self.launch.settings,
            &self.workspace_path(),
            &self.approvals.granted,
            may_change,
        ) {
            ToolVerdict::Allow(input) => {
                if let Some(input) = &input {
                    self.report_changed_input(&request, input);
                }
                self.answer_agent(&request.id, RequestAnswer::Allow { input, context: None });
            }
            ToolVerdict::Person(_) if !self.approvals.has_room_for(&request) => {
                let reason = "too many requests of this agent wait for a person".to_owned();
                self.deny_request(&request, "open_approvals", reason);
            }
            ToolVerdict::Person(changed) => {
                if let Some(input) = &changed {
                    self.report_changed_input(&request, input);
                }
                // Show the person the input that will run.
                let input = changed.clone().unwrap_or_else(|| request.input.clone());
                self.request_approval(AgentRequest { input, ..request }, changed);
            }
            ToolVerdict::Deny { rule, reason } => self.deny_request(&request, &rule, reason),
        }
    }

    fn deny_request(&mut self, request: &AgentRequest, rule: &str, reason: String) {
        let agent_informed = self.launch.driver.as_ref().is_some_and(|driver| driver.relays_denial_reasons());
        self.emit_worker_event(&EventData::GuardianDenied(GuardianDenied {
            tool: request.tool.clone(),
            tool_use_id: request.tool_use_id.clone(),
            rule: rule.to_owned(),
            reason: reason.clone(),
            input: bounded_input(&request.input),
            agent_informed,
        }));
        self.answer_agent(&request.id, RequestAnswer::Deny { reason });
    }

    fn report_changed_input(&mut self, request: &AgentRequest, input: &Value) {
        self.emit_worker_event(&EventData::GuardianChanged(GuardianChanged {
            tool: request.tool.clone(),
            tool_use_id: request.tool_use_id.clone(),
            input: bounded_input(&request.input),
            changed: bounded_input(input),
        }));
    }

    /// True if the agent waits for a person.
    pub(super) fn is_waiting_for_person(&self) -> bool {
        !self.approvals.open.is_empty() || self.approvals.asked_natively
    }

    fn request_approval(&mut self, request: AgentRequest, changed: Option<Value>) {
        let approval_id = format!("apr_{}", Uuid::now_v7().simple());
        let kind = match request.kind {
            RequestKind::BeforeTool | RequestKind::Permission => "permission",
            RequestKind::Question => "question",
        };
        let shown = ShownInput::new(&request.input);
        self.outgoing.push(Item::Activity(Activity::WaitingApproval));
        let event = ApprovalRequested {
            approval_id: approval_id.clone(),
            kind: Some(kind.to_owned()),
            tool: Some(request.tool.clone()),
            tool_use_id: request.tool_use_id.clone(),
            input: Some(shown.input),
            input_truncated: shown.whole.is_some(),
            input_bytes: shown.whole.as_ref().map(|whole| whole.len() as u64),
            diff: edit_diff::describe_edit(&request.input),
            sha256: Some(shown.sha256.clone()),
            turn: self.current_turn(),
            text: None,
        };
        let server = self.tools.logins.as_ref().map(|logins| logins.server.clone());
        match (shown.whole, server) {
            (Some(whole), Some(server)) => {
                self.approvals.uploads.spawn(async move {
                    UploadedInput { event, outcome: upload_input(server, shown.sha256, whole).await }
                });
            }
            (_, _) => self.emit_event(&EventData::ApprovalRequested(event)),
        }
        self.approvals.open.push(OpenApproval {
            approval_id,
            request,
            changed,
            deadline: Instant::now() + ANSWER_TIMEOUT,
        });
    }

    /// Asks the person, now that the whole input is stored. Denies a request whose input no person can see.
    pub(super) fn handle_upload(&mut self, uploaded: Option<UploadedInput>) {
        let Some(UploadedInput { event, outcome }) = uploaded else { return };
        match outcome {
            Ok(()) if self.approvals.open.iter().any(|open| open.approval_id == event.approval_id) => {
                self.emit_event(&EventData::ApprovalRequested(event));
            }
            Ok(()) => {}
            Err(why) => {
                tracing::warn!(why, "failed to upload the input of a request");
                if let Some(open) = self.approvals.take_first(|open| open.approval_id == event.approval_id) {
                    let reason = Some("the input is too long to show, and the server did not store it".to_owned());
                    let (approval_id, decision) = (event.approval_id, ApprovalDecision::Deny);
                    self.resolve_approval(
                        open,
                        ApprovalAnswer { approval_id, decision, reason, sha256: None, answers: None },
                    );
                }
            }
        }
    }

    /// Handles a person's answer. One without an open approval is late, repeated, or for an agent that asked by itself.
    pub(super) fn handle_answer(&mut self, answer: ApprovalAnswer) {
        let Some(open) = self.approvals.take_first(|open| open.approval_id == answer.approval_id) else {
            let reply = to_request_answer(RequestKind::Permission, &answer);
            self.answer_agent(&answer.approval_id, reply);
            return;
        };
        let answer = bind_to_input(answer, &open.request.input);
        if answer.decision == ApprovalDecision::AllowAlways {
            self.approvals.granted.always.insert(open.request.tool.clone());
        }
        self.resolve_approval(open, answer);
    }

    fn resolve_approval(&mut self, open: OpenApproval, answer: ApprovalAnswer) {
        let reply = match to_request_answer(open.request.kind, &answer) {
            RequestAnswer::Allow { input, context } => RequestAnswer::Allow { input: open.changed.or(input), context },
            reply @ (RequestAnswer::Deny { .. } | RequestAnswer::Answers(_)) => reply,
        };
        if open.request.kind == RequestKind::BeforeTool && matches!(reply, RequestAnswer::Allow { .. }) {
            // `request.input` is the input that the person saw: a rule's change is part of it.
            let (tool_use_id, input) = (open.request.tool_use_id.clone(), open.request.input.clone());
            self.approvals.granted.call = Some(GrantedCall { tool_use_id, input });
        }
        self.answer_agent(&open.request.id, reply);
        self.emit_event(&EventData::ApprovalResolved(ApprovalResolved {
            approval_id: open.approval_id,
            decision: answer.decision,
            reason: answer.reason,
            tool: Some(open.request.tool),
            tool_use_id: open.request.tool_use_id,
        }));
        if self.approvals.open.is_empty() {
            self.outgoing.push(Item::Activity(Activity::Working));
        }
    }

    /// Denies requests that have no answer in time.
    pub(super) fn deny_expired(&mut self, now: Instant) {
        while let Some(open) = self.approvals.take_first(|open| open.deadline <= now) {
            let reason = Some("no answer in time".to_owned());
            let approval_id = open.approval_id.clone();
            self.resolve_approval(
                open,
                ApprovalAnswer { approval_id, decision: ApprovalDecision::Deny, reason, sha256: None, answers: None },
            );
        }
    }

    /// Resolves open approvals whose turn or agent has ended.
    pub(super) fn cancel_approvals(&mut self, why: &str) {
        while let Some(open) = self.approvals.take_first(|_| true) {
            let (approval_id, decision, reason) = (open.approval_id, ApprovalDecision::Deny, Some(why.to_owned()));
            let data = ApprovalResolved { approval_id, decision, reason, tool: None, tool_use_id: None };
            self.emit_event(&EventData::ApprovalResolved(data));
        }
    }

    fn answer_agent(&mut self, request: &str, answer: RequestAnswer) {
        if let (Some(driver), Some(agent)) = (&mut self.launch.driver, &mut self.agent.process) {
            agent.write_line(&driver.answer_request(request, answer));
        }
    }
}

/// Turns an answer for another input into a denial. A server that names no hash is older than this worker.
fn bind_to_input(answer: ApprovalAnswer, input: &Value) -> ApprovalAnswer {
    match &answer.sha256 {
        Some(named) if *named != hash_text(&input.to_string()) => ApprovalAnswer {
            decision: ApprovalDecision::Deny,
            reason: Some("the answer was for another input".to_owned()),
            answers: None,
            ..answer
        },
        Some(_) | None => answer,
    }
}

fn to_request_answer(kind: RequestKind, answer: &ApprovalAnswer) -> RequestAnswer {
    let reason = answer.reason.clone();
    match answer.decision {
        ApprovalDecision::Allow | ApprovalDecision::AllowAlways => match (kind, &answer.answers) {
            (RequestKind::Question, Some(answers)) => RequestAnswer::Answers(Value::Object(answers.clone())),
            (RequestKind::Question | RequestKind::Permission | RequestKind::BeforeTool, _) => {
                RequestAnswer::Allow { input: None, context: reason }
            }
        },
        ApprovalDecision::Deny => {
            RequestAnswer::Deny { reason: reason.unwrap_or_else(|| "a person denied it".to_owned()) }
        }
    }
}

/// Bounds an input for an event.
fn bounded_input(input: &Value) -> Value {
    let text = input.to_string();
    if text.len() <= MAX_INPUT_BYTES { input.clone() } else { Value::String(truncate_text(&text, MAX_INPUT_BYTES)) }
}
