//! How a run is shown: live on a terminal, as plain lines, or as lines of JSON.

use super::terminal::bottom::Status;
use super::terminal::{Pressed, Terminal};
use super::told::Told;
use crate::failure::Result;
use crate::output::Output;
use crate::reading::entry::Entry;

pub enum Face {
    Live(Box<Terminal>),
    Plain,
    Json,
}

impl Face {
    /// The best that the output allows.
    pub fn of(output: &Output) -> Self {
        if output.json {
            return Self::Json;
        }
        let live = super::terminal::somebody_is_there(output).then(|| Terminal::enter(output).ok()).flatten();
        live.map_or(Self::Plain, |terminal| Self::Live(Box::new(terminal)))
    }

    pub const fn is_live(&self) -> bool {
        matches!(self, Self::Live(_))
    }

    /// The event itself, where a program reads.
    pub fn event(&self, entry: &Entry, output: &Output) -> Result {
        match self {
            Self::Json => output.raw_object(&entry.raw),
            Self::Live(_) | Self::Plain => Ok(()),
        }
    }

    /// What was told since the last time, and how things stand.
    pub fn draw(&mut self, told: &[Told], status: Status<'_>, output: &Output) -> Result {
        match self {
            Self::Live(terminal) => Ok(terminal.draw(told, status)?),
            Self::Plain => print(told, output),
            Self::Json => output.flush(),
        }
    }

    /// What a person asks for; never anything where nobody can.
    pub async fn asked(&mut self) -> Pressed {
        match self {
            Self::Live(terminal) => match terminal.asked().await {
                Some(pressed) => pressed,
                None => std::future::pending().await,
            },
            Self::Plain | Self::Json => std::future::pending().await,
        }
    }

    /// Text that could not be sent goes back to where it was typed.
    pub fn put_back(&mut self, text: String) {
        if let Self::Live(terminal) = self {
            terminal.input.put_back(text);
        }
    }

    pub fn leave(self) -> Result {
        match self {
            Self::Live(terminal) => Ok(terminal.leave()?),
            Self::Plain | Self::Json => Ok(()),
        }
    }
}

/// As lines that scroll by.
pub fn print(told: &[Told], output: &Output) -> Result {
    let lines = told.iter().flat_map(|told| told.lines(output.width));
    for line in lines {
        output.line(&line.painted(output.colour))?;
    }
    output.flush()
}
