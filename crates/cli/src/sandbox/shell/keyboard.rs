//! This terminal, given over to one in a sandbox: raw, and put back whatever happens.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// How long the thread that reads keys sleeps at most before it sees that it should go.
const GLANCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
const PIECE: usize = 4096;
/// Pieces that wait to be sent; more stay where they come from.
const WAITING: usize = 64;
/// Where a terminal does not say how large it is.
const ORDINARY: (u16, u16) = (80, 24);

/// What is typed.
#[derive(Debug)]
pub enum Typed {
    Keys(Vec<u8>),
    /// Nothing more comes.
    End,
}

pub struct Keyboard {
    /// How the terminal was; none where the input is no terminal.
    before: Option<Termios>,
    typed: mpsc::Receiver<Typed>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Keyboard {
    pub fn take() -> io::Result<Self> {
        let before = if io::stdin().is_terminal() { Some(tcgetattr(io::stdin())?) } else { None };
        let (sender, typed) = mpsc::channel(WAITING);
        let stop = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&stop);
        // From here on dropping restores.
        let mut taken = Self { before, typed, stop, reader: None };
        if let Some(before) = &taken.before {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        }
        let read = move || read_keys(&sender, &seen);
        taken.reader = Some(std::thread::Builder::new().name("keys".to_owned()).spawn(read)?);
        Ok(taken)
    }

    pub const fn is_terminal(&self) -> bool {
        self.before.is_some()
    }

    pub async fn next(&mut self) -> Typed {
        self.typed.recv().await.unwrap_or(Typed::End)
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.typed.close();
        if let Some(before) = &self.before {
            // Nothing more can be done where it fails.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}

fn read_keys(sender: &mpsc::Sender<Typed>, stop: &AtomicBool) {
    let mut piece = vec![0; PIECE];
    while !stop.load(Ordering::Relaxed) {
        let mut watched = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        match poll(&mut watched, Some(&GLANCE)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => break,
        }
        let keys = match rustix::io::read(rustix::stdio::stdin(), &mut piece[..]) {
            Ok(length) if length > 0 => piece.iter().take(length).copied().collect(),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Ok(_) | Err(_) => break,
        };
        if sender.blocking_send(Typed::Keys(keys)).is_err() {
            return;
        }
    }
    drop(sender.blocking_send(Typed::End));
}

/// Columns and rows of this terminal.
pub fn size() -> (u16, u16) {
    let of_output = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin()));
    let size = of_output.ok().map(|size| (size.ws_col, size.ws_row));
    size.filter(|(columns, rows)| *columns > 0 && *rows > 0).map_or(ORDINARY, |(columns, rows)| {
        // The server takes no larger one.
        (columns.min(1000), rows.min(1000))
    })
}

pub fn show(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
