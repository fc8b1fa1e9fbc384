//! Sentences for events that neither the run view nor the readable log shows in a form of its own. Pure.

use super::branch_workflow_fact::describe_workflow_event;
use super::health_fact::describe_health_event;
use super::plain_value::describe_value;
use super::task_fact::describe_task_event;
use super::tool_input::describe_input;
use super::{approval, time};
use crate::event_log::log_event::LogEvent;
use atoll_api::events::{
    AgentPlan, EventData, GuardianDenied, GuardianDetected, GuardianFollowedUp, LimitChanged, LimitUse, NetworkChanged,
    ProtectedPaths, ServiceExited, ServiceStarted, SettingsIgnored,
};
use atoll_core::guardian::{GuardianAction, InterventionOutcome};
use atoll_core::limit::Limit;
use atoll_core::sandbox::AgentLimits;
use atoll_core::size::format_bytes;
use serde_json::Value;

/// A sentence and further text, not escaped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fact {
    pub head: String,
    pub body: String,
    /// The user may have to act.
    pub is_warning: bool,
}

impl Fact {
    pub(super) fn note(head: impl Into<String>) -> Self {
        Self { head: head.into(), ..Self::default() }
    }

    pub(super) fn warning(head: impl Into<String>) -> Self {
        Self { is_warning: true, ..Self::note(head) }
    }

    pub(super) fn with_body(self, body: impl Into<String>) -> Self {
        Self { body: body.into(), ..self }
    }
}

/// The sentence of an event; `None` if the event needs none.
pub fn describe_fact(event: &LogEvent) -> Option<Fact> {
    let actor = event.event.actor.as_deref().unwrap_or("the server");
    Some(match &event.data {
        EventData::AgentRateLimited(wait) => {
            let until = wait.until.map(|until| format!(" until {}", time::format_time(until))).unwrap_or_default();
            Fact::warning(format!("the model's rate limit delays the agent{until}"))
        }
        EventData::AgentPlan(plan) => describe_plan(plan),
        EventData::AgentSubagentInvoked(call) => {
            let (name, task) = (describe_value(&call.subagent), describe_value(&call.description));
            let name = if name.is_empty() { name } else { format!(" {name}") };
            Fact::note(join_detail(&format!("the agent starts the subagent{name}"), &task))
        }
        EventData::AgentSkillInvoked(call) => {
            Fact::note(format!("the agent uses the skill {}", describe_value(&call.skill)))
        }
        EventData::AgentSubagentCompleted(done) if done.is_error => {
            Fact::warning("the subagent failed").with_body(done.output.as_str())
        }
        EventData::AgentSubagentCompleted(done) => Fact::note("the subagent is done").with_body(done.output.as_str()),
        EventData::AgentSkillCompleted(done) if done.is_error => {
            Fact::warning("the skill failed").with_body(done.output.as_str())
        }
        EventData::AgentSkillCompleted(done) => Fact::note("the skill is done").with_body(done.output.as_str()),
        EventData::AgentSettingsIgnored(ignored) => describe_ignored_settings(ignored),
        EventData::AgentTranscriptFailed(failure) => {
            Fact::warning(format!("saving the agent's transcript failed: {}", failure.error))
        }
        EventData::AgentUnparsed(line) => {
            let size = format_bytes(line.bytes);
            Fact::warning(format!("a line of the agent's output was not understood ({size}): {}", line.reason))
        }
        EventData::ApprovalAnswered(answered) => Fact::note(approval::describe_answer(answered)),
        EventData::NetworkChanged(change) => describe_network(actor, change),
        EventData::NetworkRefused(refusal) => Fact::warning(with_count(&refusal.detail, refusal.count)),
        EventData::ModelRefused(refusal) => Fact::warning(with_count(&refusal.detail, refusal.count)),
        EventData::LimitWarned(used) => Fact::warning(format!("the agent has used {}", describe_use(used))),
        EventData::LimitPaused(paused) => Fact::warning(describe_pause(paused, &event.event.sandbox_id.to_string())),
        EventData::LimitResumed(_) => Fact::note("the agent continues"),
        EventData::LimitChanged(change) => describe_limits(actor, change),
        EventData::GuardianDenied(denial) => describe_denial(denial),
        EventData::GuardianChanged(change) => Fact::note(format!(
            "a rule changed a call of {}: {} → {}",
            change.tool,
            describe_input(&change.input),
            describe_input(&change.changed)
        )),
        EventData::GuardianDetected(finding) => describe_finding(finding),
        EventData::GuardianNudged(nudge) => Fact::note(format!("the guardian advises the agent: {}", nudge.text)),
        EventData::GuardianIntervened(intervened) => {
            Fact::warning(format!("{} ({})", describe_intervention(intervened.action), intervened.summary))
        }
        EventData::GuardianEscalated(escalated) => {
            Fact::warning(format!("the guardian asks for a person: {}", escalated.summary))
        }
        EventData::GuardianFollowedUp(follow_up) => Fact::note(describe_follow_up(follow_up)),
        EventData::GuardianJudged(judged) => Fact::note(format!(
            "the judge: alignment {:.2}, {}: {}",
            judged.report.alignment, judged.report.phase, judged.report.activity
        )),
        EventData::GuardianProtectedPath(paths) => describe_protected(paths),
        EventData::FilesWritten(files) => {
            let entries = match files.entries {
                None => String::new(),
                Some(1) => "1 entry, ".to_owned(),
                Some(count) => format!("{count} entries, "),
            };
            Fact::note(format!("{actor} wrote {} ({entries}{})", files.path, format_bytes(files.bytes)))
        }
        EventData::FilesMade(file) => Fact::note(format!("{actor} created the directory {}", file.path)),
        EventData::FilesMoved(file) => Fact::note(format!("{actor} moved {} to {}", file.from, file.to)),
        EventData::FilesDeleted(file) => Fact::note(format!("{actor} deleted {}", file.path)),
        EventData::PreviewPortOpened(open) => {
            let program = open.program.as_deref().unwrap_or("a program");
            Fact::note(format!("{program} listens on port {}", open.port))
        }
        EventData::PreviewPortClosed(closed) => Fact::note(format!("port {} is closed", closed.port)),
        EventData::PreviewCreated(link) => Fact::note(format!("{actor} created a link to port {}", link.port)),
        EventData::PreviewRevoked(link) => Fact::note(format!("{actor} revoked a link to port {}", link.port)),
        EventData::SecretsExposed(exposed) => Fact::warning(exposed.text.as_str()),
        EventData::ServiceStarted(started) => describe_service_start(started),
        EventData::ServiceReady(ready) => {
            Fact::note(format!("service {} is ready after {} s", ready.name, ready.seconds))
        }
        EventData::ServiceExited(exited) => {
            let ServiceExited { name, detail, restart_s, tail, .. } = exited;
            Fact::warning(format!("service {name} {detail}; it starts again in {restart_s} s")).with_body(tail.as_str())
        }
        EventData::ServiceStopped(stopped) => Fact::note(format!("service {} was stopped", stopped.name)),
        EventData::ServiceFailed(failed) => {
            Fact::warning(format!("service {} failed: {}", failed.name, failed.detail)).with_body(failed.tail.as_str())
        }
        EventData::SessionForked(fork) => Fact::note(format!("the session was forked as {}", fork.fork)),
        EventData::WorkerLost(loss) => {
            Fact::warning(join_detail("events of the worker are lost", loss.detail.as_deref().unwrap_or_default()))
        }
        EventData::WorkerRejected(rejection) => {
            Fact::warning(join_detail("the server rejected an event of the worker", &rejection.detail))
        }
        EventData::Unknown { event_type, data } => describe_unknown(event, event_type, data.get()),
        data => {
            return describe_workflow_event(data)
                .or_else(|| describe_task_event(data))
                .or_else(|| describe_health_event(data));
        }
    })
}

