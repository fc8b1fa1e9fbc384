//! Atoll's promises and the report on them.

use crate::failure::{Result, WORK_FAILED};
use crate::output::Output;
use crate::render::spans::Spans;
use crate::render::{style, text};
use serde_json::json;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Promise {
    Works,
    Isolated,
    Hidden,
    Steered,
    Logged,
    Edits,
    Branch,
    Crash,
    Clean,
}

impl Promise {
    pub const ALL: [Self; 9] = [
        Self::Works,
        Self::Isolated,
        Self::Hidden,
        Self::Steered,
        Self::Logged,
        Self::Edits,
        Self::Branch,
        Self::Crash,
        Self::Clean,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Works => "works",
            Self::Isolated => "isolated",
            Self::Hidden => "hidden",
            Self::Steered => "steered",
            Self::Logged => "logged",
            Self::Edits => "edits",
            Self::Branch => "branch",
            Self::Crash => "crash",
            Self::Clean => "clean",
        }
    }

    const fn sentence(self) -> &'static str {
        match self {
            Self::Works => "an agent completes a task",
            Self::Isolated => "the agent is isolated from the host",
            Self::Hidden => "the agent cannot see the host's files",
            Self::Steered => "a message reaches the agent during its turn",
            Self::Logged => "the event log is complete and in order",
            Self::Edits => "every file edit is logged with its diff",
            Self::Branch => "the results are on a branch, the checkout is untouched",
            Self::Crash => "a crash is reported as a crash",
            Self::Clean => "nothing remains after the sandbox",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromiseVerdict {
    /// The promise held, with the evidence.
    Held(String),
    /// The promise did not hold, with the evidence.
    Broken(String),
    /// The promise cannot be checked, with the reason.
    Skipped(String),
}

impl PromiseVerdict {
    pub fn of(is_held: bool, detail: impl Into<String>) -> Self {
        if is_held { Self::Held(detail.into()) } else { Self::Broken(detail.into()) }
    }
}

/// Prints each verdict as soon as it is known.
pub struct PromiseReport<'a> {
    output: &'a Output,
    known: Vec<Promise>,
    broken: usize,
    skipped: usize,
}

impl<'a> PromiseReport<'a> {
    pub const fn new(output: &'a Output) -> Self {
        Self { output, known: Vec::new(), broken: 0, skipped: 0 }
    }

    pub fn add(&mut self, promise: Promise, verdict: &PromiseVerdict) -> Result {
        self.known.push(promise);
        let (is_held, mark, style, detail) = match verdict {
            PromiseVerdict::Held(detail) => (Some(true), "✓", style::GOOD, detail),
            PromiseVerdict::Broken(detail) => (Some(false), "✗", style::BAD, detail),
            PromiseVerdict::Skipped(why) => (None, "–", style::FAINT, why),
        };
        self.broken += usize::from(is_held == Some(false));
        self.skipped += usize::from(is_held.is_none());
        if self.output.json {
            let object = json!({ "type": "promise", "promise": promise.name(), "held": is_held, "detail": detail });
            self.output.print_object(&object)?;
        } else {
            let line = Spans::new().styled(style, mark).plain(format!(" {}", promise.sentence()));
            let line = line.styled(style::FAINT, format!("  {}", text::escape_line(detail)));
            self.output.print_line(&line.to_ansi(self.output.colour))?;
        }
        self.output.flush()
    }

    /// Skips the promises that an earlier failure left unchecked; `Clean` is always checked.
    pub fn skip_remaining(&mut self) -> Result {
        for promise in Promise::ALL {
            if !self.known.contains(&promise) && promise != Promise::Clean {
                self.add(promise, &PromiseVerdict::Skipped("not checked because of an earlier failure".to_owned()))?;
            }
        }
        Ok(())
    }

    /// Prints the summary; returns whether all checked promises held.
    pub fn finish(&self) -> Result<bool> {
        let all_held = self.broken == 0;
        if self.output.json {
            let exit = if all_held { 0 } else { WORK_FAILED };
            self.output.print_object(
                &json!({ "type": "done", "broken": self.broken, "skipped": self.skipped, "exit": exit }),
            )?;
        } else if all_held && self.skipped == 0 {
            self.output.print_line("all promises held")?;
        } else if all_held {
            self.output.print_line("all checked promises held")?;
        } else {
            self.output.print_line(&format!("{} of {} promises did not hold", self.broken, Promise::ALL.len()))?;
        }
        Ok(all_held)
    }
}
