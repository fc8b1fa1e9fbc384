//! `atoll sandbox exec`: a command in a sandbox, with its output and its exit code.

use super::commands;
use crate::arguments::pair;
use crate::client::Client;
use crate::client::exec::{Running, bytes_of};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::text;
use crate::run::signals::Signals;
use atoll_core::id::SandboxId;
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::FileTypeExt;
use std::time::Duration;
use tokio::time::timeout;

/// For the server to answer when there is nothing more to be had of it.
const GRACE: Duration = Duration::from_secs(5);
const TIMED_OUT: u8 = 124;
const OUT_OF_MEMORY: u8 = 125;
const UNKNOWN: u8 = 126;
const SIGNALLED: u8 = 128;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox exec sbx_… -- cargo test
  atoll sandbox exec sbx_… --shell 'ls | wc -l' --cwd src
  atoll sandbox exec sbx_… -- git apply < change.patch
  tar c src | atoll sandbox exec sbx_… -- tar x
  atoll sandbox exec sbx_… -t -- htop
  atoll sandbox exec sbx_… --list

What is piped in becomes the command's input, as it comes. Ctrl-C ends the command with everything that it started.
The exit code is the command's own, or 128 and the signal that ended it; 124 when its time ran out, 125 when its
memory ran out, 126 when nobody can say how it ended.")]
pub struct Exec {
    id: SandboxId,
    /// The program and its arguments
    #[arg(last = true, required_unless_present_any = ["shell", "list", "end"], conflicts_with = "shell", value_name = "ARGV")]
    argv: Vec<String>,
    /// A command line for the sandbox's shell instead
    #[arg(long, value_name = "TEXT")]
    shell: Option<String>,
    /// Where it runs [default: the workspace]
    #[arg(long, value_name = "DIR")]
    cwd: Option<String>,
    /// A variable of its environment; several times
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// As the sandbox's own root, which only one with an imported root has
    #[arg(long)]
    root: bool,
    /// End it after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..))]
    timeout: Option<u32>,
    /// Give it no input, whatever is piped in
    #[arg(long)]
    no_stdin: bool,
    /// Give it a terminal, shown in this one; Ctrl-] leaves it
    #[arg(short = 't', long = "terminal", conflicts_with = "no_stdin")]
    terminal: bool,
    /// List the commands that run, or ended a while ago
    #[arg(long, conflicts_with_all = ["argv", "shell", "end"])]
    list: bool,
    /// End a command with everything that it started
    #[arg(long, value_name = "EID", conflicts_with_all = ["argv", "shell"])]
    end: Option<String>,
}

impl Exec {
    fn body(&self, takes_input: bool) -> Value {
        let mut body = Map::new();
        let mut put = |field: &str, value: Option<Value>| body.extend(value.map(|value| (field.to_owned(), value)));
        put("argv", Some(self.argv.clone().into()).filter(|_| self.shell.is_none()));
        put("shell", self.shell.clone().map(Value::from));
        put("cwd", self.cwd.clone().map(Value::from));
        put("root", self.root.then_some(Value::Bool(true)));
        put("timeout_s", self.timeout.map(Value::from));
        put("stdin", takes_input.then_some(Value::Bool(true)));
        let env = self.env.iter().map(|(name, value)| (name.clone(), Value::from(value.clone())));
        put("env", (!self.env.is_empty()).then(|| Value::Object(env.collect())));
        Value::Object(body)
    }
}

