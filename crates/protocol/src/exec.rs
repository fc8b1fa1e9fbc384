//! One command in a sandbox over a connection of its own: frames in both directions. Whoever wants no more of it closes
//! the half that they speak on: it is killed, and what it printed until then and its end still come.
//!
//! A frame is its length (u32, little-endian, of kind and payload), one byte for the kind, and the payload.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest frame: output comes in smaller pieces, a command line must fit.
pub const LONGEST: usize = 1 << 20;

/// Input that may be on its way to a command at once. The worker always reads its connection, so that a signal never waits
/// behind input that nobody reads; in return no more is sent than this and what it has `Taken`.
pub const WINDOW: usize = 256 << 10;

/// What the worker answers on a `Quiet` connection once it is quiet; anything else is a sentence that says why not.
pub const QUIET: u8 = 0;

/// What the first byte of a connection to a worker says of the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The dialling side serves HTTP, the worker asks.
    Http,
    /// One command, in frames.
    Exec,
    /// One thing done to files, by a helper that runs as the agent.
    Files,
    /// The worker hands over the listening socket on which programs inside look for a proxy.
    Outward,
    /// While this connection is open nothing runs as the agent, so that the files below can be exchanged.
    Quiet,
}

impl Opening {
    pub const fn byte(self) -> u8 {
        match self {
            Self::Http => b'H',
            Self::Exec => b'X',
            Self::Files => b'F',
            Self::Outward => b'P',
            Self::Quiet => b'Q',
        }
    }

    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'H' => Some(Self::Http),
            b'X' => Some(Self::Exec),
            b'F' => Some(Self::Files),
            b'P' => Some(Self::Outward),
            b'Q' => Some(Self::Quiet),
            _ => None,
        }
    }
}

/// What to run. Nothing here passes through a shell: who wants one names it in `argv`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Keep its input open for `Stdin` frames; else it has none.
    #[serde(default)]
    pub stdin: bool,
    /// It gets a terminal of this size: input and both outputs are that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<Terminal>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terminal {
    pub columns: u16,
    pub rows: u16,
}

/// How it ended. Unknown is never 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum End {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
    },
    OutOfMemory,
    /// It could not be started at all, and why.
    NotStarted {
        error: String,
    },
    Unknown,
}

/// From the one who wants it run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    Start(Start),
    Stdin(Vec<u8>),
    CloseStdin,
    Signal(i32),
    Resize(Terminal),
}

/// From the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tell {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// So many more bytes of the input were taken by the command, or never will be.
    Taken(u32),
    Ended(End),
}

#[derive(Debug, thiserror::Error)]
pub enum BadFrame {
    #[error("a frame of {0} bytes is longer than any may be")]
    TooLong(usize),
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame that can't be read: {0}")]
    Payload(String),
}

fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len() + 1).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(payload.len() + 5);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.push(kind);
    bytes.extend_from_slice(payload);
    bytes
}

struct Frame<'a> {
    kind: u8,
    payload: &'a [u8],
    /// How many bytes it takes on the wire.
    used: usize,
}

