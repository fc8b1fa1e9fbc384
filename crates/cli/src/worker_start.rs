//! The worker of an `external` sandbox: its token goes into a file, its command to the screen.

use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_core::id::SandboxId;
use serde_json::Value;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Refuses early what would fail when the token is already made.
pub fn check_place(out: Option<&Path>) -> Result {
    match out {
        Some(path) if path.exists() => Err(Failure::input(format!("{} exists already", path.display()))
            .next("Name a new file: it will hold the worker's token.")),
        _ => Ok(()),
    }
}

/// Where a worker's token goes if nobody says: beside the server's data, or here.
fn default_place(client: &Client, sandbox: SandboxId) -> PathBuf {
    let name = format!("worker-{sandbox}.token");
    match &client.found.local {
        Some(dir) => dir.join(name),
        None => PathBuf::from(name),
    }
}

/// Takes the token out of `worker` into a file of its own, and puts the command that can be pasted there.
pub fn keep(client: &Client, sandbox: SandboxId, worker: &mut Value, out: Option<&Path>) -> Result {
    let Some(token) = worker["token"].as_str().map(str::to_owned) else { return Ok(()) };
    let file = out.map_or_else(|| default_place(client, sandbox), Path::to_owned);
    let file = std::path::absolute(&file).unwrap_or(file);
    write_secret(&file, &token, out.is_none()).map_err(|error| {
        Failure::setup("token_file", format!("the worker's token could not be written to {}: {error}", file.display()))
            .next(format!("`atoll sandbox worker-token {sandbox} --out FILE` makes a new one."))
    })?;
    let spool = file.with_extension("spool");
    let command = worker["command"].as_str().unwrap_or_default();
    let mut command = command
        .replace("--token-file FILE", &format!("--token-file {}", quoted(&file)))
        .replace("--spool DIR", &format!("--spool {}", quoted(&spool)));
    if !command.contains("--stdin") {
        command.push_str(" --stdin");
    }
    *worker = serde_json::json!({ "token_file": file, "command": command });
    Ok(())
}

pub fn tell(worker: &Value, output: &Output) -> Result {
    let text = |field: &str| crate::render::text::inline(worker[field].as_str().unwrap_or_default());
    output.line(&format!("the worker's token is in {}", text("token_file")))?;
    output.line("start the worker, anywhere that reaches the server, with events as lines of JSON on its input:")?;
    output.line(&format!("  {}", text("command")))?;
    output.line("with --messages it hands messages over on its output; `atoll-worker --help` has the form of both")
}

/// A file that nobody else can read. An existing one is replaced as a whole, if at all.
pub fn write_secret(path: &Path, secret: &str, replace: bool) -> std::io::Result<()> {
    let beside = path.with_extension("new");
    let target = if replace { &beside } else { path };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).mode(0o600);
    if replace {
        drop(std::fs::remove_file(&beside));
    }
    let mut file = options.create_new(true).open(target)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    if replace { std::fs::rename(&beside, path) } else { Ok(()) }
}

/// A path as a shell takes it.
pub fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+,:@%".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn paths_survive_a_shell() {
        assert_eq!(quoted(Path::new("/a/b-1.token")), "/a/b-1.token");
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }

    #[test]
    fn a_secret_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.token");
        write_secret(&path, "one", false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(write_secret(&path, "two", false).is_err());
        write_secret(&path, "two", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }
}
