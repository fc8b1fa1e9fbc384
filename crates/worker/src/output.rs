//! Stdout. A thread of its own writes, so that a program that does not read its lines holds up
//! nothing but its own intake.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::Notify;

/// Above this much unread output, no more input is taken.
const ENOUGH: usize = 256 * 1024;

#[derive(Debug)]
pub struct Output {
    lines: Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    written: Arc<Notify>,
}

impl Output {
    pub fn start(writer: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::new(Notify::new());
        let (count, notify) = (Arc::clone(&waiting), Arc::clone(&written));
        std::thread::Builder::new().name("stdout".into()).spawn(move || write_all(writer, &queue, &count, &notify))?;
        Ok(Self { lines, waiting, written })
    }

    /// One JSON value as one line.
    pub fn say(&self, value: &serde_json::Value) {
        let mut line = value.to_string().into_bytes();
        line.push(b'\n');
        self.push(line);
    }

    pub fn keys(&self, keys: std::ops::RangeInclusive<i64>) {
        let mut lines = Vec::new();
        for key in keys {
            lines.extend_from_slice(b"{\"key\":");
            lines.extend_from_slice(key.to_string().as_bytes());
            lines.extend_from_slice(b"}\n");
        }
        self.push(lines);
    }

    fn push(&self, lines: Vec<u8>) {
        self.waiting.fetch_add(lines.len(), Ordering::Relaxed);
        // The thread ends only with the process; if it could not go on, nobody reads anyway.
        drop(self.lines.send(lines));
    }

    pub fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < ENOUGH
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Returns when something has been written since the last call.
    pub async fn written(&self) {
        self.written.notified().await;
    }
}

fn write_all(mut writer: impl Write, queue: &Receiver<Vec<u8>>, waiting: &AtomicUsize, written: &Notify) {
    let mut broken = false;
    for lines in queue {
        if !broken && let Err(error) = writer.write_all(&lines).and_then(|()| writer.flush()) {
            // Whoever read has gone. Its input will end too, and that is where the worker ends.
            tracing::warn!(%error, "nobody reads the worker's output any more");
            broken = true;
        }
        waiting.fetch_sub(lines.len(), Ordering::Relaxed);
        written.notify_one();
    }
}
