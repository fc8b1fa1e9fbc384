//! This terminal in raw mode, relayed to a terminal in a sandbox.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use tokio::sync::mpsc;

/// Interval at which the key reader checks for its end.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
const CHUNK_BYTES: usize = 4096;
/// Limit on chunks that are not sent yet.
const MAX_BUFFERED_CHUNKS: usize = 64;
/// For terminals that do not report a size.
const DEFAULT_SIZE: (u16, u16) = (80, 24);

/// Input from the keyboard.
#[derive(Debug)]
pub enum KeyInput {
    Keys(Vec<u8>),
    /// The end of the input.
    Closed,
}

pub struct Keyboard {
    /// The terminal's original modes; `None` if stdin is not a terminal.
    before: Option<Termios>,
    typed: mpsc::Receiver<KeyInput>,
    stop: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Keyboard {
    pub fn open() -> io::Result<Self> {
        let before = if io::stdin().is_terminal() { Some(tcgetattr(io::stdin())?) } else { None };
        let (sender, typed) = mpsc::channel(MAX_BUFFERED_CHUNKS);
        let stop = Arc::new(AtomicBool::new(false));
        let reader_stop = Arc::clone(&stop);
        // From here on, dropping it restores the terminal.
        let mut keyboard = Self { before, typed, stop, reader: None };
        if let Some(before) = &keyboard.before {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(io::stdin(), OptionalActions::Flush, &raw)?;
        }
        let read = move || read_keys(&sender, &reader_stop);
        keyboard.reader = Some(std::thread::Builder::new().name("keys".to_owned()).spawn(read)?);
        Ok(keyboard)
    }

    pub const fn is_terminal(&self) -> bool {
        self.before.is_some()
    }

    pub async fn next(&mut self) -> KeyInput {
        self.typed.recv().await.unwrap_or(KeyInput::Closed)
    }
}

impl Drop for Keyboard {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.typed.close();
        if let Some(before) = &self.before {
            // Nothing can be done if this fails.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
        if let Some(reader) = self.reader.take() {
            drop(reader.join());
        }
    }
}

fn read_keys(sender: &mpsc::Sender<KeyInput>, stop: &AtomicBool) {
    let mut chunk = vec![0; CHUNK_BYTES];
    while !stop.load(Ordering::Relaxed) {
        let mut watched = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::IN)];
        match poll(&mut watched, Some(&POLL_INTERVAL)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(_) => break,
        }
        let keys = match rustix::io::read(rustix::stdio::stdin(), &mut chunk[..]) {
            Ok(length) if length > 0 => chunk.iter().take(length).copied().collect(),
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Ok(_) | Err(_) => break,
        };
        if sender.blocking_send(KeyInput::Keys(keys)).is_err() {
            return;
        }
    }
    drop(sender.blocking_send(KeyInput::Closed));
}

/// This terminal's columns and rows.
pub fn terminal_size() -> (u16, u16) {
    let of_output = tcgetwinsize(io::stdout()).or_else(|_| tcgetwinsize(io::stdin()));
    let size = of_output.ok().map(|size| (size.ws_col, size.ws_row));
    size.filter(|(columns, rows)| *columns > 0 && *rows > 0).map_or(DEFAULT_SIZE, |(columns, rows)| {
        // The server's limit.
        (columns.min(1000), rows.min(1000))
    })
}

pub fn write_stdout(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
