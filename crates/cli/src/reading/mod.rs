//! Reading a sandbox's log: its pages, its end, and on from there. `events`, `logs` and `compare` share it.

pub mod entry;
pub mod events;
pub mod logs;

use crate::arguments::Target;
use crate::client::Client;
use crate::client::follow::{Follow, Heard};
use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_core::event::TypePattern;
use atoll_core::id::SandboxId;
use entry::Entry;
use serde_json::{Value, json};
use std::time::Duration;

/// What to read.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Which {
    /// Go on with what happens, until the sandbox has ended
    #[arg(long, short)]
    pub follow: bool,
    /// Only events of this type, or of these with `agent.*`; several times
    #[arg(long = "type", value_name = "TYPE")]
    pub types: Vec<String>,
    /// Only what comes after this seq
    #[arg(long, value_name = "SEQ", value_parser = clap::value_parser!(i64).range(0..))]
    pub since: Option<i64>,
    /// Only the last N
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

/// Who shows what was read.
pub trait Show {
    fn entry(&mut self, entry: &Entry) -> Result;

    /// What was before this seq is no longer kept.
    fn truncated(&mut self, first_seq: i64, output: &Output) -> Result {
        if output.json {
            return output.object(&json!({ "type": "truncated", "first_seq": first_seq }));
        }
        output.note(&format!("events before {first_seq} are no longer kept"));
        Ok(())
    }
}

/// How long an ended sandbox's log must be silent before following it ends.
const QUIET: Duration = Duration::from_secs(2);
const AT_ONCE: usize = 500;
/// What tells that a sandbox has ended; heard whatever was asked for.
const ENDS: [&str; 2] = ["sandbox.completed", "sandbox.failed"];

pub struct Reader<'a> {
    client: &'a Client,
    output: &'a Output,
    sandbox: SandboxId,
    which: &'a Which,
    patterns: Vec<TypePattern>,
}

impl<'a> Reader<'a> {
    pub fn new(client: &'a Client, output: &'a Output, sandbox: SandboxId, which: &'a Which) -> Result<Self> {
        let patterns: Result<Vec<_>, _> = which.types.iter().map(|text| TypePattern::parse(text)).collect();
        let patterns = patterns.map_err(|error| {
            Failure::input(format!("--type: {error}"))
                .next("Write a whole type like agent.message, or a group like agent.*")
        })?;
        Ok(Self { client, output, sandbox, which, patterns })
    }

    /// Shows what was asked for, in order.
    pub async fn read(&self, show: &mut dyn Show) -> Result {
        let row = self.row().await?;
        let (first, last) = (row["first_seq"].as_i64().unwrap_or(1), row["last_seq"].as_i64().unwrap_or(0));
        let mut since = self.which.since.unwrap_or(0);
        match (self.which.limit, self.which.since, self.which.follow) {
            (Some(0), _, _) => since = since.max(last),
            (Some(most), ..) => {
                for entry in self.newest(most, since).await?.iter().rev() {
                    show.entry(entry)?;
                    since = entry.seq;
                }
            }
            (None, None, false) => {
                if first > 1 {
                    show.truncated(first, self.output)?;
                }
                return self.all(show).await;
            }
            (None, Some(_), false) => return self.until(since, last, show).await,
            (None, _, true) => {}
        }
        if self.which.follow { self.follow(since, has_ended(&row), show).await } else { Ok(()) }
    }

    async fn row(&self) -> Result<Value> {
        self.client.get(&format!("/sandboxes/{}", self.sandbox), &[]).await
    }

    fn wanted(&self, entry: &Entry) -> bool {
        self.patterns.is_empty() || self.patterns.iter().any(|pattern| pattern.matches(&entry.event_type))
    }

    async fn page(&self, order: &str, most: usize, cursor: Option<String>) -> Result<(Vec<Entry>, Option<String>)> {
        let mut query = vec![("order", order.to_owned()), ("limit", most.to_string())];
        if !self.which.types.is_empty() {
            query.push(("type", self.which.types.join(",")));
        }
        query.extend(cursor.map(|cursor| ("cursor", cursor)));
        let page = self.client.page(&format!("/sandboxes/{}/events", self.sandbox), &query).await?;
        let entries: Result<Vec<_>, _> = page.items.iter().map(|item| Entry::parse(item.get())).collect();
        Ok((entries.map_err(|error| self.client.not_atoll(&error))?, page.next_cursor))
    }

