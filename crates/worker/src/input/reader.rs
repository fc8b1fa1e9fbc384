//! The thread that reads standard input. A thread, because a read of a pipe can't be taken back.

use super::{Item, Lines, parse};
use atoll_core::time::{Clock, SystemClock};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// What is read at once: a whole pipe's buffer.
const CHUNK: usize = 64 * 1024;
/// How many chunks' items wait before reading stops.
const WAITING: usize = 4;

#[derive(Debug)]
pub enum Read {
    Items(Vec<Item>),
    /// Nothing more will come; with the reason, if it was not the end.
    Ended(Option<std::io::Error>),
}

pub fn start(input: impl std::io::Read + Send + 'static) -> std::io::Result<Receiver<Read>> {
    let (sender, receiver) = channel(WAITING);
    std::thread::Builder::new().name("stdin".into()).spawn(move || read_all(input, &sender))?;
    Ok(receiver)
}

fn read_all(mut input: impl std::io::Read, sender: &Sender<Read>) {
    let clock = SystemClock::start();
    let mut chunk = vec![0; CHUNK];
    let mut lines = Lines::default();
    loop {
        let read = input.read(&mut chunk);
        let now = clock.now();
        let mut items = Vec::new();
        let ended = match read {
            Ok(0) => Some(None),
            Ok(length) => {
                lines.push(&chunk[..length], |line| items.extend(parse(&line, now)));
                None
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => None,
            Err(error) => Some(Some(error)),
        };
        if ended.is_some() {
            lines.end(|line| items.extend(parse(&line, now)));
        }
        if !items.is_empty() && sender.blocking_send(Read::Items(items)).is_err() {
            return;
        }
        if let Some(error) = ended {
            // If nobody listens any more, the worker is going anyway.
            drop(sender.blocking_send(Read::Ended(error)));
            return;
        }
    }
}
