//! A command in a sandbox: its output as it comes, and its end.

use super::Client;
use crate::failure::Result;
use atoll_core::id::SandboxId;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures_util::stream;
use reqwest::Response;
use serde_json::Value;
use std::collections::VecDeque;
use std::io::{self, Read};
use tokio::sync::mpsc;

const PIECE: usize = 64 << 10;
/// Of the input, on their way.
const PIECES: usize = 4;

/// A command that runs, as its answer says it.
pub struct Running<'a> {
    client: &'a Client,
    answer: Response,
    lines: Lines,
    ready: VecDeque<Vec<u8>>,
}

/// A command that has ended, with all that it said.
#[derive(Debug, Default)]
pub struct Ended {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// How, or nothing where nobody can say.
    pub exit: Option<Value>,
}

impl Ended {
    pub fn succeeded(&self) -> bool {
        self.exit.as_ref().is_some_and(|exit| exit["kind"] == "exited" && exit["code"] == 0)
    }
}

impl Client {
    pub async fn exec(&self, sandbox: SandboxId, body: &Value) -> Result<Running<'_>> {
        let asked = self.request(reqwest::Method::POST, &format!("/sandboxes/{sandbox}/exec"), &[]).json(body);
        let answer = self.ask(asked).await?;
        Ok(Running { client: self, answer, lines: Lines::default(), ready: VecDeque::new() })
    }

    /// Gives a command, by its path, this program's input as it comes, and says the end of it.
    pub async fn feed(&self, command: &str) -> Result<()> {
        let (sender, pieces) = mpsc::channel::<io::Result<Bytes>>(PIECES);
        tokio::task::spawn_blocking(move || read_input(&sender));
        let pieces = stream::unfold(pieces, |mut pieces| async move { Some((pieces.recv().await?, pieces)) });
        let query = [("end", "true".to_owned())];
        let asked = self.request(reqwest::Method::POST, &format!("{command}/stdin"), &query);
        let asked = asked.header(reqwest::header::CONTENT_TYPE, "application/octet-stream");
        self.ask(asked.body(reqwest::Body::wrap_stream(pieces))).await.map(drop)
    }

    /// To its end.
    pub async fn exec_whole(&self, sandbox: SandboxId, body: &Value) -> Result<Ended> {
        let mut running = self.exec(sandbox, body).await?;
        let mut ended = Ended::default();
        while let Some(line) = running.next().await? {
            let bytes = bytes_of(&line).unwrap_or_default();
            if line["stream"] == "stderr" { &mut ended.stderr } else { &mut ended.stdout }.extend(bytes);
            ended.exit = line.get("exit").cloned().or(ended.exit);
        }
        Ok(ended)
    }
}

impl Running<'_> {
    /// The next line of the answer; nothing after the last.
    pub async fn next(&mut self) -> Result<Option<Value>> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                let read = serde_json::from_slice(&line);
                return read.map(Some).map_err(|error| {
                    self.client.not_atoll(&format!("a line of the command's output can't be read ({error})"))
                });
            }
            match self.answer.chunk().await.map_err(|error| self.client.unreachable(&error))? {
                Some(bytes) => self.ready.extend(self.lines.push(&bytes)),
                None => return Ok(None),
            }
        }
    }

    /// Its name, to come back to it.
    pub fn id(&self) -> Option<String> {
        self.answer.headers().get("exec-id").and_then(|id| id.to_str().ok()).map(str::to_owned)
    }

    /// Whether the next line has yet to come over the wire.
    pub fn is_waiting(&self) -> bool {
        self.ready.is_empty()
    }
}

/// On a thread that may stand in its reading when nobody wants more.
fn read_input(sender: &mpsc::Sender<io::Result<Bytes>>) {
    let mut buffer = vec![0; PIECE];
    loop {
        let piece = match io::stdin().lock().read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => Ok(Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = piece.is_err();
        if sender.blocking_send(piece).is_err() || failed {
            return;
        }
    }
}

/// The output in a line, as the command wrote it.
pub fn bytes_of(line: &Value) -> Option<Vec<u8>> {
    match line["data"].as_str() {
        Some(text) => Some(text.as_bytes().to_vec()),
        None => line["base64"].as_str().and_then(|text| STANDARD.decode(text).ok()),
    }
}

/// Whole lines out of pieces.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl Lines {
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.0.extend_from_slice(bytes);
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.0.split_off(end + 1);
        let whole = std::mem::replace(&mut self.0, rest);
        whole.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_come_whole() {
        let mut lines = Lines::default();
        assert_eq!(lines.push(b"{\"a\":"), Vec::<Vec<u8>>::new());
        assert_eq!(lines.push(b"1}\n\n{\"b\":2}\n{"), [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()]);
        assert_eq!(lines.push(b"}\n"), [b"{}".to_vec()]);
    }

    #[test]
    fn output_is_text_or_bytes() {
        assert_eq!(bytes_of(&json!({"stream": "stdout", "data": "ä"})), Some("ä".as_bytes().to_vec()));
        assert_eq!(bytes_of(&json!({"stream": "stdout", "base64": "/w=="})), Some(vec![0xff]));
        assert_eq!(bytes_of(&json!({"exit": {"kind": "unknown"}})), None);
    }
}