    async fn all(&self, show: &mut dyn Show) -> Result {
        let mut cursor = None;
        loop {
            let (entries, next) = self.page("asc", AT_ONCE, cursor).await?;
            for entry in &entries {
                show.entry(entry)?;
            }
            let Some(next) = next else { return Ok(()) };
            cursor = Some(next);
        }
    }

    /// The last ones after `since`, newest first.
    async fn newest(&self, most: usize, since: i64) -> Result<Vec<Entry>> {
        let mut found = Vec::new();
        let mut cursor = None;
        loop {
            let room = most - found.len();
            let (entries, next) = self.page("desc", room.min(AT_ONCE), cursor).await?;
            let reached = entries.last().is_some_and(|oldest| oldest.seq <= since + 1);
            found.extend(entries.into_iter().filter(|entry| entry.seq > since).take(room));
            match next {
                Some(next) if found.len() < most && !reached => cursor = Some(next),
                _ => return Ok(found),
            }
        }
    }

    /// From after `since` to the event that was the last one.
    async fn until(&self, since: i64, last: i64, show: &mut dyn Show) -> Result {
        // Everything is asked for, so that the last one is seen whatever its type.
        let mut follow = Follow::new(self.client, self.sandbox, &[], since);
        let mut seq = since;
        while seq < last {
            match follow.next().await? {
                Heard::Event(entry) => {
                    seq = entry.seq;
                    if seq <= last && self.wanted(&entry) {
                        show.entry(&entry)?;
                    }
                }
                Heard::Truncated { first_seq } => {
                    show.truncated(first_seq, self.output)?;
                    seq = seq.max(first_seq - 1);
                }
                Heard::Lost(_) => {}
            }
        }
        Ok(())
    }

    async fn follow(&self, since: i64, mut ended: bool, show: &mut dyn Show) -> Result {
        let mut types = self.which.types.clone();
        if !types.is_empty() {
            types.extend(ENDS.map(str::to_owned));
        }
        let mut follow = Follow::new(self.client, self.sandbox, &types, since);
        let mut lost = false;
        loop {
            if follow.is_waiting() {
                self.output.flush()?;
            }
            let heard = if ended && !lost {
                let Ok(heard) = tokio::time::timeout(QUIET, follow.next()).await else {
                    let row = self.row().await?;
                    if has_ended(&row) {
                        self.output.note(&end_of(&row));
                        return Ok(());
                    }
                    // Its results are being taken out after all.
                    ended = false;
                    continue;
                };
                heard?
            } else {
                follow.next().await?
            };
            match heard {
                Heard::Event(entry) => {
                    if std::mem::take(&mut lost) {
                        self.output.note("connected again");
                    }
                    ended |= ENDS.contains(&entry.event_type.as_str());
                    if self.wanted(&entry) {
                        show.entry(&entry)?;
                    }
                }
                Heard::Truncated { first_seq } => show.truncated(first_seq, self.output)?,
                Heard::Lost(why) => {
                    if !std::mem::replace(&mut lost, true) {
                        self.output.note(&format!("{why}; trying again, nothing will be missed"));
                    }
                }
            }
        }
    }
}

fn has_ended(row: &Value) -> bool {
    matches!(row["state"].as_str(), Some("completed" | "failed"))
}

fn end_of(row: &Value) -> String {
    let state = row["state"].as_str().unwrap_or("ended");
    let outcome = row["outcome"].as_str().filter(|outcome| *outcome != state);
    let outcome = outcome.map(|outcome| format!(" ({outcome})")).unwrap_or_default();
    let reason = row["reason"]["detail"].as_str().map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("the sandbox has {state}{outcome}{reason}")
}

/// The sandbox that is meant: a session stands for its live one, else its last one.
pub async fn sandbox_of(client: &Client, target: Target) -> Result<SandboxId> {
    let session = match target {
        Target::Sandbox(id) => return Ok(id),
        Target::Session(id) => id,
    };
    let row = client.get(&format!("/sessions/{session}"), &[]).await?;
    let id = row["sandbox_id"].as_str().or(row["last_sandbox_id"].as_str());
    id.and_then(|id| id.parse().ok()).ok_or_else(|| {
        Failure::setup("no_sandbox", format!("the session {session} has had no sandbox yet"))
            .next(format!("`atoll session resume {session}` gives it one."))
    })
}
