//! One person at a terminal in a sandbox, through lost connections.

use super::keyboard::{self, Keyboard, Typed, show};
use super::modes::Modes;
use crate::client::Client;
use crate::client::follow::passes;
use crate::client::terminal::{Shown, Terminal};
use crate::failure::{Failure, Result};
use crate::render::text;
use crate::run::signals::{Caught, Signals};
use atoll_core::id::SandboxId;
use serde_json::Value;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Ctrl-], as in other programs that show a terminal somewhere else.
const LEAVE: u8 = 0x1d;
/// Ctrl-D: what ends the input of whoever reads lines.
const END: u8 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// After old output: this terminal answers the questions in it, and nobody waits for the answers any more.
const ECHO: Duration = Duration::from_millis(200);

pub struct Session<'a> {
    pub client: &'a Client,
    pub sandbox: SandboxId,
    /// Known when it is opened.
    pub exec: Option<String>,
    /// For a new one.
    pub more: Vec<(&'static str, String)>,
    cursor: u64,
    modes: Modes,
    /// What it shows first is from before: others have answered it.
    is_old: bool,
    /// Up to here it is, and until then nothing is typed.
    old_until: u64,
    deaf_until: Option<Instant>,
    said: bool,
}

/// How it went on.
enum Then {
    Ended(Value),
    Left,
    Killed,
    Lost(String),
}

