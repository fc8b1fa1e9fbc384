//! What has happened so far in a sandbox, from its events alone: what is told of each, what is
//! being done now, and what came out. Pure.

mod asking;
mod calls;
mod tell;

#[cfg(test)]
mod tests;

pub use asking::Asked;

use super::told::Told;
use crate::reading::entry::Entry;
use crate::render::patch::Changed;
use calls::Calls;
use std::collections::BTreeMap;

/// What is going on right now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Doing {
    Making,
    Starting,
    Working,
    /// A tool and what it was given.
    Tool(String),
    /// The agent's turn is over: it waits for words.
    Waiting,
    /// The agent waits for an answer.
    Asking,
    TakingResults,
    Ended,
}

/// A branch with what the agent did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    pub name: String,
    pub base: Option<String>,
    pub commits: Option<i64>,
    pub repo: Option<String>,
    pub files: Vec<Changed>,
    /// Files among them that decide what machines run.
    pub flagged: Vec<String>,
}

/// How the sandbox ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct End {
    pub state: String,
    pub outcome: String,
    pub code: Option<String>,
    pub detail: Option<String>,
}

/// What the agent or its worker said about its failure.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Failed {
    pub detail: String,
    pub stderr_tail: String,
    /// Limit and peak, where memory ran out.
    pub memory: Option<(i64, i64)>,
}

#[derive(Debug)]
pub struct Story {
    pub doing: Doing,
    pub turn: Option<i64>,
    /// The worker has reported: what comes later is not a failure of the set-up.
    pub ran: bool,
    pub branch: Option<Branch>,
    pub nothing_changed: bool,
    pub failed: Option<Failed>,
    pub end: Option<End>,
    /// How often it has ended: taking results out of a failed one ends it again.
    pub ends: usize,
    answers: Answers,
    /// What the agent waits for, oldest first.
    asked: Vec<Asked>,
    calls: Calls,
    edits: BTreeMap<String, Changed>,
    /// Messages that have not been told of as delivered, with whether they interrupt.
    open: BTreeMap<String, bool>,
}

/// How one answers what the agent asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answers {
    /// By typing here.
    Typed,
    /// By a command elsewhere.
    Command,
    /// The agent takes its answers as messages: so it is said how.
    Message(String),
}

impl Story {
    pub fn new(answers: Answers) -> Self {
        Self {
            doing: Doing::Making,
            turn: None,
            ran: false,
            branch: None,
            nothing_changed: false,
            failed: None,
            end: None,
            ends: 0,
            answers,
            asked: Vec::new(),
            calls: Calls::default(),
            edits: BTreeMap::new(),
            open: BTreeMap::new(),
        }
    }

    /// Takes the next event in, and gives what is told of it.
    pub fn take(&mut self, entry: &Entry) -> Vec<Told> {
        self.turn = entry.turn.or(self.turn);
        self.follow(entry);
        self.tell(entry)
    }

    /// Files that were edited, by path, with all edits of each together.
    pub fn edits(&self) -> Vec<Changed> {
        self.edits.values().cloned().collect()
    }

    /// What the next words could answer.
    pub fn asked(&self) -> Option<&Asked> {
        match self.answers {
            Answers::Typed => self.asked.first(),
            Answers::Command | Answers::Message(_) => None,
        }
    }

    /// How many messages were sent and have not reached the agent yet.
    pub fn on_their_way(&self) -> usize {
        self.open.values().filter(|interrupts| !**interrupts).count()
    }

    pub fn is_at_work(&self) -> bool {
        match self.doing {
            Doing::Working | Doing::Tool(_) | Doing::Asking => true,
            Doing::Making | Doing::Starting | Doing::Waiting | Doing::TakingResults | Doing::Ended => false,
        }
    }

