//! How the worker ends, and what it says when it does.

use std::fmt;

/// The end of a worker that was set up well. A wrong set-up is `setup::Error`, exit code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// Everything is with the server.
    Done,
    /// Time ran out, or it was told twice to go, with events still in the spool.
    NotFlushed { events: i64, answers: usize },
    /// Another worker has taken over.
    Fenced { detail: String },
    /// The server does not take anything from this worker.
    Refused { detail: String },
}

impl Exit {
    pub const fn code(&self) -> u8 {
        match self {
            Self::Done => 0,
            Self::NotFlushed { .. } => 3,
            Self::Fenced { .. } => 4,
            Self::Refused { .. } => 5,
        }
    }
}

pub const SETUP_WRONG: u8 = 2;

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("everything is with the server"),
            Self::NotFlushed { events, answers } => write!(
                f,
                "{events} events and {answers} answers to messages are not with the server yet; \
                 they stay in the spool, and a worker started on it sends them"
            ),
            Self::Fenced { detail } => write!(
                f,
                "another worker has taken over this sandbox, so this one stops ({detail}); \
                 what it had not sent stays in the spool"
            ),
            Self::Refused { detail } => {
                write!(f, "the server refuses this worker ({detail}); what it had not sent stays in the spool")
            }
        }
    }
}
