//! The live view: a terminal that shows what happens and takes what one types.

pub mod bottom;
mod frame;
pub mod input;

use crate::output::Output;
use crate::run::told::Told;
use bottom::{Bottom, Status, bottom};
use crossterm::event::{DisableBracketedPaste, EnableBracketedPaste, Event};
use crossterm::{cursor, execute, terminal};
use frame::{Drawn, frame};
use input::{Asked, Input};
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

/// How long the keys' thread sleeps at most before it sees that it should go, or another size.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Where a terminal does not say how large it is.
const ORDINARY: (u16, u16) = (80, 24);

/// A terminal in its raw state; dropping it puts everything back.
pub struct Terminal {
    pub input: Input,
    colour: bool,
    size: (u16, u16),
    drawn: Drawn,
    /// What the bottom shows, and in which size.
    shown: Option<(Bottom, (u16, u16))>,
    keys: mpsc::UnboundedReceiver<Event>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

/// Whether somebody sits there: a terminal that can draw, and this program is in front.
pub fn somebody_is_there(output: &Output) -> bool {
    let dumb = std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb");
    let in_front = rustix::termios::tcgetpgrp(io::stdout()).is_ok_and(|group| group == rustix::process::getpgrp());
    !output.json && !dumb && io::stdout().is_terminal() && in_front
}

impl Terminal {
    pub fn enter(output: &Output) -> io::Result<Self> {
        restore_on_panic();
        terminal::enable_raw_mode()?;
        // From here on dropping restores.
        let (sender, keys) = mpsc::unbounded_channel();
        let stop = Arc::new(AtomicBool::new(false));
        let size = terminal::size().ok().filter(|(columns, rows)| *columns > 0 && *rows > 0).unwrap_or(ORDINARY);
        let mut entered = Self {
            input: Input::default(),
            colour: output.colour,
            size,
            drawn: Drawn::default(),
            shown: None,
            keys,
            stop: Arc::clone(&stop),
            reader: None,
        };
        execute!(io::stdout(), EnableBracketedPaste)?;
        let keyboard = keyboard()?;
        let read = move || read_keys(&keyboard, &sender, &stop);
        entered.reader = Some(std::thread::Builder::new().name("keys".to_owned()).spawn(read)?);
        Ok(entered)
    }

    /// Lets the finished steps scroll by and draws the bottom anew.
    pub fn draw(&mut self, finished: &[Told], status: Status<'_>) -> io::Result<()> {
        let (columns, rows) = (usize::from(self.size.0), usize::from(self.size.1));
        let bottom = bottom(status, &self.input, columns, rows);
        if finished.is_empty() && self.shown.as_ref() == Some(&(bottom.clone(), self.size)) {
            return Ok(());
        }
        let lines: Vec<_> = finished.iter().flat_map(|told| told.lines(Some(columns))).collect();
        let (bytes, drawn) = frame(&self.drawn, &lines, Some(&bottom), columns, self.colour)?;
        self.drawn = drawn;
        self.shown = Some((bottom, self.size));
        write_all(&bytes)
    }

    /// The next thing that a person asks for; editing is done here.
    pub async fn asked(&mut self) -> Option<Pressed> {
        let event = self.keys.recv().await?;
        Some(match event {
            Event::Key(key) => self.input.key(key).map_or(Pressed::Edited, Pressed::Asked),
            Event::Paste(text) => {
                self.input.insert(&text.replace("\r\n", "\n").replace('\r', "\n"));
                Pressed::Edited
            }
            Event::Resize(columns, rows) => {
                self.size = (columns.max(1), rows.max(1));
                Pressed::Edited
            }
            Event::FocusGained | Event::FocusLost | Event::Mouse(_) => Pressed::Edited,
        })
    }

    /// Takes the bottom away and gives the terminal back.
    pub fn leave(mut self) -> io::Result<()> {
        let (bytes, drawn) = frame(&self.drawn, &[], None, usize::from(self.size.0), self.colour)?;
        self.drawn = drawn;
        write_all(&bytes)
    }
}

pub enum Pressed {
    Asked(Asked),
    /// Only the bottom changes.
    Edited,
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Ok(bytes) = frame::below(&self.drawn) {
            drop(write_all(&bytes));
        }
        restore();
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

/// Nothing more can be done where it fails.
fn restore() {
    drop(execute!(io::stdout(), DisableBracketedPaste, terminal::EnableLineWrap, cursor::Show));
    drop(terminal::disable_raw_mode());
}

/// A panic's words must not stand on a raw terminal, and its user wants it back.
fn restore_on_panic() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if terminal::is_raw_mode_enabled().unwrap_or(false) {
                restore();
            }
            before(panic);
        }));
    });
}

/// Where keys come from: the input if it is the terminal, else the terminal itself.
fn keyboard() -> io::Result<OwnedFd> {
    if io::stdin().is_terminal() {
        return Ok(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 0)?);
    }
    Ok(File::open("/dev/tty")?.into())
}

/// Waits by itself, because a terminal that is gone makes the library read it for ever.
fn read_keys(keyboard: &OwnedFd, sender: &mpsc::UnboundedSender<Event>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let mut watched = [PollFd::new(keyboard, PollFlags::IN)];
        let waited = poll(&mut watched, Some(&GLANCE));
        let gone = watched[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        if gone || !matches!(waited, Ok(_) | Err(Errno::INTR)) {
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
