//! Saves the token of an external sandbox's worker and prints the command that starts the worker.

use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::text::escape_line;
use atoll_api::WorkerStart;
use atoll_core::id::SandboxId;
use serde::Serialize;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Fails before a token is created that could not be written.
pub fn require_new_file(out: Option<&Path>) -> Result {
    match out {
        Some(path) if path.exists() => {
            Err(Failure::input(format!("{} already exists", path.display()))
                .with_hint("Name a new file for the token."))
        }
        _ => Ok(()),
    }
}

/// The default file: beside the server's data, or in the working directory.
fn default_token_file(client: &ConnectedClient, sandbox: SandboxId) -> PathBuf {
    let name = format!("worker-{sandbox}.token");
    match &client.address.local {
        Some(dir) => dir.join(name),
        None => PathBuf::from(name),
    }
}

/// The file of a worker's token, and the command line that starts the worker.
#[derive(Debug, Serialize)]
pub struct SavedWorkerToken {
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_file: Option<PathBuf>,
    command: String,
}

/// Writes the worker's token to a private file.
pub fn save_worker_token(
    client: &ConnectedClient,
    sandbox: SandboxId,
    start: &WorkerStart,
    out: Option<&Path>,
) -> Result<SavedWorkerToken> {
    let Some(token) = &start.token else {
        return Ok(SavedWorkerToken { token: None, token_file: None, command: start.command.clone() });
    };
    let file = out.map_or_else(|| default_token_file(client, sandbox), Path::to_owned);
    let file = std::path::absolute(&file).unwrap_or(file);
    write_secret_file(&file, token, out.is_none()).map_err(|error| {
        Failure::setup("token_file", format!("cannot write the worker's token to {}: {error}", file.display()))
            .with_hint(format!("Create a new one with `atoll sandbox worker-token {sandbox} --out FILE`."))
    })?;
    let spool = file.with_extension("spool");
    let mut command = start
        .command
        .replace("--token-file FILE", &format!("--token-file {}", shell_quote(&file)))
        .replace("--spool DIR", &format!("--spool {}", shell_quote(&spool)));
    if !command.contains("--stdin") {
        command.push_str(" --stdin");
    }
    Ok(SavedWorkerToken { token: None, token_file: Some(file), command })
}

impl SavedWorkerToken {
    pub fn print(&self, output: &Output) -> Result {
        if let Some(file) = &self.token_file {
            output.print_line(&format!("the worker's token is in {}", escape_line(&file.display().to_string())))?;
        }
        output.print_line("start the worker on any machine that reaches the server; it reads events as NDJSON:")?;
        output.print_line(&format!("  {}", escape_line(&self.command)))?;
        output.print_line("with --messages it prints messages; `atoll-worker --help` describes both formats")
    }
}

/// Writes a file that only its owner can read; replaces an existing one atomically.
pub fn write_secret_file(path: &Path, secret: &str, replace: bool) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let target = if replace { &temporary } else { path };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).mode(0o600);
    if replace {
        drop(std::fs::remove_file(&temporary));
    }
    let mut file = options.create_new(true).open(target)?;
    writeln!(file, "{secret}")?;
    file.sync_all()?;
    if replace { std::fs::rename(&temporary, path) } else { Ok(()) }
}

/// Quotes a path for a shell.
pub fn shell_quote(path: &Path) -> String {
    let text = path.display().to_string();
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+,:@%".contains(&b);
    if !text.is_empty() && text.bytes().all(plain) { text } else { format!("'{}'", text.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn quotes_paths_for_a_shell() {
        assert_eq!(shell_quote(Path::new("/a/b-1.token")), "/a/b-1.token");
        assert_eq!(shell_quote(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }

    #[test]
    fn secret_files_are_private() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("worker.token");
        write_secret_file(&path, "one", false).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(write_secret_file(&path, "two", false).is_err());
        write_secret_file(&path, "two", true).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two\n");
    }
}
