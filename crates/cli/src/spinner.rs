//! A progress line on stderr for operations that take over a second. Nothing appears on a pipe or with `--json`.

use crate::output::Output;
use crate::render::{text, time};
use std::io::{IsTerminal, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::AbortHandle;

/// Shorter operations show nothing.
const FIRST_DRAW: Duration = Duration::from_millis(700);
const REDRAW_INTERVAL: Duration = Duration::from_millis(120);
const FRAMES: [&str; 10] = ["⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"];

/// Shows a line until it is dropped.
pub struct Spinner {
    label: Arc<Mutex<String>>,
    display_task: Option<AbortHandle>,
}

impl Spinner {
    pub fn start(output: &Output, label: impl Into<String>) -> Self {
        let label = Arc::new(Mutex::new(label.into()));
        let display_task = (std::io::stderr().is_terminal() && !output.json).then(|| {
            let (label, started_at) = (Arc::clone(&label), Instant::now());
            let show = async move {
                tokio::time::sleep(FIRST_DRAW).await;
                for frame in FRAMES.iter().cycle() {
                    let label = label.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    let line = spinner_line(frame, &label, started_at.elapsed(), terminal_columns());
                    drop(write!(std::io::stderr().lock(), "\r\x1b[K{line}"));
                    tokio::time::sleep(REDRAW_INTERVAL).await;
                }
            };
            tokio::spawn(show).abort_handle()
        });
        Self { label, display_task }
    }

    /// The line appears on this terminal.
    pub const fn is_visible(&self) -> bool {
        self.display_task.is_some()
    }

    /// Replaces the text of the line.
    pub fn set_label(&self, label: impl Into<String>) {
        *self.label.lock().unwrap_or_else(PoisonError::into_inner) = label.into();
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        if let Some(display_task) = self.display_task.take() {
            display_task.abort();
            drop(write!(std::io::stderr().lock(), "\r\x1b[K"));
        }
    }
}

fn spinner_line(frame: &str, label: &str, elapsed: Duration, columns: usize) -> String {
    let side = format!(" {}", time::format_rough(elapsed));
    let room = columns.saturating_sub(side.chars().count() + 3);
    format!("{frame} {}{side}", text::escape_clipped(label, room.max(8)))
}

fn terminal_columns() -> usize {
    const DEFAULT_COLUMNS: usize = 80;
    let size = rustix::termios::tcgetwinsize(std::io::stderr()).ok();
    size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0).unwrap_or(DEFAULT_COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_label_fits_the_terminal() {
        let line = spinner_line("⠋", &"word ".repeat(30), Duration::from_secs(75), 40);
        assert!(line.chars().count() < 40 && line.ends_with("… 1m"), "{line}");
        assert_eq!(spinner_line("⠋", "copying", Duration::from_secs(2), 80), "⠋ copying 2s");
    }
}
