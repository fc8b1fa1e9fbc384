//! Commands in a sandbox: their output as they run.

use crate::error::Result;
use crate::http::{Client, NO_QUERY};
use atoll_api::{
    AttachQuery, ExecInputQuery, ExecInputReceipt, ExecList, ExecOutput, ExecReceipt, NewExec, NewSignal, TerminalSize,
};
use atoll_core::id::SandboxId;
use atoll_core::provider::{CommandExit, OutputStream};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::{Body, Method, Response};
use std::collections::VecDeque;

/// The output of a running command.
///
/// ```no_run
/// # async fn example(client: &atoll_client::Client, sandbox: &atoll_client::api::Sandbox) -> Result<(), atoll_client::Error> {
/// use atoll_client::api::NewExec;
///
/// let command = NewExec { shell: Some("cargo test".into()), ..Default::default() };
/// let output = client.run_command(sandbox.id, &command).await?.collect_output().await?;
/// assert!(output.is_success());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct CommandStream {
    client: Client,
    response: Response,
    lines: LineSplitter,
    ready: VecDeque<Vec<u8>>,
}

/// The whole output of a command that ended.
#[derive(Debug, Default)]
pub struct CommandOutput {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    /// How it ended, if that is known.
    pub exit: Option<CommandExit>,
}

impl CommandOutput {
    pub fn is_success(&self) -> bool {
        self.exit == Some(CommandExit::Exited { code: 0 })
    }
}

impl Client {
    /// Runs a command: `POST /sandboxes/{id}/exec`.
    pub async fn run_command(&self, sandbox: SandboxId, command: &NewExec) -> Result<CommandStream> {
        let request = self.request(Method::POST, &format!("/sandboxes/{sandbox}/exec"), NO_QUERY).json(command);
        Ok(CommandStream::new(self.clone(), self.send(request).await?))
    }

    /// Reads the output of a command that runs already, after `cursor` bytes: `GET /sandboxes/{id}/exec/{eid}`.
    pub async fn attach_command(&self, sandbox: SandboxId, exec: &str, cursor: u64) -> Result<CommandStream> {
        let request = self.request(Method::GET, &format!("/sandboxes/{sandbox}/exec/{exec}"), &AttachQuery { cursor });
        Ok(CommandStream::new(self.clone(), self.send(request).await?))
    }

    /// Lists commands that run, or ended a while ago: `GET /sandboxes/{id}/exec`.
    pub async fn list_commands(&self, sandbox: SandboxId) -> Result<ExecList> {
        self.get(&format!("/sandboxes/{sandbox}/exec"), NO_QUERY).await
    }

    /// Kills a command and all that it started: `DELETE /sandboxes/{id}/exec/{eid}`.
    pub async fn kill_command(&self, sandbox: SandboxId, exec: &str) -> Result<ExecReceipt> {
        self.delete(&format!("/sandboxes/{sandbox}/exec/{exec}"), NO_QUERY).await
    }

    /// Sends a signal such as `TERM` to a command: `POST /sandboxes/{id}/exec/{eid}/signal`.
    pub async fn signal_command(&self, sandbox: SandboxId, exec: &str, signal: &str) -> Result<ExecReceipt> {
        let body = NewSignal { signal: signal.to_owned() };
        self.post(&format!("/sandboxes/{sandbox}/exec/{exec}/signal"), &body).await
    }

    /// Changes the size of a command's terminal: `POST /sandboxes/{id}/exec/{eid}/resize`.
    pub async fn resize_command(&self, sandbox: SandboxId, exec: &str, size: TerminalSize) -> Result<ExecReceipt> {
        self.post(&format!("/sandboxes/{sandbox}/exec/{exec}/resize"), &size).await
    }

    /// Sends input to a command, and with `end` closes it: `POST /sandboxes/{id}/exec/{eid}/stdin`.
    pub async fn send_command_input(
        &self,
        sandbox: SandboxId,
        exec: &str,
        input: Body,
        end: bool,
    ) -> Result<ExecInputReceipt> {
        let path = format!("/sandboxes/{sandbox}/exec/{exec}/stdin");
        let request = self.request(Method::POST, &path, &ExecInputQuery { end });
        self.send_bytes(request, input).await
    }
}

