//! Tool calls that are under way.

use crate::reading::entry::Entry;
use crate::render::{line, text};
use atoll_core::time::Timestamp;
use std::time::Duration;

/// An agent has a few at once; one that forgets to end them must not fill the memory.
const MOST: usize = 200;

#[derive(Debug)]
struct Call {
    id: String,
    what: String,
    at: String,
    /// A file watcher told of the same change.
    edited: bool,
}

#[derive(Debug, Default)]
pub struct Calls(Vec<Call>);

/// What became of a call.
pub struct Done {
    pub what: String,
    pub took: Option<Duration>,
    pub edited: bool,
}

/// The tool and its one telling argument, harmless.
pub fn what(entry: &Entry) -> String {
    let tool = text::clipped(entry.text("tool").unwrap_or("?"), 40);
    let input = text::clipped(line::input(&entry.data).trim(), 400);
    if input.is_empty() { tool } else { format!("{tool}  {input}") }
}

impl Calls {
    pub fn begin(&mut self, entry: &Entry) {
        let Some(id) = entry.text("tool_use_id") else { return };
        if self.0.len() >= MOST {
            self.0.remove(0);
        }
        self.0.push(Call { id: id.to_owned(), what: what(entry), at: entry.at.clone(), edited: false });
    }

    pub fn edited(&mut self, id: Option<&str>) {
        let call = self.0.iter_mut().find(|call| Some(call.id.as_str()) == id);
        if let Some(call) = call {
            call.edited = true;
        }
    }

    pub fn end(&mut self, entry: &Entry) -> Done {
        let at = self.0.iter().position(|call| Some(call.id.as_str()) == entry.text("tool_use_id"));
        match at.map(|at| self.0.remove(at)) {
            Some(call) => Done { took: between(&call.at, &entry.at), what: call.what, edited: call.edited },
            // It began before anybody looked.
            None => Done { what: what(entry), took: None, edited: false },
        }
    }

    /// The newest one beside this one.
    pub fn under_way(&self, beside: Option<&str>) -> Option<String> {
        self.0.iter().rev().find(|call| Some(call.id.as_str()) != beside).map(|call| call.what.clone())
    }

    pub fn forget(&mut self) {
        self.0.clear();
    }
}

fn between(from: &str, to: &str) -> Option<Duration> {
    let (from, to) = (from.parse::<Timestamp>().ok()?, to.parse::<Timestamp>().ok()?);
    Some(to.elapsed_since(from))
}
