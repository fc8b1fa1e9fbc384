//! Watching a sandbox from its first event to its end: everything from outside in one `select!`.

use super::face::Face;
use super::leaving::{Leaving, Standing, Step};
use super::orders::{Answer, Order, Orders, refused};
use super::signals::{Caught, Signals};
use super::story::{Answers, Branch, Doing, Story};
use super::terminal::Pressed;
use super::terminal::bottom::Status;
use super::terminal::input::Asked;
use super::told::Told;
use crate::client::Client;
use crate::client::follow::{Follow, Heard};
use crate::failure::Result;
use crate::output::Output;
use crate::reading::entry::Entry;
use atoll_core::id::SandboxId;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How long an ended sandbox's log is waited for to be quiet.
const QUIET: Duration = Duration::from_millis(300);
/// Events that wait to be shown.
const BACKLOG: usize = 256;
/// The status line's clock.
const TICK: Duration = Duration::from_secs(1);

/// What is watched, and what was asked for.
pub struct Watched {
    pub sandbox: SandboxId,
    pub agent: String,
    pub repo: bool,
    pub keep: bool,
    pub inside: bool,
}

/// How the watching came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The sandbox has ended.
    Ended,
    /// It stays on its server, and the agent waits there.
    Kept,
    /// Somebody went away and left it running on its server.
    Running,
    /// Somebody broke everything off.
    Aborted,
}

/// What came of the watching.
pub struct Seen {
    pub left: Left,
    pub story: Story,
    /// Somebody here pressed Ctrl-C, or ended the program.
    pub interrupted: bool,
}

pub struct Watch<'a> {
    watched: &'a Watched,
    output: &'a Output,
    pub story: Story,
    face: Face,
    orders: Orders,
    leaving: Leaving,
    began: Instant,
    /// Not yet on the screen.
    told: Vec<Told>,
    lost: bool,
    /// Results of a failed sandbox: asked for, and answered.
    recovering: Option<bool>,
    /// When the log of the ended sandbox is quiet, unless something more is heard.
    quiet: Option<Instant>,
    left: Option<Left>,
}

impl<'a> Watch<'a> {
    pub fn new(watched: &'a Watched, client: &Arc<Client>, output: &'a Output, began: Instant) -> Self {
        let face = Face::of(output);
        let demo = watched.agent == super::request::DEMO;
        let answers = match face.is_live() {
            true if demo => Answers::Message("type approve, or deny and why".to_owned()),
            true => Answers::Typed,
            false if demo => Answers::Message(format!("answer with: atoll send {} approve", watched.sandbox)),
            false => Answers::Command,
        };
        Self {
            watched,
            output,
            story: Story::new(answers),
            face,
            orders: Orders::start(Arc::clone(client), watched.sandbox),
            leaving: Leaving::default(),
            began,
            told: Vec::new(),
            lost: false,
            recovering: None,
            quiet: None,
            left: None,
        }
    }

    /// Until the end, or until somebody leaves.
    pub async fn run(mut self, client: &Arc<Client>, signals: &mut Signals) -> Result<Seen> {
        let mut log = follow(client, self.watched.sandbox);
        let mut tick = tokio::time::interval(TICK);
        loop {
            if log.is_empty() {
                self.draw()?;
            }
            if let Some(left) = self.left {
                self.draw()?;
                let interrupted = self.leaving != Leaving::Staying;
                self.face.leave()?;
                return Ok(Seen { left, story: self.story, interrupted });
            }
            let quiet = self.quiet;
            tokio::select! {
                Some(heard) = log.recv() => self.hear(heard?)?,
                pressed = self.face.asked() => self.pressed(pressed),
                answer = self.orders.answer() => self.answered(answer),
                caught = signals.next() => self.signalled(caught),
                () = until(quiet) => self.left = Some(Left::Ended),
                _ = tick.tick() => {}
            }
        }
    }

    fn draw(&mut self) -> Result {
        let told = std::mem::take(&mut self.told);
        let sandbox = self.watched.sandbox.to_string();
        let status = Status {
            story: &self.story,
            sandbox: &sandbox,
            elapsed: self.began.elapsed(),
            lost: self.lost,
            notice: self.leaving.notice(&self.story.doing),
        };
        self.face.draw(&told, status, self.output)
    }

