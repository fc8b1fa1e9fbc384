//! The live view of a run: shows steps, a status line and an input line.

pub mod footer;
mod frame;
pub mod line_editor;

use crate::output::Output;
use crate::run::step::ViewStep;
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste, Event};
use crossterm::{cursor, execute, terminal};
use footer::{Footer, Status, layout_footer};
use frame::{DrawnFooter, draw_frame};
use line_editor::{EditorAction, LineEditor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::mpsc;

/// Interval at which the key reader checks for its end and for a new terminal size.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// For terminals that do not report a size.
const DEFAULT_SIZE: (u16, u16) = (80, 24);

/// A terminal in raw mode; dropping it restores the terminal.
pub struct Terminal {
    pub input: LineEditor,
    colour: bool,
    size: (u16, u16),
    drawn: DrawnFooter,
    /// The footer on the screen, and the terminal's size at that time.
    last_footer: Option<(Footer, (u16, u16))>,
    keys: mpsc::UnboundedReceiver<Event>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

/// stdout is a capable terminal, and this process is in its foreground process group.
pub fn is_interactive(output: &Output) -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let in_front = rustix::termios::tcgetpgrp(io::stdout()).is_ok_and(|group| group == rustix::process::getpgrp());
    !output.json && !dumb && io::stdout().is_terminal() && in_front
}

impl Terminal {
    pub fn open(output: &Output) -> io::Result<Self> {
        restore_on_panic();
        terminal::enable_raw_mode()?;
        // From here on, dropping it restores the terminal.
        let (sender, keys) = mpsc::unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let size = terminal::size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(DEFAULT_SIZE);
        let mut entered = Self {
            input: LineEditor::default(),
            colour: output.colour,
            size,
            drawn: DrawnFooter::default(),
            last_footer: None,
            keys,
            stop: Arc::clone(&stop),
            reader: None,
        };
        execute!(io::stdout(), EnableBracketedPaste)?;
        let keyboard = open_keyboard()?;
        let read = move || read_keys(&keyboard, &sender, &stop);
        entered.reader = Some(std::thread::Builder::new().name("keys".to_owned()).spawn(read)?);
        Ok(entered)
    }

    /// Prints the finished steps and redraws the footer.
    pub fn draw(&mut self, finished: &[ViewStep], status: Status<'_>) -> io::Result<()> {
        let (columns, rows) = (usize::from(self.size.0), usize::from(self.size.1));
        let bottom = layout_footer(status, &self.input, columns, rows);
        if finished.is_empty() && self.last_footer.as_ref() == Some(&(bottom.clone(), self.size)) {
            return Ok(());
        }
        let lines: Vec<_> = finished.iter().flat_map(|step| step.lines(Some(columns))).collect();
        let (bytes, drawn) = draw_frame(&self.drawn, &lines, Some(&bottom), columns, self.colour)?;
        self.drawn = drawn;
        self.last_footer = Some((bottom, self.size));
        write_all(&bytes)
    }

    /// Waits for the next event and applies edits; `None` after the last.
    pub async fn next_event(&mut self) -> Option<TerminalEvent> {
        let event = self.keys.recv().await?;
        Some(match event {
            Event::Key(key) => self.input.handle_key(key).map_or(TerminalEvent::Edited, TerminalEvent::Action),
            Event::Paste(text) => {
                self.input.insert_text(&text.replace("\r\n", "\n").replace('\r', "\n"));
                TerminalEvent::Edited
            }
            Event::Resize(columns, rows) => {
                self.size = (columns.max(1), rows.max(1));
                TerminalEvent::Edited
            }
            Event::FocusGained | Event::FocusLost | Event::Mouse(_) => TerminalEvent::Edited,
        })
    }

    /// Removes the footer and restores the terminal.
    pub fn close(mut self) -> io::Result<()> {
        let (bytes, drawn) = draw_frame(&self.drawn, &[], None, usize::from(self.size.0), self.colour)?;
        self.drawn = drawn;
        write_all(&bytes)
    }
}

pub enum TerminalEvent {
    Action(EditorAction),
    /// Only the footer changes.
    Edited,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Ok(bytes) = frame::move_below(&self.drawn) {
            drop(write_all(&bytes));
        }
        restore_terminal();
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}

fn write_all(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}

/// Restores the terminal's modes and ignores errors.
fn restore_terminal() {
    drop(execute!(io::stdout(), DisableBracketedPaste, terminal::EnableLineWrap, cursor::Show));
    drop(terminal::disable_raw_mode());
}

/// Restores the terminal before a panic prints its message.
fn restore_on_panic() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if terminal::is_raw_mode_enabled().unwrap_or(false) {
                restore_terminal();
            }
            before(panic);
        }));
    });
}

/// Opens the source of keys: stdin if it is a terminal, otherwise /dev/tty.
fn open_keyboard() -> io::Result<OwnedFd> {
    if io::stdin().is_terminal() {
        return Ok(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0)?);
    }
    Ok(File::open("/dev/tty")?.into())
}

/// Reads keys with its own poll, because crossterm loops forever on a closed terminal.
fn read_keys(keyboard: &OwnedFd, sender: &mpsc::UnboundedSender<Event>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut watched = [PollFd::new(keyboard, PollFlags::IN)];
        let waited = poll(&mut watched, Some(&POLL_INTERVAL));
        let is_closed = watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if is_closed || !matches!(waited, Ok(_) | Err(Errno::INTR)) {
            return;
        }
        while let Ok(true) = crossterm::event::poll(Duration::ZERO) {
            let Ok(event) = crossterm::event::read() else { return };
            if sender.send(event).is_err() {
                return;
            }
        }
    }
}