    /// What the event changes of what is known.
    fn follow(&mut self, entry: &Entry) {
        match entry.event_type.as_str() {
            "approval.requested" => self.asked.extend(Asked::of(entry)),
            "approval.resolved" => {
                let id = entry.text("approval_id");
                self.asked.retain(|asked| Some(asked.approval_id.as_str()) != id);
            }
            // Nobody waits any more.
            "agent.started" | "agent.completed" | "agent.failed" | "sandbox.completing" => self.asked.clear(),
            _ => {}
        }
        let ending = matches!(self.doing, Doing::TakingResults | Doing::Ended);
        match entry.event_type.as_str() {
            "sandbox.creating" => self.doing = Doing::Making,
            "sandbox.running" => {
                self.ran = true;
                self.doing = Doing::Starting;
            }
            "sandbox.completing" => self.doing = Doing::TakingResults,
            "sandbox.completed" | "sandbox.failed" => self.ended(entry),
            "git.branch_created" => self.branch = Some(branch(entry)),
            "git.nothing_changed" => self.nothing_changed = true,
            "agent.failed" => self.failed = Some(failed(entry)),
            "agent.file_edited" => self.edited(entry),
            "message.queued" => {
                if let Some(id) = entry.text("message_id") {
                    self.open.insert(id.to_owned(), entry.text("type") == Some("interrupt"));
                }
            }
            // The worker's last words may come when the end has begun: they don't take it back.
            _ if ending => {}
            "agent.tool_use" => self.doing = Doing::Tool(calls::what(entry)),
            "agent.waiting" | "agent.interrupted" | "agent.completed" => self.doing = Doing::Waiting,
            "approval.requested" => self.doing = Doing::Asking,
            "agent.tool_completed" => {
                // Another call may still be under way.
                let other = self.calls.under_way(entry.text("tool_use_id"));
                self.doing = other.map_or(Doing::Working, Doing::Tool);
            }
            "agent.started" | "continuous.validating" => self.doing = Doing::Working,
            other if atoll_core::observe::is_work(other) => {
                self.doing = self.calls.under_way(None).map_or(Doing::Working, Doing::Tool);
            }
            _ => {}
        }
    }

    fn ended(&mut self, entry: &Entry) {
        let reason = &entry.data["reason"];
        let state = entry.event_type.trim_start_matches("sandbox.").to_owned();
        self.end = Some(End {
            outcome: entry.text("outcome").unwrap_or(&state).to_owned(),
            state,
            code: reason["code"].as_str().map(str::to_owned),
            detail: reason["detail"].as_str().map(str::to_owned),
        });
        self.ends += 1;
        self.doing = Doing::Ended;
    }

    fn edited(&mut self, entry: &Entry) {
        let Some(path) = entry.text("file_path") else { return };
        let number = |field: &str| entry.data[field].as_i64().unwrap_or(0);
        let change = entry.text("change_type").unwrap_or("modified");
        let file = self.edits.entry(path.to_owned()).or_insert_with(|| Changed {
            path: path.to_owned(),
            old_path: entry.text("old_path").map(str::to_owned),
            change: change.to_owned(),
            added: 0,
            removed: 0,
            binary: false,
        });
        file.added += number("lines_added");
        file.removed += number("lines_removed");
        file.binary |= entry.data["binary"] == true;
        // A file that was made and then edited is still a new one.
        if change == "deleted" {
            change.clone_into(&mut file.change);
        }
    }
}

fn branch(entry: &Entry) -> Branch {
    let flagged = entry.data["flagged"].as_array().into_iter().flatten();
    Branch {
        name: entry.text("branch").unwrap_or("?").to_owned(),
        base: entry.text("base").map(str::to_owned),
        commits: entry.data["commits"].as_i64(),
        repo: entry.text("repo").map(str::to_owned),
        files: Changed::list(&entry.data["files"]),
        flagged: flagged.filter_map(|path| path.as_str().map(str::to_owned)).collect(),
    }
}

fn failed(entry: &Entry) -> Failed {
    let number = |field: &str| entry.data[field].as_i64();
    Failed {
        detail: entry.said().unwrap_or_default().to_owned(),
        stderr_tail: entry.text("stderr_tail").unwrap_or_default().to_owned(),
        memory: number("memory_limit").zip(number("memory_peak")),
    }
}