pub async fn run(exec: &Exec, client: &Client, output: &Output) -> Result {
    if exec.list {
        return commands::list(exec.id, client, output).await;
    }
    if let Some(command) = &exec.end {
        return commands::end(exec.id, command, client, output).await;
    }
    if exec.terminal {
        return super::shell::on_terminal(exec.id, exec.body(false), client, output).await;
    }
    let mut signals = Signals::listen()?;
    let takes_input = !exec.no_stdin && is_piped_in();
    let body = exec.body(takes_input);
    let starting = client.exec(exec.id, &body);
    tokio::pin!(starting);
    let (mut running, interrupted) = tokio::select! {
        running = &mut starting => (running?, false),
        // It may have begun: its name is waited for, to end it by.
        _ = signals.next() => match timeout(GRACE, &mut starting).await {
            Ok(running) => (running?, true),
            Err(_) => return Err(Failure::interrupted()),
        },
    };
    let name = running.id().ok_or_else(|| client.not_atoll("a command without an id"))?;
    let path = format!("/sandboxes/{}/exec/{name}", exec.id);
    let exit = if interrupted {
        Err(Failure::interrupted())
    } else {
        tokio::select! {
            exit = attend(&mut running, &path, takes_input, client, output) => exit,
            _ = signals.next() => Err(Failure::interrupted()),
        }
    };
    let exit = match exit {
        Ok(exit) => exit,
        Err(failure) => {
            // Whatever it was: nobody hears the command any more, and nobody would know of it.
            return match timeout(GRACE, client.delete(&path, &[])).await {
                Ok(Ok(_)) => Err(failure),
                Ok(Err(_)) | Err(_) => {
                    output.note(&format!("atoll: the command may run on; see `atoll sandbox exec {} --list`", exec.id));
                    Err(failure)
                }
            };
        }
    };
    let (code, said) = ended(exit.as_ref());
    if let Some(said) = said.filter(|_| !output.json) {
        output.note(&format!("atoll: {said}"));
    }
    nothing_but_the_code(code)
}

/// To the command's end, while what is piped in goes to it.
async fn attend(
    running: &mut Running<'_>,
    path: &str,
    takes_input: bool,
    client: &Client,
    output: &Output,
) -> Result<Option<Value>> {
    let reading = read(running, output);
    tokio::pin!(reading);
    if !takes_input {
        return reading.await;
    }
    let fed = tokio::select! {
        exit = &mut reading => return exit,
        fed = client.feed(path) => fed,
    };
    match fed {
        Ok(()) => reading.await,
        // It wanted no more, or it is about to be heard that it has ended.
        Err(Failure::Told(told)) if told.code == "no_input" => reading.await,
        Err(failure) => timeout(GRACE, &mut reading).await.unwrap_or(Err(failure)),
    }
}

async fn read(running: &mut Running<'_>, output: &Output) -> Result<Option<Value>> {
    let mut streams = Streams::new(output);
    let mut exit = None;
    while let Some(line) = running.next().await? {
        streams.show(&line)?;
        exit = line.get("exit").cloned().or(exit);
        if running.is_waiting() {
            output.flush()?;
        }
    }
    streams.finish()?;
    Ok(exit)
}

/// All has been said but the code.
pub(super) const fn nothing_but_the_code(code: u8) -> Result {
    if code == 0 { Ok(()) } else { Err(Failure::Silent(code)) }
}

/// A pipe or a file: a terminal is not read, and a device like /dev/null has nothing to say.
fn is_piped_in() -> bool {
    let stdin = std::io::stdin();
    let device = || {
        let own = rustix::io::dup(&stdin).map(File::from);
        own.and_then(|file| file.metadata().map_err(|_| rustix::io::Errno::BADF))
            .is_ok_and(|found| found.file_type().is_char_device())
    };
    !stdin.is_terminal() && !device()
}

/// The exit code, and a sentence where it says too little.
pub(super) fn ended(exit: Option<&Value>) -> (u8, Option<&'static str>) {
    let number = |field: &str| exit.and_then(|exit| u8::try_from(exit[field].as_i64()?).ok());
    match exit.and_then(|exit| exit["kind"].as_str()) {
        Some("exited") => number("code").map_or((UNKNOWN, Some(NOBODY_KNOWS)), |code| (code, None)),
        Some("signalled") => (SIGNALLED.saturating_add(number("signal").unwrap_or(0)), None),
        Some("out_of_memory") => (OUT_OF_MEMORY, Some("the command was killed because the sandbox's memory ran out")),
        Some("timed_out") => (TIMED_OUT, Some("the command was ended because its time ran out")),
        _ => (UNKNOWN, Some(NOBODY_KNOWS)),
    }
}

