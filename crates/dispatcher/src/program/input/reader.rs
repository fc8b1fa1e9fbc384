//! Reads stdin on its own thread: the read cannot be cancelled.

use super::{Item, LineSplitter, parse_line};
use atoll_core::time::{Clock, SystemClock};
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Size of a pipe's buffer.
const CHUNK_BYTES: usize = 64 * 1024;
/// Back-pressure limit: stop reading at this many unhandled chunks.
const MAX_WAITING_CHUNKS: usize = 4;

#[derive(Debug)]
pub enum Read {
    Items(Vec<Item>),
    /// The input has ended, with the error if reading failed.
    Ended(Option<std::io::Error>),
}

pub fn start_reader(input: impl std::io::Read + Send + 'static) -> std::io::Result<Receiver<Read>> {
    let (sender, receiver) = channel(MAX_WAITING_CHUNKS);
    std::thread::Builder::new().name("stdin".into()).spawn(move || read_all(input, &sender))?;
    Ok(receiver)
}

fn read_all(mut input: impl std::io::Read, sender: &Sender<Read>) {
    let clock = SystemClock::start();
    let mut chunk = vec![0; CHUNK_BYTES];
    let mut lines = LineSplitter::default();
    loop {
        let read = input.read(&mut chunk);
        let now = clock.now();
        let mut items = Vec::new();
        let ended = match read {
            Ok(0) => Some(None),
            Ok(length) => {
                lines.push(&chunk[..length], |line| items.extend(parse_line(&line, now)));
                None
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => None,
            Err(error) => Some(Some(error)),
        };
        if ended.is_some() {
            lines.finish(|line| items.extend(parse_line(&line, now)));
        }
        if !items.is_empty() && sender.blocking_send(Read::Items(items)).is_err() {
            return;
        }
        if let Some(error) = ended {
            // Sending fails only while the worker exits.
            drop(sender.blocking_send(Read::Ended(error)));
            return;
        }
    }
}
