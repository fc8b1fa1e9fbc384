//! A session with a terminal in a sandbox; reconnects after lost connections.

use super::keyboard::{self, KeyInput, Keyboard, write_stdout};
use super::modes::TerminalModes;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::render::text;
use crate::run::signals::{CaughtSignal, Signals};
use atoll_api::{ErrorCode, TerminalFrame, TerminalQuery, TerminalSize};
use atoll_client::{TerminalItem, TerminalSocket};
use atoll_core::id::SandboxId;
use atoll_core::provider::CommandExit;
use std::io::{IsTerminal, Write};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::Instant;

/// Ctrl-], like telnet.
const DETACH_KEY: u8 = 0x1d;
/// Ctrl-D, which ends the input of line-oriented programs.
const END_OF_INPUT: u8 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// Discards input for this long after replayed output: this terminal replies to queries in it that are long answered.
const REPLY_GRACE: Duration = Duration::from_millis(200);

pub struct ShellSession<'a> {
    pub client: &'a ConnectedClient,
    pub sandbox: SandboxId,
    /// Set when the terminal is open.
    pub exec: Option<String>,
    /// Working directory of a new terminal.
    cwd: Option<String>,
    cursor: u64,
    modes: TerminalModes,
    /// The session attaches to an existing terminal, whose first output is a replay.
    is_existing: bool,
    /// The end of the replayed output; input before it is discarded.
    replay_until: u64,
    discard_until: Option<Instant>,
    has_greeted: bool,
}

/// The reason why a connection ended.
enum ConnectionEnd {
    Ended(CommandExit),
    Detached,
    Terminated,
    Lost(String),
}

impl<'a> ShellSession<'a> {
    pub fn new(client: &'a ConnectedClient, sandbox: SandboxId, exec: Option<String>, cwd: Option<String>) -> Self {
        let (cursor, modes) = (0, TerminalModes::default());
        Self {
            client,
            sandbox,
            exec,
            cwd,
            cursor,
            modes,
            is_existing: false,
            replay_until: 0,
            discard_until: None,
            has_greeted: false,
        }
    }

    /// Marks the terminal as an existing one.
    pub fn existing(self) -> Self {
        Self { is_existing: true, ..self }
    }

