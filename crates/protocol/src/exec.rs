//! Runs one command in a sandbox over a connection of its own, with frames in both directions. Closing the client's
//! half of the connection kills the command; its remaining output and its exit still arrive.
//!
//! A frame is its length (u32, little-endian, of kind and payload), one byte for the kind, and the payload.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum frame size: a command line must fit; output comes in smaller chunks.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// Flow-control window for stdin, in bytes.
///
/// The worker always reads its connection, so that a signal never waits behind unread input. In return the client has
/// at most this much input outstanding beyond what the worker has `Taken`.
pub const STDIN_WINDOW_BYTES: usize = 256 << 10;

/// The worker's reply on a `Quiesce` connection once it is quiesced; any other reply is an error text.
pub const QUIESCED_REPLY: u8 = 0;

/// The byte with which the worker hands over the socket of a `Port` connection.
pub const PORT_CONNECTED: u8 = b'C';
/// The worker's reply on a `Port` connection if nothing listens there.
pub const PORT_CLOSED: u8 = b'R';

/// First byte of a connection to a worker, which selects the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionKind {
    /// The dialling side serves HTTP, the worker sends requests.
    Http,
    /// One command, in frames.
    Exec,
    /// One file operation, by a helper that runs as the agent.
    Files,
    /// The worker hands over the listening socket of the proxy inside the sandbox.
    ProxySocket,
    /// The worker connects to a port of the sandbox, which follows as a big-endian number, and hands over the socket.
    Port,
    /// Quiesce: nothing runs as the agent while this connection is open, so that the files can be replaced.
    Quiesce,
}

impl ConnectionKind {
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Http => b'H',
            Self::Exec => b'X',
            Self::Files => b'F',
            Self::ProxySocket => b'P',
            Self::Port => b'C',
            Self::Quiesce => b'Q',
        }
    }

    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'H' => Some(Self::Http),
            b'X' => Some(Self::Exec),
            b'F' => Some(Self::Files),
            b'P' => Some(Self::ProxySocket),
            b'C' => Some(Self::Port),
            b'Q' => Some(Self::Quiesce),
            _ => None,
        }
    }
}

/// The command to run. It does not pass through a shell; name a shell in `argv` to use one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecStart {
    pub argv: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Keep stdin open for `Stdin` frames; otherwise the command has none.
    #[serde(default)]
    pub stdin: bool,
    /// Attach a terminal of this size as stdin, stdout and stderr.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub terminal: Option<TerminalSize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    pub columns: u16,
    pub rows: u16,
}

/// Exit of the command. Unknown is never 0.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ExecExit {
    Exited {
        code: i32,
    },
    Signalled {
        signal: i32,
    },
    OutOfMemory,
    /// The command could not start, with the reason.
    NotStarted {
        error: String,
    },
    Unknown,
}

/// Frame from the client to the worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecClientFrame {
    Start(ExecStart),
    Stdin(Vec<u8>),
    CloseStdin,
    Signal(i32),
    Resize(TerminalSize),
}

/// Frame from the worker to the client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExecWorkerFrame {
    Stdout(Vec<u8>),
    Stderr(Vec<u8>),
    /// The command has consumed, or will never consume, this many more bytes of stdin.
    StdinConsumed(u32),
    Exited(ExecExit),
}

#[derive(Debug, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of {0} bytes exceeds the maximum size")]
    TooLong(usize),
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    #[error("an invalid frame: {0}")]
    InvalidPayload(String),
}

fn encode_frame(kind: u8, payload: &[u8]) -> Vec<u8> {
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
    /// Size of the frame on the wire, in bytes.
    wire_bytes: usize,
}

/// Parses the first complete frame of `buffer`.
fn parse_frame(buffer: &[u8]) -> Result<Option<Frame<'_>>, FrameError> {
    let Some((head, rest)) = buffer.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*head) as usize;
    if length == 0 || length > MAX_FRAME_BYTES {
        return Err(FrameError::TooLong(length));
    }
    match rest.get(..length).and_then(<[u8]>::split_first) {
        Some((kind, payload)) => Ok(Some(Frame { kind: *kind, payload, wire_bytes: length + 4 })),
        None => Ok(None),
    }
}

fn encode_json_frame<T: Serialize>(kind: u8, value: &T) -> Vec<u8> {
    encode_frame(kind, &serde_json::to_vec(value).unwrap_or_default())
}

fn decode_payload<T: for<'a> Deserialize<'a>>(payload: &[u8]) -> Result<T, FrameError> {
    serde_json::from_slice(payload).map_err(|error| FrameError::InvalidPayload(error.to_string()))
}

