//! What Atoll promises, and whether it held.

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
            Self::Works => "an agent works from start to end",
            Self::Isolated => "it runs apart from the server and this machine",
            Self::Hidden => "it does not see this machine's files",
            Self::Steered => "what is said to it reaches it while it works",
            Self::Logged => "every event is there, once and in order",
            Self::Edits => "every edit of a file is seen, with its diff",
            Self::Branch => "the work is on a branch, and the checkout is untouched",
            Self::Crash => "a crash is told as a crash",
            Self::Clean => "nothing is left behind",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// With what was seen.
    Held(String),
    /// With what was seen instead.
    Broken(String),
    /// It can't be tried here.
    Skipped(String),
}

impl Verdict {
    pub fn of(held: bool, seen: impl Into<String>) -> Self {
        if held { Self::Held(seen.into()) } else { Self::Broken(seen.into()) }
    }
}

/// Tells each promise as it is known.
pub struct Told<'a> {
    output: &'a Output,
    known: Vec<Promise>,
    broken: usize,
    skipped: usize,
}

impl<'a> Told<'a> {
    pub const fn new(output: &'a Output) -> Self {
        Self { output, known: Vec::new(), broken: 0, skipped: 0 }
    }

    pub fn tell(&mut self, promise: Promise, verdict: &Verdict) -> Result {
        self.known.push(promise);
        let (held, mark, style, seen) = match verdict {
            Verdict::Held(seen) => (Some(true), "✓", style::GOOD, seen),
            Verdict::Broken(seen) => (Some(false), "✗", style::BAD, seen),
            Verdict::Skipped(why) => (None, "–", style::FAINT, why),
        };
        self.broken += usize::from(held == Some(false));
        self.skipped += usize::from(held.is_none());
        if self.output.json {
            let object = json!({ "type": "promise", "promise": promise.name(), "held": held, "detail": seen });
            self.output.object(&object)?;
        } else {
            let line = Spans::new().put(style, mark).plain(format!(" {}", promise.sentence()));
            let line = line.put(style::FAINT, format!("  {}", text::inline(seen)));
            self.output.line(&line.painted(self.output.colour))?;
        }
        self.output.flush()
    }

    /// What could not be tried because something before it did not hold. Whether it is clean is always seen.
    pub fn tell_the_rest(&mut self) -> Result {
        for promise in Promise::ALL {
            if !self.known.contains(&promise) && promise != Promise::Clean {
                self.tell(promise, &Verdict::Skipped("not tried: something before it did not hold".to_owned()))?;
            }
        }
        Ok(())
    }

    /// Whether all that could be tried held.
    pub fn end(&self) -> Result<bool> {
        let held = self.broken == 0;
        if self.output.json {
            let exit = if held { 0 } else { WORK_FAILED };
            self.output
                .object(&json!({ "type": "done", "broken": self.broken, "skipped": self.skipped, "exit": exit }))?;
        } else if held && self.skipped == 0 {
            self.output.line("every promise held")?;
        } else if held {
            self.output.line("every promise that could be tried held")?;
        } else {
            self.output.line(&format!("{} of {} promises did not hold", self.broken, Promise::ALL.len()))?;
        }
        Ok(held)
    }
}