    /// Runs until the terminal ends, and returns its exit, or until the user detaches.
    pub async fn run(mut self) -> Result<Option<CommandExit>> {
        let mut signals = Signals::listen()?;
        let resized = signal(SignalKind::window_change());
        let mut resized =
            resized.map_err(|error| Failure::setup("signals", format!("cannot install signal handlers: {error}")))?;
        // Connect before changing this terminal, so that an error prints normally.
        let mut terminal = Some(self.connect().await.map_err(|error| self.connect_failure(error))?);
        let mut keyboard = Keyboard::open()?;
        let mut pause = FIRST_PAUSE;
        let outcome = loop {
            let then = match terminal.take() {
                Some(mut open) => {
                    let then = self.relay(&mut open, &mut keyboard, &mut signals, &mut resized).await?;
                    if !matches!(then, ConnectionEnd::Lost(_)) {
                        open.close().await;
                    }
                    then
                }
                None => ConnectionEnd::Lost(String::new()),
            };
            match then {
                ConnectionEnd::Ended(exit) => break Ok(Some(exit)),
                ConnectionEnd::Detached => break Ok(None),
                ConnectionEnd::Terminated => break Err(Failure::interrupted()),
                ConnectionEnd::Lost(why) if !why.is_empty() => {
                    print_raw_note(&format!("{why}; reconnecting (Ctrl-] gives up)"));
                    pause = FIRST_PAUSE;
                }
                ConnectionEnd::Lost(_) => {}
            }
            if !wait_to_reconnect(pause, &mut keyboard, &mut signals).await {
                break Ok(None);
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
            match self.connect().await {
                Ok(open) => {
                    print_raw_note("reconnected");
                    terminal = Some(open);
                }
                Err(error) if error.is_transient() => {}
                Err(error) => break Err(self.connect_failure(error)),
            }
        };
        if std::io::stdout().is_terminal() {
            write_stdout(&self.modes.reset_sequence())?;
        }
        drop(keyboard);
        if let (Ok(None), Some(exec)) = (&outcome, &self.exec) {
            let back = format!("atoll sandbox shell {} --exec {exec}", self.sandbox);
            crate::output::print_note(&format!("atoll: detached; `{back}` attaches again"));
        }
        outcome
    }

    async fn connect(&self) -> atoll_client::Result<TerminalSocket> {
        let (columns, rows) = keyboard::terminal_size();
        let mut query = TerminalQuery { cols: Some(columns), rows: Some(rows), ..TerminalQuery::default() };
        match &self.exec {
            Some(exec) => (query.exec, query.cursor) = (Some(exec.clone()), Some(self.cursor)),
            None => query.cwd = self.cwd.clone(),
        }
        self.client.open_terminal(self.sandbox, &query).await
    }

    /// Adds a hint if the terminal to attach to is gone.
    fn connect_failure(&self, error: atoll_client::Error) -> Failure {
        let is_gone = error.code() == Some(ErrorCode::NotFound) && self.exec.is_some();
        let failure = Failure::from(error);
        if is_gone {
            return failure.with_hint(format!("Open a new one with `atoll sandbox shell {}`.", self.sandbox));
        }
        failure
    }

    async fn relay(
        &mut self,
        terminal: &mut TerminalSocket,
        keyboard: &mut Keyboard,
        signals: &mut Signals,
        resized: &mut Signal,
    ) -> Result<ConnectionEnd> {
        let mut listening = true;
        loop {
            tokio::select! {
                item = terminal.next() => match item? {
                    TerminalItem::Output(bytes) => self.show_output(&bytes)?,
                    TerminalItem::Frame(frame) => if let Some(then) = self.handle_control(frame) {
                        return Ok(then);
                    },
                    TerminalItem::Disconnected { cause } => return Ok(ConnectionEnd::Lost(cause.to_owned())),
                },
                typed = keyboard.next(), if listening => match typed {
                    KeyInput::Keys(keys) => {
                        let (before, left) = split_at_detach(keys);
                        if !before.is_empty() && !self.discards_input() {
                            terminal.type_input(before).await;
                        }
                        if left && keyboard.is_terminal() {
                            return Ok(ConnectionEnd::Detached);
                        }
                    }
                    // This terminal is closed; the end of a file or pipe is only the end of the input.
                    KeyInput::Closed if keyboard.is_terminal() => return Ok(ConnectionEnd::Detached),
                    KeyInput::Closed => {
                        listening = false;
                        terminal.type_input(vec![END_OF_INPUT]).await;
                    }
                },
                _ = resized.recv() => drop(terminal.resize(current_size()).await),
                caught = signals.next() => match caught {
                    // SIGINT from another process: Ctrl-C itself arrives as a byte.
                    CaughtSignal::Interrupt { .. } => drop(terminal.type_input(vec![3]).await),
                    CaughtSignal::Terminate | CaughtSignal::Hangup => return Ok(ConnectionEnd::Terminated),
                },
            }
        }
    }

    fn show_output(&mut self, bytes: &[u8]) -> Result {
        self.modes.observe(bytes);
        write_stdout(bytes)?;
        self.cursor += bytes.len() as u64;
        if self.cursor >= self.replay_until && self.replay_until > 0 {
            self.replay_until = 0;
            self.discard_until = Some(Instant::now() + REPLY_GRACE);
        }
        Ok(())
    }

    fn discards_input(&self) -> bool {
        self.replay_until > 0 || self.discard_until.is_some_and(|until| Instant::now() < until)
    }

    fn handle_control(&mut self, frame: TerminalFrame) -> Option<ConnectionEnd> {
        match frame {
            TerminalFrame::Opened { exec, cursor, until, may_type } => {
                self.exec = Some(exec);
                self.cursor = cursor;
                // Output after a reconnect is new to this terminal.
                let is_replay = std::mem::take(&mut self.is_existing) && until > self.cursor;
                self.replay_until = if is_replay { until } else { 0 };
                if !std::mem::replace(&mut self.has_greeted, true) {
                    let mode = if may_type { "" } else { "read-only; " };
                    print_raw_note(&format!("{mode}Ctrl-] detaches"));
                }
            }
            TerminalFrame::Gap { cursor } => {
                self.cursor = cursor;
                print_raw_note("some output is lost");
            }
            TerminalFrame::Exit { exit } => return Some(ConnectionEnd::Ended(exit)),
            TerminalFrame::Problem { code, detail } => {
                if code == ErrorCode::ShuttingDown.as_str() {
                    return Some(ConnectionEnd::Lost(detail));
                }
                print_raw_note(&detail);
            }
            TerminalFrame::Unknown => {}
        }
        None
    }
}

fn current_size() -> TerminalSize {
    let (cols, rows) = keyboard::terminal_size();
    TerminalSize { cols, rows }
}

/// Prints a note on a line of its own; a raw terminal needs explicit carriage returns.
fn print_raw_note(sentence: &str) {
    let sentence = text::escape_line(sentence);
    drop(write!(std::io::stderr().lock(), "\r[atoll: {sentence}]\r\n"));
}

/// Waits before a reconnect; returns `false` if the user gives up.
async fn wait_to_reconnect(pause: Duration, keyboard: &mut Keyboard, signals: &mut Signals) -> bool {
    let deadline = Instant::now() + pause;
    loop {
        tokio::select! {
            () = tokio::time::sleep_until(deadline) => return true,
            typed = keyboard.next(), if keyboard.is_terminal() => match typed {
                KeyInput::Keys(keys) if !keys.contains(&DETACH_KEY) => {}
                KeyInput::Keys(_) | KeyInput::Closed => return false,
            },
            _ = signals.next() => return false,
        }
    }
}

/// The keys before the detach key, and whether it was pressed.
fn split_at_detach(mut keys: Vec<u8>) -> (Vec<u8>, bool) {
    match keys.iter().position(|key| *key == DETACH_KEY) {
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
    fn the_detach_key_splits_the_input() {
        assert_eq!(split_at_detach(b"ls\r".to_vec()), (b"ls\r".to_vec(), false));
        assert_eq!(split_at_detach(b"ls\x1dmore".to_vec()), (b"ls".to_vec(), true));
        assert_eq!(split_at_detach(vec![DETACH_KEY]), (vec![], true));
    }
}
