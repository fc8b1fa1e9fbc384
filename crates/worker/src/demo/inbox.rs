//! What is said to the demo agent, and what happens to it: all of it comes through one channel, so that the agent can
//! wait for whatever is first.

use super::wire::{Answer, In, Prompt};
use atoll_core::demo_line::{DemoLine, parse};
use atoll_core::provider::Exit;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// For whoever watches to look at what a tool changed.
const LOOK: Duration = Duration::from_secs(3);

/// Something that has come.
pub(super) enum Incoming {
    Line(In),
    /// Nobody says anything any more.
    Closed,
    /// The command that runs has ended.
    Ended(Exit),
}

pub(super) struct Inbox {
    sender: Sender<Incoming>,
    incoming: Receiver<Incoming>,
    waiting: VecDeque<In>,
    /// The last tool that was looked at.
    seen: Option<String>,
    closed: bool,
    deaf: Arc<AtomicBool>,
}

impl Inbox {
    pub(super) fn start(input: impl Read + Send + 'static) -> std::io::Result<Self> {
        let (sender, incoming) = channel();
        let deaf = Arc::new(AtomicBool::new(false));
        let inbox = Self {
            sender: sender.clone(),
            incoming,
            waiting: VecDeque::new(),
            seen: None,
            closed: false,
            deaf: deaf.clone(),
        };
        std::thread::Builder::new().name("stdin".into()).spawn(move || listen(input, &sender, &deaf))?;
        Ok(inbox)
    }

    pub(super) fn sender(&self) -> Sender<Incoming> {
        self.sender.clone()
    }

    /// Stops reading.
    pub(super) fn go_deaf(&self) {
        self.deaf.store(true, Ordering::Relaxed);
    }

    pub(super) const fn is_closed(&self) -> bool {
        self.closed
    }

    /// The interrupt that waits.
    pub(super) fn interrupt(&mut self) -> Option<Prompt> {
        self.look();
        let at = self.waiting.iter().position(|line| matches!(line, In::Interrupt(_)))?;
        match self.waiting.remove(at) {
            Some(In::Interrupt(words)) => Some(words),
            Some(In::Prompt(_) | In::Steer(_) | In::Answer(_) | In::Seen { .. }) | None => None,
        }
    }

    pub(super) fn has_interrupt(&self) -> bool {
        self.waiting.iter().any(|line| matches!(line, In::Interrupt(_)))
    }

    /// What may be told in the running turn. While a question is open, only what answers it.
    pub(super) fn steer(&mut self, asking: bool) -> Option<Prompt> {
        self.look();
        let fits = |line: &In| matches!(line, In::Steer(words) if !asking || answers(&words.text));
        let at = self.waiting.iter().position(fits)?;
        match self.waiting.remove(at) {
            Some(In::Steer(words)) => Some(words),
            Some(In::Prompt(_) | In::Interrupt(_) | In::Answer(_) | In::Seen { .. }) | None => None,
        }
    }

    /// What becomes of a tool call; none if nobody is there to say it, or the turn is to be broken off.
    pub(super) fn wait_for_answer(&mut self, id: &str) -> Option<Answer> {
        self.look();
        loop {
            let is_it = |line: &In| matches!(line, In::Answer(answer) if answer.approval_id == id);
            if let Some(at) = self.waiting.iter().position(is_it)
                && let Some(In::Answer(answer)) = self.waiting.remove(at)
            {
                return Some(answer);
            }
            if self.closed || self.has_interrupt() {
                return None;
            }
            self.wait(None);
        }
    }

    pub(super) fn answer(&mut self) -> Option<Answer> {
        self.look();
        let at = self.waiting.iter().position(|line| matches!(line, In::Answer(_)))?;
        match self.waiting.remove(at) {
            Some(In::Answer(answer)) => Some(answer),
            Some(In::Prompt(_) | In::Interrupt(_) | In::Steer(_) | In::Seen { .. }) | None => None,
        }
    }

    /// What begins the next turn, whatever it was meant for.
    pub(super) fn next(&mut self) -> Option<In> {
        self.look();
        self.waiting.pop_front()
    }

    fn look(&mut self) {
        while let Ok(incoming) = self.incoming.try_recv() {
            self.put(incoming);
        }
    }

    fn put(&mut self, incoming: Incoming) -> Option<Exit> {
        match incoming {
            Incoming::Line(In::Seen { tool_use_id }) => self.seen = Some(tool_use_id),
            Incoming::Line(line @ (In::Prompt(_) | In::Steer(_) | In::Interrupt(_) | In::Answer(_))) => {
                self.waiting.push_back(line);
            }
            Incoming::Closed => self.closed = true,
            Incoming::Ended(exit) => return Some(exit),
        }
        None
    }

    /// Until what a tool changed has been looked at; not for ever, and not when nobody is there to look.
    pub(super) fn wait_until_seen(&mut self, tool_use_id: &str) {
        let until = Instant::now() + LOOK;
        self.look();
        while self.seen.as_deref() != Some(tool_use_id) && !self.closed && Instant::now() < until {
            self.wait(Some(until));
        }
    }

    /// Until something has come, or until then. The exit, if it is a command's end.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> Option<Exit> {
        let incoming = match until {
            Some(until) => self.incoming.recv_timeout(until.saturating_duration_since(Instant::now())).ok(),
            None => self.incoming.recv().ok(),
        };
        incoming.and_then(|incoming| self.put(incoming))
    }
}

/// Answers the open question, whatever it is.
fn answers(text: &str) -> bool {
    matches!(parse(text).first(), Some(DemoLine::Approve | DemoLine::Deny(_)))
}

fn listen(input: impl Read, sender: &Sender<Incoming>, deaf: &AtomicBool) {
    for line in BufReader::new(input).lines() {
        let Ok(line) = line else { break };
        // A line of a newer worker says nothing to this agent.
        if let Ok(line) = serde_json::from_str(&line)
            && sender.send(Incoming::Line(line)).is_err()
        {
            return;
        }
        while deaf.load(Ordering::Relaxed) {
            std::thread::park();
        }
    }
    drop(sender.send(Incoming::Closed));
}
