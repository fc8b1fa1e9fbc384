//! What is told of each event: a line or a few words, or nothing where it would only be noise.

use super::{Answers, Story, asking};
use crate::reading::entry::Entry;
use crate::render::spans::Spans;
use crate::render::{continuous, line, patch, style, text, time};
use crate::run::told::{Mark, Told};
use anstyle::Style;
use atoll_core::event::kind;
use atoll_core::limit::Limit;
use std::time::Duration;

/// How much of a failed tool's output is shown.
const OUTPUT_LINES: usize = 5;
const TAIL_LINES: usize = 20;
/// What takes less is not worth a figure.
const WORTH_SAYING: Duration = Duration::from_secs(1);

impl Story {
    pub(super) fn tell(&mut self, entry: &Entry) -> Vec<Told> {
        let said = entry.said().unwrap_or_default();
        let told = match entry.event_type.as_str() {
            _ if entry.is_structure() => None,
            "agent.started" => {
                self.calls.forget();
                let turn = entry.turn.filter(|turn| *turn > 1);
                turn.map(|turn| Told::fact(&format!("turn {turn}")))
            }
            kind::AGENT_MESSAGE | kind::AGENT_ASSISTANT_MESSAGE => Some(Told::words(Mark::Agent, Style::new(), said)),
            "agent.thinking" => Some(Told::words(Mark::Agent, style::FAINT, said)),
            "agent.system_message" => Some(Told::fact(said)),
            "agent.tool_use" => {
                self.calls.begin(entry);
                None
            }
            kind::AGENT_TOOL_COMPLETED | kind::AGENT_USER_TOOL_RESULT => self.tool(entry),
            "agent.file_edited" => {
                self.calls.edited(entry.text("tool_use_id"));
                Some(edit(entry))
            }
            "agent.interrupted" => Some(Told::warning("the agent was interrupted")),
            "agent.completed" => stopped(entry),
            "agent.failed" | "agent.error" | "agent.stream_error" => Some(failure(entry)),
            "agent.unparsed" => Some(Told::warning(&format!("not understood: {}", text::clipped(said, 200)))),
            "approval.requested" => Some(self.question(entry)),
            "approval.resolved" => Some(Told::fact(&answer(entry))),
            "limit.paused" => {
                let limit = entry.text("limit").unwrap_or_default();
                let (what, how) = if limit == Limit::ProjectBudget.as_str() {
                    let project = entry.text("project_id").unwrap_or("…");
                    let next = entry.text("until").map(|until| format!(", and so does {}", time::exact(until)));
                    let next = next.unwrap_or_default();
                    (
                        "its project's budget".to_owned(),
                        format!("`atoll project budget {project} …` lets it go on{next}"),
                    )
                } else {
                    let flag = limit.replace('_', "-");
                    (format!("its limit {limit}"), format!("`atoll sandbox limits … --{flag} …` lets it go on"))
                };
                Some(Told::warning(&format!("the agent is paused: {what} is reached; {how}")))
            }
            "limit.resumed" => Some(Told::fact("the agent goes on")),
            kind if kind.starts_with("message.") => self.message(entry),
            "git.cloned" => return cloned(entry),
            kind if kind.starts_with("git.") || kind.starts_with("sandbox.") => place(entry),
            "worker.lost" | "worker.rejected" => {
                let detail = line::summary(entry, 300);
                Some(Told::warning(&format!("{}: {detail}", entry.event_type)))
            }
            // What the status line or the end says, and what only machines need.
            "approval.answered"
            | "agent.waiting"
            | "agent.shutdown"
            | "agent.message_injected"
            | "agent.heartbeat"
            | "agent.usage"
            | "agent.transcript" => None,
            kind if kind.starts_with("session.") => None,
            kind if kind.starts_with("continuous.") => return checked(entry).into_iter().collect(),
            kind => Some(Told::step(
                Mark::Fact,
                Spans::new().put(style::FAINT, format!("{} {}", text::clipped(kind, 100), line::summary(entry, 300))),
            )),
        };
        told.into_iter().collect()
    }