impl<'a> Session<'a> {
    pub fn new(
        client: &'a Client,
        sandbox: SandboxId,
        exec: Option<String>,
        more: Vec<(&'static str, String)>,
    ) -> Self {
        let (cursor, modes) = (0, Modes::default());
        Self { client, sandbox, exec, more, cursor, modes, is_old: false, old_until: 0, deaf_until: None, said: false }
    }

    /// One that was there before.
    pub fn old(self) -> Self {
        Self { is_old: true, ..self }
    }

    /// To the end of the terminal, which it gives, or until one leaves.
    pub async fn run(mut self) -> Result<Option<Value>> {
        let mut signals = Signals::listen()?;
        let resized = signal(SignalKind::window_change());
        let mut resized =
            resized.map_err(|error| Failure::setup("signals", format!("can't hear of sizes: {error}")))?;
        // Refusals come before anything is changed here.
        let mut terminal = Some(self.connect().await?);
        let mut keyboard = Keyboard::take()?;
        let mut pause = FIRST_PAUSE;
        let outcome = loop {
            let then = match terminal.take() {
                Some(mut open) => {
                    let then = self.talk(&mut open, &mut keyboard, &mut signals, &mut resized).await?;
                    if !matches!(then, Then::Lost(_)) {
                        open.close().await;
                    }
                    then
                }
                None => Then::Lost(String::new()),
            };
            match then {
                Then::Ended(exit) => break Ok(Some(exit)),
                Then::Left => break Ok(None),
                Then::Killed => break Err(Failure::interrupted()),
                Then::Lost(why) if !why.is_empty() => {
                    self.note(&format!("{why}; trying again (Ctrl-] gives up)"));
                    pause = FIRST_PAUSE;
                }
                Then::Lost(_) => {}
            }
            if !wait(pause, &mut keyboard, &mut signals).await {
                break Ok(None);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.connect().await {
                Ok(open) => {
                    self.note("connected again");
                    terminal = Some(open);
                }
                Err(failure) if passes(&failure) => {}
                Err(failure) => break Err(failure),
            }
        };
        if std::io::stdout().is_terminal() {
            show(&self.modes.undo())?;
        }
        drop(keyboard);
        if let (Ok(None), Some(exec)) = (&outcome, &self.exec) {
            let back = format!("atoll sandbox shell {} --exec {exec}", self.sandbox);
            crate::output::note(&format!("atoll: left the terminal; it waits a while, and `{back}` comes back"));
        }
        outcome
    }

    async fn connect(&self) -> Result<Terminal> {
        let (columns, rows) = keyboard::size();
        let mut query = vec![("cols", columns.to_string()), ("rows", rows.to_string())];
        match &self.exec {
            Some(exec) => query.extend([("exec", exec.clone()), ("cursor", self.cursor.to_string())]),
            None => query.extend(self.more.iter().cloned()),
        }
        self.client.terminal(self.sandbox, &query).await.map_err(|failure| match &failure {
            Failure::Told(told) if told.code == "not_found" && self.exec.is_some() => {
                failure.next(format!("`atoll sandbox shell {}` opens a new one.", self.sandbox))
            }
            _ => failure,
        })
    }

    async fn talk(
        &mut self,
        terminal: &mut Terminal,
        keyboard: &mut Keyboard,
        signals: &mut Signals,
        resized: &mut Signal,
    ) -> Result<Then> {
        let mut listening = true;
        loop {
            tokio::select! {
                shown = terminal.next() => match shown {
                    Shown::Bytes(bytes) => self.show(&bytes)?,
                    Shown::Word(word) => if let Some(then) = self.hear(&word) {
                        return Ok(then);
                    },
                    Shown::Lost(why) => return Ok(Then::Lost(why.to_owned())),
                },
                typed = keyboard.next(), if listening => match typed {
                    Typed::Keys(keys) => {
                        let (before, left) = until_leave(keys);
                        if !before.is_empty() && !self.is_deaf() {
                            terminal.press(before).await;
                        }
                        if left && keyboard.is_terminal() {
                            return Ok(Then::Left);
                        }
                    }
                    // This terminal is gone; a file or a pipe has only ended.
                    Typed::End if keyboard.is_terminal() => return Ok(Then::Left),
                    Typed::End => {
                        listening = false;
                        terminal.press(vec![END]).await;
                    }
                },
                _ = resized.recv() => drop(terminal.resize(keyboard::size()).await),
                caught = signals.next() => match caught {
                    // From somebody else: the key itself comes as a byte.
                    Caught::Interrupt => drop(terminal.press(vec![3]).await),
                    Caught::End => return Ok(Then::Killed),
                },
            }
        }
    }

    fn show(&mut self, bytes: &[u8]) -> Result {
        self.modes.watch(bytes);
        show(bytes)?;
        self.cursor += bytes.len() as u64;
        if self.cursor >= self.old_until && self.old_until > 0 {
            self.old_until = 0;
            self.deaf_until = Some(Instant::now() + ECHO);
        }
        Ok(())
    }

    fn is_deaf(&self) -> bool {
        self.old_until > 0 || self.deaf_until.is_some_and(|until| Instant::now() < until)
    }

    fn hear(&mut self, word: &Value) -> Option<Then> {
        let cursor = || word["cursor"].as_u64();
        match word["type"].as_str() {
            Some("opened") => {
                self.exec = word["exec"].as_str().map(str::to_owned).or(self.exec.take());
                self.cursor = cursor().unwrap_or(self.cursor);
                let until = word["until"].as_u64().unwrap_or(0);
                // What it missed in between, when it connects again, is new to this terminal.
                let is_old = std::mem::take(&mut self.is_old) && until > self.cursor;
                self.old_until = if is_old { until } else { 0 };
                if !std::mem::replace(&mut self.said, true) {
                    let how = if word["may_type"] == false { "you may look, not type; " } else { "" };
                    self.note(&format!("{how}Ctrl-] leaves the terminal, which goes on"));
                }
            }
            Some("gap") => {
                self.cursor = cursor().unwrap_or(self.cursor);
                self.note("some output is no longer kept");
            }
            Some("exit") => return Some(Then::Ended(word["exit"].clone())),
            Some("problem") => {
                let detail = word["detail"].as_str().unwrap_or("refused");
                if word["code"] == "shutting_down" {
                    return Some(Then::Lost(detail.to_owned()));
                }
                self.note(detail);
            }
            _ => {}
        }
        None
    }

    /// A line beside what is shown. This terminal is raw: it goes to the line's beginning only when told.
    #[expect(clippy::unused_self, reason = "only somebody at a terminal is told something this way")]
    fn note(&self, sentence: &str) {
        let sentence = text::inline(sentence);
        drop(write!(std::io::stderr().lock(), "\r[atoll: {sentence}]\r\n"));
    }
}

/// Waits a while; false when one does not want to any more.
async fn wait(pause: Duration, keyboard: &mut Keyboard, signals: &mut Signals) -> bool {
    let over = Instant::now() + pause;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(over) => return true,
            typed = keyboard.next(), if keyboard.is_terminal() => match typed {
                Typed::Keys(keys) if !keys.contains(&LEAVE) => {}
                Typed::Keys(_) | Typed::End => return false,
            },
            _ = signals.next() => return false,
        }
    }
}

/// What was typed before the key that leaves, and whether that was pressed.
fn until_leave(mut keys: Vec<u8>) -> (Vec<u8>, bool) {
    match keys.iter().position(|key| *key == LEAVE) {
        Some(at) => {
            keys.truncate(at);
            (keys, true)
        }
        None => (keys, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_leaves() {
        assert_eq!(until_leave(b"ls\r".to_vec()), (b"ls\r".to_vec(), false));
        assert_eq!(until_leave(b"ls\x1dmore".to_vec()), (b"ls".to_vec(), true));
        assert_eq!(until_leave(vec![LEAVE]), (vec![], true));
    }
}