/// An event of another program: the words of its type, and its text or its fields.
fn describe_unknown(event: &LogEvent, event_type: &str, data: &str) -> Fact {
    let words = event_type.replace(['.', '_'], " ");
    let detail = event.text().unwrap_or_else(|| {
        let data: Value = serde_json::from_str(data).unwrap_or_default();
        describe_value(&data)
    });
    Fact::note(join_detail(&words, &detail))
}

fn join_detail(head: &str, detail: &str) -> String {
    if detail.is_empty() { head.to_owned() } else { format!("{head}: {detail}") }
}

fn with_count(detail: &str, count: u64) -> String {
    if count > 1 { format!("{detail} ({count} times)") } else { detail.to_owned() }
}

fn describe_plan(plan: &AgentPlan) -> Fact {
    let step = |item: &Value| {
        let mark = match item.get("state").and_then(Value::as_str) {
            Some("completed" | "done") => "[x]",
            Some("in_progress") => "[>]",
            _ => "[ ]",
        };
        let text = item.get("text").and_then(Value::as_str).map_or_else(|| describe_value(item), str::to_owned);
        format!("{mark} {text}")
    };
    let steps = match &plan.items {
        Value::Array(items) => items.iter().map(step).collect::<Vec<_>>().join("\n"),
        items => describe_value(items),
    };
    Fact::note(if plan.adds { "the agent adds to its plan:" } else { "the agent's plan:" }).with_body(steps)
}

fn describe_ignored_settings(ignored: &SettingsIgnored) -> Fact {
    let settings = ignored.settings.iter().map(|setting| format!("{} ({})", setting.setting, setting.reason));
    let settings: Vec<_> = settings.collect();
    Fact::warning(format!("the agent does not follow these settings: {}", settings.join(", ")))
}

fn describe_network(actor: &str, change: &NetworkChanged) -> Fact {
    let hosts = if change.allow.is_empty() { String::new() } else { format!(": {}", change.allow.join(", ")) };
    Fact::note(format!("{actor} changed the network policy to {}{hosts}", change.policy))
}

