//! What the agent asks for: rules answer at once, or it waits for a person.

use super::Executor;
use super::rules::{self, Verdict};
use crate::driver::{Answer, Ask, AskKind};
use crate::input::Item;
use atoll_core::approval::{ApprovalAnswer, Decision};
use atoll_core::event::kind;
use atoll_core::json::raw;
use atoll_core::sandbox::Activity;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
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
    /// Tools that a person has allowed once and for all, in this sandbox.
    always: BTreeSet<String>,
}

#[derive(Debug)]
struct Open {
    approval_id: String,
    ask: Ask,
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
        match rules::verdict(&ask, &self.settings, &self.asking.always) {
            Verdict::Allow => self.answer(&ask.id, Answer::Allow { input: None, context: None }),
            Verdict::Person => self.ask_person(ask),
            Verdict::Deny => {
                let reason = format!("the tool {} is denied to you in this task", ask.tool);
                self.answer(&ask.id, Answer::Deny { reason });
            }
        }
    }

    fn ask_person(&mut self, ask: Ask) {
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
            "input": if input.len() <= SHOWN { ask.input.clone() } else { Value::String(clipped(&input)) },
            "sha256": hash(&input),
            "turn": turn,
        });
        self.outgoing.push(Item::Activity(Activity::WaitingApproval));
        self.emit(kind::APPROVAL_REQUESTED, turn, raw(&data));
        self.asking.open.push(Open { approval_id, ask, until: Instant::now() + LONGEST });
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
            self.asking.always.insert(open.ask.tool.clone());
        }
        self.resolve(open, answer);
    }

    fn resolve(&mut self, open: Open, answer: ApprovalAnswer) {
        self.answer(&open.ask.id, words(open.ask.kind, &answer));
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

fn clipped(text: &str) -> String {
    format!("{}…", &text[..text.floor_char_boundary(SHOWN)])
}

fn hash(text: &str) -> String {
    Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