    fn tool(&mut self, entry: &Entry) -> Option<Told> {
        let done = self.calls.end(entry);
        let is_error = entry.data["is_error"] == true;
        if done.edited && !is_error {
            // The edit itself was told.
            return None;
        }
        let (tool, what) = done.what.split_once("  ").unwrap_or((&done.what, ""));
        let line = Spans::new().put(style::HEAD, tool).plain(format!("  {what}"));
        let took = done.took.filter(|took| *took >= WORTH_SAYING).map(time::span).unwrap_or_default();
        let exit = if is_error { exit(entry) } else { String::new() };
        let side = [exit, took].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let side = if side.is_empty() { side } else { format!("  {side}") };
        let mark = if is_error { Mark::Failed } else { Mark::Done };
        let told = Told::step(mark, line).side(Spans::new().put(style::FAINT, side));
        let output = entry.text("output").unwrap_or_default();
        Some(if is_error { told.under(style::FAINT, &last_lines(output, OUTPUT_LINES)) } else { told })
    }

    fn question(&self, entry: &Entry) -> Told {
        let how = match (&self.answers, self.asked.last()) {
            (Answers::Message(how), _) => how.clone(),
            (Answers::Typed, Some(asked)) => asked.typing(),
            (Answers::Command, Some(asked)) => asked.command(),
            (Answers::Typed | Answers::Command, None) => "answer with: atoll approvals".to_owned(),
        };
        Told::words(Mark::Question, style::WARN, &format!("the agent asks: {}\n{how}", asking::what(entry)))
    }

