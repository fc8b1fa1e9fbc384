//! The worker's exit reasons, with their codes and messages.

use std::fmt;

/// The exit of a worker that started. A failed start is `setup::Error`, exit code 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// The server has everything.
    Done,
    /// Time ran out, or a second signal came, with unsent events in the spool.
    NotFlushed { events: i64, acknowledgements: usize },
    /// Another worker has taken over.
    Fenced { detail: String },
    /// The server rejects this worker.
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

pub const SETUP_FAILED: u8 = 2;

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("the server has everything"),
            Self::NotFlushed { events, acknowledgements } => write!(
                f,
                "{events} events and {acknowledgements} acknowledgements are unsent; they stay in the spool, \
                 start another worker on it to send them"
            ),
            Self::Fenced { detail } => {
                write!(f, "another worker has taken over this sandbox ({detail}); unsent events stay in the spool")
            }
            Self::Refused { detail } => {
                write!(f, "the server rejects this worker ({detail}); unsent events stay in the spool")
            }
        }
    }
}