impl ExecClientFrame {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Start(start) => encode_json_frame(1, start),
            Self::Stdin(data) => encode_frame(2, data),
            Self::CloseStdin => encode_frame(3, &[]),
            Self::Signal(signal) => encode_frame(4, &signal.to_le_bytes()),
            Self::Resize(size) => encode_json_frame(5, size),
        }
    }

    /// Removes and returns the first complete frame of `buffer`, if any.
    pub fn decode(buffer: &mut Vec<u8>) -> Result<Option<Self>, FrameError> {
        let Some(Frame { kind, payload, wire_bytes: used }) = parse_frame(buffer)? else { return Ok(None) };
        let ask = match kind {
            1 => Self::Start(decode_payload(payload)?),
            2 => Self::Stdin(payload.to_vec()),
            3 => Self::CloseStdin,
            4 => {
                let bytes =
                    payload.try_into().map_err(|_| FrameError::InvalidPayload("a signal has 4 bytes".into()))?;
                Self::Signal(i32::from_le_bytes(bytes))
            }
            5 => Self::Resize(decode_payload(payload)?),
            other => return Err(FrameError::UnknownKind(other)),
        };
        buffer.drain(..used);
        Ok(Some(ask))
    }
}

impl ExecWorkerFrame {
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Stdout(data) => encode_frame(1, data),
            Self::Stderr(data) => encode_frame(2, data),
            Self::Exited(end) => encode_json_frame(3, end),
            Self::StdinConsumed(count) => encode_frame(4, &count.to_le_bytes()),
        }
    }

    /// Removes and returns the first complete frame of `buffer`, if any.
    pub fn decode(buffer: &mut Vec<u8>) -> Result<Option<Self>, FrameError> {
        let Some(Frame { kind, payload, wire_bytes: used }) = parse_frame(buffer)? else { return Ok(None) };
        let tell = match kind {
            1 => Self::Stdout(payload.to_vec()),
            2 => Self::Stderr(payload.to_vec()),
            3 => Self::Exited(decode_payload(payload)?),
            4 => {
                let bytes = payload.try_into().map_err(|_| FrameError::InvalidPayload("a count has 4 bytes".into()))?;
                Self::StdinConsumed(u32::from_le_bytes(bytes))
            }
            other => return Err(FrameError::UnknownKind(other)),
        };
        buffer.drain(..used);
        Ok(Some(tell))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let start =
            ExecStart { argv: vec!["true".into()], cwd: None, env: BTreeMap::new(), stdin: true, terminal: None };
        let asks = [
            ExecClientFrame::Start(start),
            ExecClientFrame::Stdin(b"hi".to_vec()),
            ExecClientFrame::CloseStdin,
            ExecClientFrame::Signal(-9),
            ExecClientFrame::Resize(TerminalSize { columns: 80, rows: 24 }),
        ];
        let mut wire: Vec<u8> = asks.iter().flat_map(ExecClientFrame::encode).collect();
        for ask in asks {
            assert_eq!(ExecClientFrame::decode(&mut wire).unwrap(), Some(ask));
        }
        assert!(wire.is_empty() && ExecClientFrame::decode(&mut wire).unwrap().is_none());
        let tells = [
            ExecWorkerFrame::Stdout(vec![0, 255]),
            ExecWorkerFrame::Stderr(vec![]),
            ExecWorkerFrame::StdinConsumed(70_000),
            ExecWorkerFrame::Exited(ExecExit::Exited { code: 3 }),
        ];
        let mut wire: Vec<u8> = tells.iter().flat_map(ExecWorkerFrame::encode).collect();
        for tell in tells {
            assert_eq!(ExecWorkerFrame::decode(&mut wire).unwrap(), Some(tell));
        }
    }

    #[test]
    fn waits_for_partial_frames_and_rejects_invalid_ones() {
        let whole = ExecWorkerFrame::Stdout(b"hello".to_vec()).encode();
        for cut in 0..whole.len() {
            assert!(ExecWorkerFrame::decode(&mut whole[..cut].to_vec()).unwrap().is_none(), "{cut}");
        }
        assert!(ExecWorkerFrame::decode(&mut vec![0, 0, 0, 0, 1]).is_err());
        assert!(ExecWorkerFrame::decode(&mut vec![255, 255, 255, 255, 1]).is_err());
        assert!(ExecClientFrame::decode(&mut vec![1, 0, 0, 0, 99]).is_err());
    }
}