    fn message(&mut self, entry: &Entry) -> Option<Told> {
        let id = entry.text("message_id")?;
        let content = entry.text("content").unwrap_or_default();
        let reason = entry.text("reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
        match entry.event_type.as_str() {
            // What failed was told when it was found.
            "message.queued" if entry.text("type") == Some("system") => None,
            "message.queued" if entry.text("type") == Some("interrupt") => {
                Some(Told::words(Mark::User, style::WARN, "interrupt"))
            }
            "message.queued" => Some(Told::words(Mark::User, style::NAME, content)),
            "message.edited" => Some(Told::words(Mark::User, style::NAME, &format!("changed: {content}"))),
            "message.acknowledged" => {
                let interrupts = self.open.remove(id)?;
                // A turn of its own begins with it, and the interrupt is told by itself.
                (entry.text("how") != Some("new_turn") && !interrupts).then(|| reached(entry))
            }
            "message.cancelled" => self.lost(id, "taken back"),
            "message.undeliverable" => self.lost(id, &format!("could not be delivered{reason}")),
            "message.delivered_unconfirmed" => {
                self.lost(id, &format!("was handed over, but nobody confirms that the agent has it{reason}"))
            }
            _ => None,
        }
    }
}

impl Story {
    /// It is no longer on its way.
    fn lost(&mut self, id: &str, words: &str) -> Option<Told> {
        self.open.remove(id);
        Some(under(words))
    }
}

fn under(words: &str) -> Told {
    Told::words(Mark::Under, style::FAINT, words)
}

fn reached(entry: &Entry) -> Told {
    let turn = entry.turn.map(|turn| format!(" in turn {turn}")).unwrap_or_default();
    let how = entry.text("how").map(|how| format!(" ({how})")).unwrap_or_default();
    under(&format!("reached the agent{turn}{how}"))
}

fn edit(entry: &Entry) -> Told {
    let number = |field: &str| entry.data[field].as_i64().unwrap_or(0);
    let path = text::inline(entry.text("file_path").unwrap_or("?"));
    let path = match entry.text("old_path") {
        Some(old) => format!("{} → {path}", text::inline(old)),
        None => path,
    };
    let change = match entry.text("change_type") {
        Some("modified") | None => String::new(),
        Some(change) => format!("  {}", text::clipped(change, 20)),
    };
    let side = if entry.data["binary"] == true {
        Spans::new().put(style::FAINT, "  binary")
    } else {
        Spans::new().plain("  ").then(patch::counts(number("lines_added"), number("lines_removed")))
    };
    Told::step(Mark::Edit, Spans::new().plain(path)).side(side.put(style::FAINT, change))
}

/// Nothing where the turn just ended.
fn stopped(entry: &Entry) -> Option<Told> {
    let reason = entry.text("stop_reason").filter(|reason| *reason != "end_turn")?;
    Some(Told::fact(&format!("the turn ended: {reason}")))
}

fn failure(entry: &Entry) -> Told {
    let reason = entry.text("reason").map(|reason| format!(" ({reason})")).unwrap_or_default();
    let said = entry.said().unwrap_or("the agent failed");
    let told = Told::step(Mark::Failed, Spans::new().put(style::BAD, text::inline(&format!("{said}{reason}"))));
    told.under(style::FAINT, &last_lines(entry.text("stderr_tail").unwrap_or_default(), TAIL_LINES))
}

/// A check, or what follows from all of them.
fn checked(entry: &Entry) -> Option<Told> {
    let words = text::inline(&continuous::words(entry)?);
    let failed = entry.event_type == "continuous.check" && entry.text("verdict") != Some("passed");
    Some(match entry.event_type.as_str() {
        _ if failed => Told::step(Mark::Failed, Spans::new().plain(words))
            .under(style::FAINT, &last_lines(entry.text("output").unwrap_or_default(), OUTPUT_LINES)),
        "continuous.check" | "continuous.passed" => Told::step(Mark::Done, Spans::new().plain(words)),
        "continuous.stopped" | "continuous.run_failed" => Told::warning(&words),
        _ => Told::fact(&words),
    })
}

fn answer(entry: &Entry) -> String {
    let reason = entry.text("reason").map(|reason| format!(": {reason}")).unwrap_or_default();
    format!("answered: {}{reason}", entry.text("decision").unwrap_or("?"))
}

/// What is said of the sandbox itself and of the repository; its end is told when all is over.
fn place(entry: &Entry) -> Option<Told> {
    match entry.event_type.as_str() {
        "sandbox.notice" | "sandbox.disk_full" => entry.text("text").map(Told::warning),
        "git.branch_created" | "git.nothing_changed" => None,
        kind if kind.starts_with("sandbox.") => None,
        kind => Some(Told::fact(&format!("{kind}: {}", line::summary(entry, 300)))),
    }
}

fn cloned(entry: &Entry) -> Vec<Told> {
    let commit: String = entry.text("commit").unwrap_or("?").chars().take(8).collect();
    let repo = entry.text("repo").map(|repo| format!(" of {repo}")).unwrap_or_default();
    let branch = entry.text("branch").map(|branch| format!(", on branch {branch}")).unwrap_or_default();
    let mut told = vec![Told::fact(&format!("the workspace is at {commit}{repo}{branch}"))];
    let who = match entry.data["uncommitted"].as_i64().unwrap_or(0) {
        0 => return told,
        1 => "1 file has".to_owned(),
        many => format!("{many} files have"),
    };
    told.push(Told::warning(&format!("{who} changes that are not committed; the agent works on the last commit")));
    told
}

fn exit(entry: &Entry) -> String {
    let exit = &entry.data["exit"];
    match (exit["kind"].as_str(), exit["code"].as_i64(), exit["signal"].as_i64()) {
        (Some("exited"), Some(code), _) => format!("exit {code}"),
        (Some("signalled"), _, Some(signal)) => format!("signal {signal}"),
        (Some("out_of_memory"), ..) => "out of memory".to_owned(),
        (Some("timed_out"), ..) => "timed out".to_owned(),
        (Some("unknown"), ..) => "exit unknown".to_owned(),
        _ => String::new(),
    }
}

fn last_lines(text: &str, most: usize) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(most)..].join("\n")
}