impl CommandStream {
    fn new(client: Client, response: Response) -> Self {
        Self { client, response, lines: LineSplitter::default(), ready: VecDeque::new() }
    }

    /// The command's id, for `attach_command` and the other methods.
    pub fn id(&self) -> Option<&str> {
        self.response.headers().get("exec-id").and_then(|id| id.to_str().ok())
    }

    /// The stream has no buffered output: the next line has yet to arrive.
    pub fn is_waiting(&self) -> bool {
        self.ready.is_empty()
    }

    /// Returns the next line of the stream; `None` after the last. Cancel safe.
    pub async fn next(&mut self) -> Result<Option<ExecOutput>> {
        loop {
            if let Some(line) = self.ready.pop_front() {
                let parsed = serde_json::from_slice(&line);
                return parsed.map(Some).map_err(|error| {
                    self.client.unexpected_response(&format!("a line of the command's output is not valid: {error}"))
                });
            }
            match self.response.chunk().await.map_err(|error| self.client.broken_response(&error))? {
                Some(bytes) => self.ready.extend(self.lines.push(&bytes)),
                None => return Ok(None),
            }
        }
    }

    /// Reads the output to the command's end.
    pub async fn collect_output(mut self) -> Result<CommandOutput> {
        let mut output = CommandOutput::default();
        while let Some(line) = self.next().await? {
            match output_bytes(&line) {
                Some((OutputStream::Stdout, bytes)) => output.stdout.extend(bytes),
                Some((OutputStream::Stderr, bytes)) => output.stderr.extend(bytes),
                None => {}
            }
            if let ExecOutput::Exit { exit } | ExecOutput::Failed { exit, .. } = line {
                output.exit = Some(exit);
            }
        }
        Ok(output)
    }
}

/// The bytes that a line of a command's output carries.
pub fn output_bytes(line: &ExecOutput) -> Option<(OutputStream, Vec<u8>)> {
    match line {
        ExecOutput::Text { stream, data, .. } => Some((*stream, data.as_bytes().to_vec())),
        ExecOutput::Binary { stream, base64, .. } => Some((*stream, STANDARD.decode(base64).ok()?)),
        ExecOutput::Gap { .. } | ExecOutput::Failed { .. } | ExecOutput::Exit { .. } => None,
    }
}

/// Splits chunks into lines.
#[derive(Debug, Default)]
struct LineSplitter(Vec<u8>);

impl LineSplitter {
    fn push(&mut self, bytes: &[u8]) -> Vec<Vec<u8>> {
        self.0.extend_from_slice(bytes);
        let Some(end) = self.0.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.0.split_off(end + 1);
        let complete = std::mem::replace(&mut self.0, rest);
        complete.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn returns_complete_lines_only() {
        let mut lines = LineSplitter::default();
        assert_eq!(lines.push(b"{\"a\":"), Vec::<Vec<u8>>::new());
        assert_eq!(lines.push(b"1}\n\n{\"b\":2}\n{"), [b"{\"a\":1}".to_vec(), b"{\"b\":2}".to_vec()]);
        assert_eq!(lines.push(b"}\n"), [b"{}".to_vec()]);
    }

    #[test]
    fn parses_every_kind_of_line() {
        let parse = |text: &str| serde_json::from_str::<ExecOutput>(text).unwrap();
        let text = parse(r#"{"stream":"stdout","data":"ä","cursor":2}"#);
        assert_eq!(output_bytes(&text), Some((OutputStream::Stdout, "ä".as_bytes().to_vec())));
        let binary = parse(r#"{"stream":"stderr","base64":"/w==","cursor":3}"#);
        assert_eq!(output_bytes(&binary), Some((OutputStream::Stderr, vec![0xff])));
        assert_eq!(parse(r#"{"gap":7}"#), ExecOutput::Gap { gap: 7 });
        let exit = CommandExit::Exited { code: 3 };
        assert_eq!(parse(r#"{"exit":{"kind":"exited","code":3}}"#), ExecOutput::Exit { exit });
        let failed = parse(r#"{"error":"gone","exit":{"kind":"unknown"}}"#);
        assert_eq!(failed, ExecOutput::Failed { error: "gone".to_owned(), exit: CommandExit::Unknown });
    }
}
