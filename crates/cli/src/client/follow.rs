//! Following a sandbox's log through lost connections, with no gap and no repeat.

use super::Client;
use super::sse::{Frame, Parser};
use crate::failure::{Failure, Result};
use crate::reading::entry::Entry;
use atoll_core::id::SandboxId;
use reqwest::Response;
use std::collections::VecDeque;
use std::time::Duration;

/// The server gives a sign of life every 15 seconds.
const SILENCE: Duration = Duration::from_secs(45);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What following gives next.
#[derive(Debug)]
pub enum Heard {
    Event(Box<Entry>),
    /// What was asked for is no longer kept; it goes on from here.
    Truncated {
        first_seq: i64,
    },
    /// The connection is gone; it will be tried again.
    Lost(String),
}

pub struct Follow<'a> {
    client: &'a Client,
    path: String,
    types: String,
    /// The last seq that was given.
    seq: i64,
    connection: Option<Response>,
    parser: Parser,
    ready: VecDeque<Frame>,
    /// Has been connected once: from then on failures are waited out.
    known: bool,
    pause: Option<Duration>,
}

impl<'a> Follow<'a> {
    /// From after `seq`; without `types`, everything.
    pub fn new(client: &'a Client, sandbox: SandboxId, types: &[String], seq: i64) -> Self {
        Self {
            client,
            path: format!("/sandboxes/{sandbox}/events/stream"),
            types: types.join(","),
            seq,
            connection: None,
            parser: Parser::default(),
            ready: VecDeque::new(),
            known: false,
            pause: None,
        }
    }

    /// Whether the next thing has yet to come over the line.
    pub fn is_waiting(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next thing; may be dropped and asked again without losing anything.
    pub async fn next(&mut self) -> Result<Heard> {
        loop {
            while let Some(frame) = self.ready.pop_front() {
                if let Some(heard) = self.take(&frame)? {
                    return Ok(heard);
                }
            }
            let Some(connection) = &mut self.connection else {
                if let Some(lost) = self.connect().await? {
                    return Ok(lost);
                }
                continue;
            };
            match tokio::time::timeout(SILENCE, connection.chunk()).await {
                Ok(Ok(Some(bytes))) => self.parser.push(&bytes, &mut self.ready),
                Ok(Ok(None)) => return Ok(self.lost("the server ended the stream")),
                Ok(Err(_)) => return Ok(self.lost("the connection broke")),
                Err(_) => return Ok(self.lost("the server is silent")),
            }
        }
    }

    fn lost(&mut self, why: &str) -> Heard {
        self.connection = None;
        self.parser = Parser::default();
        self.pause.get_or_insert(FIRST_PAUSE);
        Heard::Lost(why.to_owned())
    }

    async fn connect(&mut self) -> Result<Option<Heard>> {
        if let Some(pause) = self.pause {
            tokio::time::sleep(pause).await;
        }
        let mut query = vec![("since", self.seq.to_string())];
        if !self.types.is_empty() {
            query.push(("type", self.types.clone()));
        }
        match self.client.stream(&self.path, &query).await {
            Ok(connection) => {
                self.connection = Some(connection);
                self.known = true;
                Ok(None)
            }
            Err(failure) if self.known && passes(&failure) => {
                let first = self.pause.is_none_or(|pause| pause <= FIRST_PAUSE);
                self.pause = Some(self.pause.map_or(FIRST_PAUSE, |pause| (pause * 2).min(LONGEST_PAUSE)));
                Ok(first.then(|| Heard::Lost("the server does not answer".to_owned())))
            }
            Err(failure) => Err(failure),
        }
    }

    fn take(&mut self, frame: &Frame) -> Result<Option<Heard>> {
        self.pause = None;
        if frame.event == "truncated" {
            let data: serde_json::Value = serde_json::from_str(&frame.data).unwrap_or_default();
            let first_seq = data["first_seq"].as_i64().unwrap_or(self.seq + 1);
            self.seq = self.seq.max(first_seq - 1);
            return Ok(Some(Heard::Truncated { first_seq }));
        }
        let entry = Entry::parse(&frame.data).map_err(|error| self.client.not_atoll(&error))?;
        if entry.seq <= self.seq {
            return Ok(None);
        }
        self.seq = entry.seq;
        Ok(Some(Heard::Event(Box::new(entry))))
    }
}

/// Whether waiting can mend it: the server is away, stopping or too busy.
pub fn passes(failure: &Failure) -> bool {
    const PASSING: &[&str] = &[
        "no_server",
        "not_atoll",
        "store_unavailable",
        "disk_full",
        "shutting_down",
        "rate_limited",
        "too_many_readers",
    ];
    matches!(failure, Failure::Told(told) if PASSING.contains(&told.code.as_str()))
}
