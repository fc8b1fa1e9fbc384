//! Writes lines to stdout on its own thread, so that a program that does not read them delays only its own input.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use tokio::sync::Notify;

/// Back-pressure limit: stop reading input at this much unread output.
const MAX_UNREAD_BYTES: usize = 256 * 1024;

#[derive(Debug)]
pub struct LineWriter {
    lines: Sender<Vec<u8>>,
    waiting: Arc<AtomicUsize>,
    written: Arc<Notify>,
}

impl LineWriter {
    pub fn start(writer: impl Write + Send + 'static) -> std::io::Result<Self> {
        let (lines, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::new(Notify::new());
        let (count, notify) = (Arc::clone(&waiting), Arc::clone(&written));
        std::thread::Builder::new().name("stdout".into()).spawn(move || write_all(writer, &queue, &count, &notify))?;
        Ok(Self { lines, waiting, written })
    }

    /// Writes a JSON value as one line.
    pub fn write_value(&self, value: &serde_json::Value) {
        let mut line = value.to_string().into_bytes();
        line.push(b'\n');
        self.push(line);
    }

    pub fn write_keys(&self, keys: std::ops::RangeInclusive<i64>) {
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
        // The thread ends only with the process.
        drop(self.lines.send(lines));
    }

    pub fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < MAX_UNREAD_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Waits until something has been written since the last call.
    pub async fn wait_for_write(&self) {
        self.written.notified().await;
    }
}

fn write_all(mut writer: impl Write, queue: &Receiver<Vec<u8>>, waiting: &AtomicUsize, written: &Notify) {
    let mut broken = false;
    for lines in queue {
        if !broken && let Err(error) = writer.write_all(&lines).and_then(|()| writer.flush()) {
            // The reader is gone. The input will end too, which ends the worker.
            tracing::warn!(%error, "the worker's output is closed");
            broken = true;
        }
        waiting.fetch_sub(lines.len(), Ordering::Relaxed);
        written.notify_one();
    }
}