fn describe_use(used: &LimitUse) -> String {
    let (part, whole) = (used.used, used.value);
    match used.limit {
        Limit::Turns => format!("{part} of {whole} turns"),
        Limit::CostUsd => format!("${part:.2} of its limit of ${whole:.2}"),
        Limit::TurnS => format!("{part:.0} of {whole:.0} seconds of this turn"),
        Limit::NoProgressS => format!("{part:.0} of {whole:.0} seconds without progress"),
        Limit::ProjectBudget => format!("${part:.2} of its project's budget of ${whole:.2}"),
    }
}

/// A limit that paused the agent, and how to raise it.
fn describe_pause(paused: &LimitUse, sandbox: &str) -> String {
    let limit = match paused.limit {
        Limit::ProjectBudget => {
            let until = paused.until.map(|until| format!(", or wait until {}", time::format_time(until)));
            let until = until.unwrap_or_default();
            let project = paused.project_id.map(|id| format!(" {id}")).unwrap_or_default();
            return format!(
                "the agent is paused at its project's budget; raise it with `atoll project budget{project} DOLLARS`{until}"
            );
        }
        Limit::Turns => format!("{} turns", paused.value),
        Limit::CostUsd => format!("${:.2}", paused.value),
        Limit::TurnS => format!("{:.0} seconds per turn", paused.value),
        Limit::NoProgressS => format!("{:.0} seconds without progress", paused.value),
    };
    let flag = paused.limit.as_str().replace('_', "-");
    format!("the agent is paused at its limit of {limit}; raise it with `atoll sandbox limits {sandbox} --{flag} N`")
}

fn describe_service_start(started: &ServiceStarted) -> Fact {
    let port = started.port.map(|port| format!(" (port {port})")).unwrap_or_default();
    let again = match started.restarts {
        0 => String::new(),
        1 => ", restarted once".to_owned(),
        times => format!(", restarted {times} times"),
    };
    Fact::note(format!("service {} starts{port}{again}", started.name))
}

fn describe_limits(actor: &str, change: &LimitChanged) -> Fact {
    let AgentLimits { turns, cost_usd, turn_s, no_progress_s } = change.limits;
    let limits = [
        turns.map(|turns| format!("{turns} turns")),
        cost_usd.map(|dollars| format!("${dollars:.2}")),
        turn_s.map(|seconds| format!("{seconds} seconds per turn")),
        no_progress_s.map(|seconds| format!("{seconds} seconds without progress")),
    ];
    let limits: Vec<_> = limits.into_iter().flatten().collect();
    let limits = if limits.is_empty() { "none".to_owned() } else { limits.join(", ") };
    Fact::note(format!("{actor} changed the limits to: {limits}"))
}

fn describe_denial(denial: &GuardianDenied) -> Fact {
    let input = describe_input(&denial.input);
    let call = if input.is_empty() { denial.tool.clone() } else { format!("{}  {input}", denial.tool) };
    let rule = if denial.rule.is_empty() { String::new() } else { format!(" ({})", denial.rule) };
    Fact::warning(format!("{}{rule}", join_detail(&format!("a rule denied {call}"), &denial.reason)))
}

fn describe_finding(finding: &GuardianDetected) -> Fact {
    // A worker of an earlier version reported findings without a sentence.
    let summary = if finding.summary.is_empty() { finding.detector.as_str() } else { &finding.summary };
    Fact::warning(format!("the guardian: {summary}"))
}

const fn describe_intervention(action: GuardianAction) -> &'static str {
    match action {
        GuardianAction::Observe | GuardianAction::Escalate | GuardianAction::Nudge => "the guardian intervened",
        GuardianAction::Deny => "the guardian denies this call from now on",
        GuardianAction::Interrupt => "the guardian interrupts the turn",
        GuardianAction::Pause => "the guardian pauses the sandbox",
        GuardianAction::Restart => "the guardian continues the session in a fresh sandbox",
    }
}

fn describe_follow_up(follow_up: &GuardianFollowedUp) -> String {
    if let Some(next) = follow_up.next_sandbox_id {
        return format!("the session continues in {next}");
    }
    match follow_up.outcome {
        InterventionOutcome::Stopped => "after the guardian's intervention, the agent did something else".to_owned(),
        InterventionOutcome::Continued => "the agent continued despite the guardian's intervention".to_owned(),
        InterventionOutcome::TurnEnded => "the turn ended after the guardian's intervention".to_owned(),
    }
}

fn describe_protected(paths: &ProtectedPaths) -> Fact {
    const MAX_NAMED_PATHS: usize = 5;
    let named: Vec<_> = paths.paths.iter().take(MAX_NAMED_PATHS).map(String::as_str).collect();
    let more = match paths.count.saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Fact::warning(format!("the results change protected paths, so there is no branch: {}{more}", named.join(", ")))
}