const NOBODY_KNOWS: &str = "it is not known how the command ended";

/// The command's two outputs, each to its own.
struct Streams<'a> {
    output: &'a Output,
    stdout: Harmless,
    stderr: Harmless,
}

impl<'a> Streams<'a> {
    fn new(output: &'a Output) -> Self {
        let of = |terminal: bool| Harmless { terminal, held: Vec::new() };
        let (stdout, stderr) = (std::io::stdout().is_terminal(), std::io::stderr().is_terminal());
        Self { output, stdout: of(stdout), stderr: of(stderr) }
    }

    fn show(&mut self, line: &Value) -> Result {
        if self.output.json {
            return self.output.object(line);
        }
        if let Some(error) = line["error"].as_str() {
            self.output.note(&format!("atoll: {error}"));
        }
        if let Some(cursor) = line["gap"].as_u64() {
            self.output.note(&format!("atoll: output up to byte {cursor} is no longer kept"));
        }
        let Some(data) = bytes_of(line) else { return Ok(()) };
        if line["stream"] == "stderr" {
            // Nothing can be done if it is closed.
            drop(std::io::stderr().lock().write_all(&self.stderr.take(&data)));
            Ok(())
        } else {
            self.output.bytes(&self.stdout.take(&data))
        }
    }

    /// What was held back because it is no whole character.
    fn finish(&mut self) -> Result {
        let (stdout, stderr) = (self.stdout.rest(), self.stderr.rest());
        drop(std::io::stderr().lock().write_all(&stderr));
        self.output.bytes(&stdout)?;
        self.output.flush()
    }
}

/// As it is to a pipe; to a terminal nothing that it could obey.
#[derive(Debug, Default)]
struct Harmless {
    terminal: bool,
    /// The beginning of a character whose rest is to come.
    held: Vec<u8>,
}

impl Harmless {
    fn take(&mut self, data: &[u8]) -> Vec<u8> {
        if !self.terminal {
            return data.to_vec();
        }
        self.held.extend_from_slice(data);
        let whole = match std::str::from_utf8(&self.held) {
            // Without a length it is only cut short, not wrong.
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.held.len(),
        };
        let rest = self.held.split_off(whole);
        let whole = std::mem::replace(&mut self.held, rest);
        text::block(&String::from_utf8_lossy(&whole)).into_bytes()
    }

    fn rest(&mut self) -> Vec<u8> {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned().into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_end_has_its_exit_code() {
        let code = |exit: Value| ended(Some(&exit)).0;
        assert_eq!(code(json!({"kind": "exited", "code": 0})), 0);
        assert_eq!(code(json!({"kind": "exited", "code": 3})), 3);
        assert_eq!(code(json!({"kind": "signalled", "signal": 9})), 137);
        assert_eq!(code(json!({"kind": "out_of_memory"})), 125);
        assert_eq!(code(json!({"kind": "timed_out"})), 124);
        assert_eq!(code(json!({"kind": "unknown"})), 126);
        assert_eq!(code(json!({"kind": "exited"})), 126, "no code is never 0");
        assert_eq!(ended(None).0, 126);
    }

    #[test]
    fn a_terminal_gets_whole_characters_and_nothing_to_obey() {
        let mut harmless = Harmless { terminal: true, held: Vec::new() };
        assert_eq!(harmless.take(b"a\xc3"), b"a");
        assert_eq!(harmless.take(b"\xa4\x1b[2J\n"), "ä␛[2J\n".as_bytes());
        assert_eq!(harmless.take(b"\xff!"), "\u{fffd}!".as_bytes());
        assert_eq!(harmless.take(b"\xe2\x82"), b"");
        assert_eq!(harmless.rest(), "\u{fffd}".as_bytes());
        let mut pipe = Harmless::default();
        assert_eq!(pipe.take(b"\xff\x1b"), b"\xff\x1b");
    }
}