/// The first whole frame of `buffer`.
fn first(buffer: &[u8]) -> Result<Option<Frame<'_>>, BadFrame> {
    let Some((head, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if length == 0 || length > LONGEST {
        return Err(BadFrame::TooLong(length));
    }
    match rest.get(..length).and_then(<[u8]>::split_first) {
        Some((kind, payload)) => Ok(Some(Frame { kind: *kind, payload, used: length + 4 })),
        None => Ok(None),
    }
}

fn json<T: Serialize>(kind: u8, value: &T) -> Vec<u8> {
    frame(kind, &serde_json::to_vec(value).unwrap_or_default())
}

fn read<T: for<'a> Deserialize<'a>>(payload: &[u8]) -> Result<T, BadFrame> {
    serde_json::from_slice(payload).map_err(|error| BadFrame::Payload(error.to_string()))
}

impl Ask {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Start(start) => json(1, start),
            Self::Stdin(data) => frame(2, data),
            Self::CloseStdin => frame(3, &[]),
            Self::Signal(signal) => frame(4, &signal.to_le_bytes()),
            Self::Resize(size) => json(5, size),
        }
    }

    /// Takes the first whole frame off `buffer`, if there is one.
    pub fn decode(buffer: &mut Vec<u8>) -> Result<Option<Self>, BadFrame> {
        let Some(Frame { kind, payload, used }) = first(buffer)? else { return Ok(None) };
        let ask = match kind {
            1 => Self::Start(read(payload)?),
            2 => Self::Stdin(payload.to_vec()),
            3 => Self::CloseStdin,
            4 => {
                let bytes = payload.try_into().map_err(|_| BadFrame::Payload("a signal has 4 bytes".into()))?;
                Self::Signal(i32::from_le_bytes(bytes))
            }
            5 => Self::Resize(read(payload)?),
            other => return Err(BadFrame::Kind(other)),
        };
        buffer.drain(..used);
        Ok(Some(ask))
    }
}

impl Tell {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Stdout(data) => frame(1, data),
            Self::Stderr(data) => frame(2, data),
            Self::Ended(end) => json(3, end),
            Self::Taken(count) => frame(4, &count.to_le_bytes()),
        }
    }

    /// Takes the first whole frame off `buffer`, if there is one.
    pub fn decode(buffer: &mut Vec<u8>) -> Result<Option<Self>, BadFrame> {
        let Some(Frame { kind, payload, used }) = first(buffer)? else { return Ok(None) };
        let tell = match kind {
            1 => Self::Stdout(payload.to_vec()),
            2 => Self::Stderr(payload.to_vec()),
            3 => Self::Ended(read(payload)?),
            4 => {
                let bytes = payload.try_into().map_err(|_| BadFrame::Payload("a count has 4 bytes".into()))?;
                Self::Taken(u32::from_le_bytes(bytes))
            }
            other => return Err(BadFrame::Kind(other)),
        };
        buffer.drain(..used);
        Ok(Some(tell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_back_as_they_went() {
        let start = Start { argv: vec!["true".into()], cwd: None, env: BTreeMap::new(), stdin: true, terminal: None };
        let asks = [
            Ask::Start(start),
            Ask::Stdin(b"hi".to_vec()),
            Ask::CloseStdin,
            Ask::Signal(-9),
            Ask::Resize(Terminal { columns: 80, rows: 24 }),
        ];
        let mut wire: Vec<u8> = asks.iter().flat_map(Ask::encode).collect();
        for ask in asks {
            assert_eq!(Ask::decode(&mut wire).unwrap(), Some(ask));
        }
        assert!(wire.is_empty() && Ask::decode(&mut wire).unwrap().is_none());
        let tells = [
            Tell::Stdout(vec![0, 255]),
            Tell::Stderr(vec![]),
            Tell::Taken(70_000),
            Tell::Ended(End::Exited { code: 3 }),
        ];
        let mut wire: Vec<u8> = tells.iter().flat_map(Tell::encode).collect();
        for tell in tells {
            assert_eq!(Tell::decode(&mut wire).unwrap(), Some(tell));
        }
    }

    #[test]
    fn half_a_frame_waits_and_nonsense_is_refused() {
        let whole = Tell::Stdout(b"hello".to_vec()).encode();
        for cut in 0..whole.len() {
            assert!(Tell::decode(&mut whole[..cut].to_vec()).unwrap().is_none(), "{cut}");
        }
        assert!(Tell::decode(&mut vec![0, 0, 0, 0, 1]).is_err());
        assert!(Tell::decode(&mut vec![255, 255, 255, 255, 1]).is_err());
        assert!(Ask::decode(&mut vec![1, 0, 0, 0, 99]).is_err());
    }
}
