//! What the agent asks for: rules answer at once, or it waits for a person.

use super::Executor;
use super::rules::{self, Agreed, Verdict};
use crate::driver::{Answer, Ask, AskKind};
use crate::input::Item;
use atoll_core::approval::{ApprovalAnswer, Decision};
use atoll_core::event::{Source, kind};
use atoll_core::json::raw;
use atoll_core::sandbox::Activity;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::time::Duration;
use tokio::time::Instant;
use uuid::Uuid;

/// Nobody answers for so long: it is denied, never allowed.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// How much of the input is shown.
const SHOWN: usize = 48 << 10;

#[derive(Debug, Default)]
pub(super) struct Asking {
    open: Vec<Open>,
    agreed: Agreed,
}

#[derive(Debug)]
struct Open {
    approval_id: String,
    ask: Ask,
    /// What a rule puts in place of the agent's input.
    changed: Option<Value>,
    until: Instant,
}

impl Asking {
    pub(super) fn until(&self) -> Option<Instant> {
        self.open.iter().map(|open| open.until).min()
    }

    fn take(&mut self, fits: impl Fn(&Open) -> bool) -> Option<Open> {
        let at = self.open.iter().position(fits)?;
        Some(self.open.remove(at))
    }
}

impl Executor {
    pub(super) fn asked(&mut self, ask: Ask) {
        self.watch_ask(&ask, Instant::now());
        let may_change = self.driver.as_ref().is_some_and(|driver| driver.abilities().hooks);
        match rules::verdict(&ask, &self.settings, &self.workspace(), &self.asking.agreed, may_change) {
            Verdict::Allow(input) => {
                if let Some(input) = &input {
                    self.tell_change(&ask, input);
                }
                self.answer(&ask.id, Answer::Allow { input, context: None });
            }
            Verdict::Person(changed) => {
                if let Some(input) = &changed {
                    self.tell_change(&ask, input);
                }
                // What a person sees is what then runs.
                let input = changed.clone().unwrap_or_else(|| ask.input.clone());
                self.ask_person(Ask { input, ..ask }, changed);
            }
            Verdict::Deny { rule, reason } => self.deny(&ask, &rule, reason),
        }
    }

    fn deny(&mut self, ask: &Ask, rule: &str, reason: String) {
        let told = self.driver.as_ref().is_some_and(|driver| driver.tells_reasons());
        let data = json!({
            "tool": ask.tool, "tool_use_id": ask.tool_use_id, "rule": rule, "reason": reason,
            "input": shown(&ask.input), "told": told,
        });
        let turn = self.turn();
        self.emit_by(Source::Worker, kind::GUARDIAN_DENIED, turn, raw(&data));
        self.answer(&ask.id, Answer::Deny { reason });
    }

    fn tell_change(&mut self, ask: &Ask, input: &Value) {
        let data = json!({
            "tool": ask.tool, "tool_use_id": ask.tool_use_id, "input": shown(&ask.input), "changed": shown(input),
        });
        let turn = self.turn();
        self.emit_by(Source::Worker, kind::GUARDIAN_CHANGED, turn, raw(&data));
    }

    /// Whether it is a person's turn, not the agent's.
    pub(super) fn waits_for_person(&self) -> bool {
        !self.asking.open.is_empty() || self.asks_by_itself
    }

    fn ask_person(&mut self, ask: Ask, changed: Option<Value>) {
        let turn = self.turn();
        let approval_id = format!("apr_{}", Uuid::now_v7().simple());
        let input = ask.input.to_string();
        let data = json!({
            "approval_id": approval_id,
            "kind": match ask.kind {
                AskKind::BeforeTool | AskKind::Permission => "permission",
                AskKind::Question => "question",
            },
            "tool": ask.tool,
            "tool_use_id": ask.tool_use_id,
            "input": shown(&ask.input),
            "sha256": hash(&input),
            "turn": turn,
        });
        self.outgoing.push(Item::Activity(Activity::WaitingApproval));
        self.emit(kind::APPROVAL_REQUESTED, turn, raw(&data));
        self.asking.open.push(Open { approval_id, ask, changed, until: Instant::now() + LONGEST });
    }

    /// A person's word. One about something that is not asked here comes too late, or twice, or is for an agent that
    /// asks by itself.
    pub(super) fn answered(&mut self, answer: ApprovalAnswer) {
        let Some(open) = self.asking.take(|open| open.approval_id == answer.approval_id) else {
            let words = words(AskKind::Permission, &answer);
            self.answer(&answer.approval_id, words);
            return;
        };
        if answer.decision == Decision::AllowAlways {
            self.asking.agreed.always.insert(open.ask.tool.clone());
        }
        self.resolve(open, answer);
    }

    fn resolve(&mut self, open: Open, answer: ApprovalAnswer) {
        let words = match words(open.ask.kind, &answer) {
            Answer::Allow { input, context } => Answer::Allow { input: open.changed.or(input), context },
            words @ (Answer::Deny { .. } | Answer::Words(_)) => words,
        };
        if open.ask.kind == AskKind::BeforeTool && matches!(words, Answer::Allow { .. }) {
            self.asking.agreed.call.clone_from(&open.ask.tool_use_id);
        }
        self.answer(&open.ask.id, words);
        let turn = self.turn();
        let data = json!({
            "approval_id": open.approval_id,
            "decision": answer.decision,
            "reason": answer.reason,
            "tool": open.ask.tool,
            "tool_use_id": open.ask.tool_use_id,
        });
        self.emit(kind::APPROVAL_RESOLVED, turn, raw(&data));
        if self.asking.open.is_empty() {
            self.outgoing.push(Item::Activity(Activity::Working));
        }
    }

    /// What nobody answered in time is denied.
    pub(super) fn deny_late(&mut self, now: Instant) {
        while let Some(open) = self.asking.take(|open| open.until <= now) {
            let reason = Some("nobody answered in time".to_owned());
            let approval_id = open.approval_id.clone();
            self.resolve(open, ApprovalAnswer { approval_id, decision: Decision::Deny, reason, answers: None });
        }
    }

    /// The turn is over, or the agent is gone: nobody waits for an answer any more.
    pub(super) fn forget_questions(&mut self, why: &str) {
        while let Some(open) = self.asking.take(|_| true) {
            let data = json!({"approval_id": open.approval_id, "decision": Decision::Deny, "reason": why});
            let turn = self.turn();
            self.emit(kind::APPROVAL_RESOLVED, turn, raw(&data));
        }
    }

    fn answer(&mut self, ask: &str, answer: Answer) {
        if let (Some(driver), Some(agent)) = (&mut self.driver, &mut self.agent) {
            agent.tell(&driver.answer(ask, answer));
        }
    }
}

fn words(kind: AskKind, answer: &ApprovalAnswer) -> Answer {
    let reason = answer.reason.clone();
    match answer.decision {
        Decision::Allow | Decision::AllowAlways => match (kind, &answer.answers) {
            (AskKind::Question, Some(answers)) => Answer::Words(Value::Object(answers.clone())),
            (AskKind::Question | AskKind::Permission | AskKind::BeforeTool, _) => {
                Answer::Allow { input: None, context: reason }
            }
        },
        Decision::Deny => Answer::Deny { reason: reason.unwrap_or_else(|| "a person said no".to_owned()) },
    }
}

/// As much of an input as an event holds of one.
fn shown(input: &Value) -> Value {
    let text = input.to_string();
    if text.len() <= SHOWN / 2 { input.clone() } else { Value::String(clipped(&text)) }
}

fn clipped(text: &str) -> String {
    format!("{}…", &text[..text.floor_char_boundary(SHOWN / 2)])
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
