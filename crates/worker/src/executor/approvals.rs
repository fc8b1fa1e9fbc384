//! Approvals: answers the agent's requests by the tool rules, or asks a person.

use super::Executor;
use super::tool_rules::{self, GrantedApprovals, ToolVerdict};
use atoll_api::events::{ApprovalRequested, ApprovalResolved, EventData, GuardianChanged, GuardianDenied};
use atoll_core::approval::{ApprovalAnswer, ApprovalDecision};
use atoll_core::sandbox::Activity;
use atoll_dispatcher::program::input::Item;
use atoll_drivers::{AgentRequest, RequestAnswer, RequestKind, held_value_bytes};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Deny a request that has no answer after this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// Size limit of an input in an event.
const MAX_INPUT_BYTES: usize = 48 << 10;
/// Maximum number of requests that wait for a person.
const MAX_OPEN_APPROVALS: usize = 100;
/// Maximum memory of all of them.
const MAX_OPEN_BYTES: usize = 4 << 20;

#[derive(Debug, Default)]
pub(super) struct Approvals {
    open: Vec<OpenApproval>,
    granted: GrantedApprovals,
    /// The agent has asked a person by itself, without a request to the executor.
    pub asked_natively: bool,
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
        self.guard_request(&request, Instant::now());
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
        self.outgoing.push(Item::Activity(Activity::WaitingApproval));
        self.emit_event(&EventData::ApprovalRequested(ApprovalRequested {
            approval_id: approval_id.clone(),
            kind: Some(kind.to_owned()),
            tool: Some(request.tool.clone()),
            tool_use_id: request.tool_use_id.clone(),
            input: Some(bounded_input(&request.input)),
            sha256: Some(sha256_hex(&request.input.to_string())),
            turn: self.current_turn(),
            text: None,
        }));
        self.approvals.open.push(OpenApproval {
            approval_id,
            request,
            changed,
            deadline: Instant::now() + ANSWER_TIMEOUT,
        });
    }

    /// Handles a person's answer. One without an open approval is late, repeated, or for an agent that asked by itself.
    pub(super) fn handle_answer(&mut self, answer: ApprovalAnswer) {
        let Some(open) = self.approvals.take_first(|open| open.approval_id == answer.approval_id) else {
            let reply = to_request_answer(RequestKind::Permission, &answer);
            self.answer_agent(&answer.approval_id, reply);
            return;
        };
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
            self.approvals.granted.call.clone_from(&open.request.tool_use_id);
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
                ApprovalAnswer { approval_id, decision: ApprovalDecision::Deny, reason, answers: None },
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
    if text.len() <= MAX_INPUT_BYTES / 2 { input.clone() } else { Value::String(truncate_text(&text)) }
}

fn truncate_text(text: &str) -> String {
    format!("{}…", &text[..text.floor_char_boundary(MAX_INPUT_BYTES / 2)])
}

fn sha256_hex(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
