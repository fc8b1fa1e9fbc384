//! The view of a run: live on a terminal, plain lines, or lines of JSON.

use super::step::ViewStep;
use super::terminal::footer::Status;
use super::terminal::line_editor::QuickAnswer;
use super::terminal::{Terminal, TerminalEvent};
use crate::event_log::log_event::LogEvent;
use crate::failure::Result;
use crate::output::Output;

pub enum RunView {
    Live(Box<Terminal>),
    Plain,
    Json,
}

impl RunView {
    /// Opens the best view that the output supports.
    pub fn open(output: &Output) -> Self {
        if output.json {
            return Self::Json;
        }
        let live = super::terminal::is_interactive(output).then(|| Terminal::open(output).ok()).flatten();
        live.map_or(Self::Plain, |terminal| Self::Live(Box::new(terminal)))
    }

    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// Prints the event itself in the JSON view.
    pub fn show_event(&self, event: &LogEvent, output: &Output) -> Result {
        match self {
            Self::Json => output.print_object(&event.event),
            Self::Live(_) | Self::Plain => Ok(()),
        }
    }

    /// Shows new steps and the status.
    pub fn draw(&mut self, steps: &[ViewStep], status: Status<'_>, output: &Output) -> Result {
        match self {
            Self::Live(terminal) => Ok(terminal.draw(steps, status)?),
            Self::Plain => print_steps(steps, output),
            Self::Json => output.flush(),
        }
    }

    /// Waits for the next terminal event; pending forever without a live view.
    pub async fn next_event(&mut self) -> TerminalEvent {
        match self {
            Self::Live(terminal) => match terminal.next_event().await {
                Some(pressed) => pressed,
                None => std::future::pending().await,
            },
            Self::Plain | Self::Json => std::future::pending().await,
        }
    }

    /// The answer to an approval, if the input line is one of its keys.
    pub fn quick_answer(&self) -> Option<QuickAnswer> {
        match self {
            Self::Live(terminal) => terminal.input.quick_answer(),
            Self::Plain | Self::Json => None,
        }
    }

    pub fn clear_input(&mut self) {
        if let Self::Live(terminal) = self {
            terminal.input.clear();
        }
    }

    /// Restores text that could not be sent to the input line.
    pub fn restore_text(&mut self, text: String) {
        if let Self::Live(terminal) = self {
            terminal.input.restore_text(text);
        }
    }

    pub fn close(self) -> Result {
        match self {
            Self::Live(terminal) => Ok(terminal.close()?),
            Self::Plain | Self::Json => Ok(()),
        }
    }
}

/// Prints steps as plain lines.
pub fn print_steps(steps: &[ViewStep], output: &Output) -> Result {
    let lines = steps.iter().flat_map(|step| step.lines(output.width));
    for line in lines {
        output.print_line(&line.to_ansi(output.colour))?;
    }
    output.flush()
}
