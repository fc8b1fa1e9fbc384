//! Progress of a transfer, on a terminal.

use crate::output::Output;
use atoll_core::size::format_bytes;
use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::AbortHandle;

/// Also the delay before the first output.
const REDRAW_INTERVAL: Duration = Duration::from_millis(300);

pub(super) struct TransferProgress {
    bytes: Arc<AtomicU64>,
    display_task: Option<AbortHandle>,
}

impl TransferProgress {
    pub(super) fn start(output: &Output, total: Option<u64>) -> Self {
        let bytes = Arc::new(AtomicU64::new(0));
        let display_task = (std::io::stderr().is_terminal() && !output.json).then(|| {
            let bytes = Arc::clone(&bytes);
            let show = async move {
                loop {
                    tokio::time::sleep(REDRAW_INTERVAL).await;
                    let line = progress_line(bytes.load(Ordering::Relaxed), total);
                    drop(write!(std::io::stderr().lock(), "\r\x1b[K{line}"));
                }
            };
            tokio::spawn(show).abort_handle()
        });
        Self { bytes, display_task }
    }

    /// A function that counts transferred bytes.
    pub(super) fn counter(&self) -> impl Fn(u64) + Send + Sync + 'static {
        let bytes = Arc::clone(&self.bytes);
        move |count| {
            bytes.fetch_add(count, Ordering::Relaxed);
        }
    }
}

impl Drop for TransferProgress {
    fn drop(&mut self) {
        if let Some(display_task) = self.display_task.take() {
            display_task.abort();
            drop(write!(std::io::stderr().lock(), "\r\x1b[K"));
        }
    }
}

fn progress_line(bytes: u64, total: Option<u64>) -> String {
    match total {
        Some(total) if total > 0 => {
            let percent = u128::from(bytes) * 100 / u128::from(total);
            format!("{} of {} ({percent} %)", format_bytes(bytes), format_bytes(total))
        }
        _ => format_bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::progress_line;

    #[test]
    fn shows_bytes_and_percentage() {
        assert_eq!(progress_line(1_250_000, None), "1.2 MiB");
        assert_eq!(progress_line(1_000_000, Some(4_000_000)), "976.6 KiB of 3.8 MiB (25 %)");
        assert_eq!(progress_line(0, Some(0)), "0 B");
    }
}