    fn hear(&mut self, heard: Heard) -> Result {
        match heard {
            Heard::Event(entry) => self.take(&entry)?,
            Heard::Truncated { first_seq } => {
                self.told.push(Told::warning(&format!("events before {first_seq} are no longer kept")));
            }
            Heard::Lost(why) => {
                if !std::mem::replace(&mut self.lost, true) && !self.face.is_live() {
                    self.output.note(&format!("{why}; trying again, nothing will be missed"));
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, entry: &Entry) -> Result {
        self.lost = false;
        self.face.event(entry, self.output)?;
        let told = self.story.take(entry);
        self.told.extend(told);
        match entry.event_type.as_str() {
            "sandbox.completed" | "sandbox.failed" => self.ended(),
            // Its results are being taken out after all.
            "sandbox.completing" => self.quiet = None,
            "agent.started" => self.leaving.stay(),
            // Nobody can say what to do instead.
            "agent.interrupted" if !self.face.is_live() && self.leaving == Leaving::Interrupted => {
                self.leaving = Leaving::Stopping;
                self.stop();
            }
            "agent.waiting" if self.watched.keep && !self.face.is_live() => self.left = Some(Left::Kept),
            _ => {}
        }
        if self.quiet.is_some() {
            self.quiet = Some(Instant::now() + QUIET);
        }
        Ok(())
    }

    fn ended(&mut self) {
        let failed = self.story.end.as_ref().is_some_and(|end| end.state == "failed");
        if failed && self.watched.repo && self.story.ran && self.story.branch.is_none() && self.recovering.is_none() {
            self.recovering = Some(false);
            self.orders.give(Order::Results);
        }
        if self.recovering != Some(false) {
            self.quiet = Some(Instant::now() + QUIET);
        }
    }

    fn pressed(&mut self, pressed: Pressed) {
        match pressed {
            Pressed::Asked(Asked::Send(text)) => {
                self.leaving.stay();
                let word = self.story.asked().and_then(|asked| Some((asked.approval_id.clone(), asked.word(&text)?)));
                self.orders.give(match word {
                    Some((approval_id, word)) => Order::Answer { approval_id, word, typed: text },
                    None => Order::Say(text),
                });
            }
            Pressed::Asked(Asked::Interrupt) => self.press(),
            Pressed::Asked(Asked::Finish) => match self.story.doing {
                Doing::Waiting => {
                    self.stop();
                }
                Doing::Making | Doing::Starting | Doing::Working | Doing::Tool(_) | Doing::Asking => {
                    self.told.push(Told::fact("the agent is at work: Ctrl-C interrupts it"));
                }
                Doing::TakingResults | Doing::Ended => {}
            },
            Pressed::Edited => {}
        }
    }

    fn signalled(&mut self, caught: Caught) {
        if caught == Caught::Interrupt {
            return self.press();
        }
        // Whoever ends this program does not mean the agent alone.
        if self.watched.inside && self.leaving != Leaving::Stopping {
            self.leaving = Leaving::Stopping;
            self.stop();
        } else {
            self.left = Some(if self.watched.inside { Left::Aborted } else { Left::Running });
        }
    }

    fn press(&mut self) {
        let standing = Standing { at_work: self.story.is_at_work(), inside: self.watched.inside };
        match self.leaving.press(standing) {
            Step::InterruptAgent => {
                self.orders.give(Order::Interrupt);
                if !self.face.is_live() {
                    self.output.note("interrupting; Ctrl-C again leaves");
                }
            }
            Step::Stop => self.stop(),
            Step::GoAway => self.left = Some(Left::Running),
            Step::Abort => self.left = Some(Left::Aborted),
        }
    }

    /// With a repository the work until then is wanted.
    fn stop(&self) {
        self.orders.give(Order::Stop { take: self.watched.repo && self.story.ran });
    }

    fn answered(&mut self, (order, done): Answer) {
        let failed = done.as_ref().err().map(|failure| refused(&order, failure));
        if let Some(words) = failed {
            self.told.push(Told::failure(&words));
        }
        match (order, done) {
            (Order::Say(text) | Order::Answer { typed: text, .. }, Err(_)) => self.face.put_back(text),
            (Order::Results, done) => {
                if let (Ok(answer), None) = (done, &self.story.branch) {
                    self.story.branch = taken(&answer);
                }
                self.recovering = Some(true);
                self.quiet = Some(Instant::now() + QUIET);
            }
            (Order::Stop { .. }, Err(_)) if self.leaving == Leaving::Stopping => self.left = Some(Left::Aborted),
            (Order::Say(_) | Order::Answer { .. } | Order::Interrupt | Order::Stop { .. }, _) => {}
        }
    }
}

/// The branch in an answer about results.
fn taken(answer: &serde_json::Value) -> Option<Branch> {
    let taken = answer["taken"].as_array()?.iter().find(|taken| taken["kind"] == "branch")?;
    Some(Branch {
        name: taken["branch"].as_str()?.to_owned(),
        base: None,
        commits: None,
        repo: taken["repo"].as_str().map(str::to_owned),
        files: Vec::new(),
        flagged: Vec::new(),
    })
}

/// The log as it grows, in a task of its own: connecting again takes longer than the clock's tick,
/// and must not begin anew with each.
fn follow(client: &Arc<Client>, sandbox: SandboxId) -> mpsc::Receiver<Result<Heard>> {
    let (sender, log) = mpsc::channel(BACKLOG);
    let client = Arc::clone(client);
    tokio::spawn(async move {
        let mut follow = Follow::new(&client, sandbox, &[], 0);
        loop {
            let heard = tokio::select! {
                heard = follow.next() => heard,
                () = sender.closed() => return,
            };
            let over = heard.is_err();
            if sender.send(heard).await.is_err() || over {
                return;
            }
        }
    });
    log
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
