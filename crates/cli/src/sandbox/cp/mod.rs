//! `atoll sandbox cp`: copies files and directories to or from a sandbox.

mod copy_progress;
mod download_copy;
mod upload_copy;

use super::readiness::retry_until_running;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::SandboxRef;
use atoll_api::{ErrorCode, FileListQuery, SandboxFile};
use atoll_core::id::SandboxId;
use atoll_core::provider::files::{FileKind, UploadSummary};
use serde_json::json;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox cp notes.md sbx_…:docs/notes.md
  atoll sandbox cp sbx_…:target/report ./report
  atoll sandbox cp src sbx_…:
  tar c . | atoll sandbox cp - sbx_…:/tmp/all.tar
  atoll sandbox cp sbx_…:/tmp/log - | less

One side is SANDBOX:PATH; PATH is absolute or relative to the workspace. A directory is copied into DST if DST
is a directory, otherwise as DST. `-` is stdin or stdout; a directory becomes a tar archive there. A copy
from a sandbox skips special files and links that leave the tree; the command lists them and exits with 1.")]
pub struct CopyCommand {
    /// Local path, SANDBOX:PATH, or `-`
    #[arg(value_name = "SRC")]
    source: CopySide,
    /// Local path, SANDBOX:PATH, or `-`
    #[arg(value_name = "DST")]
    destination: CopySide,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum CopySide {
    Sandbox { sandbox: SandboxRef, path: String },
    Local(PathBuf),
    Stream,
}

impl FromStr for CopySide {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-" {
            return Ok(Self::Stream);
        }
        match text.split_once(':') {
            // Write a local file of such a name as ./NAME:…
            Some((sandbox, path)) if !sandbox.is_empty() && !sandbox.contains('/') => {
                let path = if path.is_empty() { "." } else { path }.to_owned();
                Ok(Self::Sandbox { sandbox: sandbox.parse()?, path })
            }
            _ => Ok(Self::Local(text.into())),
        }
    }
}

/// A path in a sandbox.
struct SandboxPath<'a> {
    client: &'a ConnectedClient,
    id: SandboxId,
    path: &'a str,
}

impl SandboxPath<'_> {
    /// Returns the entry at the path, if there is one.
    async fn stat_path(&self) -> Result<Option<SandboxFile>> {
        match self.client.stat_file(self.id, self.path).await {
            Ok(found) => Ok(Some(found)),
            Err(error) if error.code() == Some(ErrorCode::FileNotFound) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The path is a directory, or a link to one: the server can list it.
    async fn is_directory(&self) -> Result<bool> {
        let Some(found) = self.stat_path().await? else { return Ok(false) };
        if found.kind != FileKind::Link {
            return Ok(found.kind == FileKind::Directory);
        }
        let query = FileListQuery { path: Some(self.path.to_owned()), limit: Some(1), cursor: None };
        Ok(self.client.list_files(self.id, &query).await.is_ok())
    }
}

/// The copied and the skipped entries of a copy.
#[derive(Debug, Default)]
struct CopyReport {
    bytes: u64,
    entries: u64,
    skipped: u64,
    /// Paths and reasons of skipped entries.
    named: Vec<(String, String)>,
}

impl From<UploadSummary> for CopyReport {
    fn from(uploaded: UploadSummary) -> Self {
        let named = uploaded.named.into_iter().map(|entry| (entry.path, entry.why)).collect();
        Self { bytes: uploaded.bytes, entries: uploaded.entries, skipped: uploaded.skipped, named }
    }
}

impl CopyReport {
    fn report(self, output: &Output, prints_json: bool) -> Result {
        if output.json && prints_json {
            let report = json!({ "bytes": self.bytes, "entries": self.entries, "skipped": self.skipped });
            output.print_object(&report)?;
        }
        for (path, why) in &self.named {
            output.print_note(&format!("atoll: {path} was not copied: {why}"));
        }
        match self.skipped {
            0 => Ok(()),
            1 => Err(Failure::work("not_copied", "one entry was not copied")),
            count => Err(Failure::work("not_copied", format!("{count} entries were not copied"))),
        }
    }
}

pub async fn run(copy: &CopyCommand, client: &ConnectedClient, output: &Output) -> Result {
    let copying = async {
        match (&copy.source, &copy.destination) {
            (CopySide::Local(_) | CopySide::Stream, CopySide::Sandbox { sandbox, path })
            | (CopySide::Sandbox { sandbox, path }, CopySide::Local(_) | CopySide::Stream) => {
                let id = sandbox.resolve(client).await?;
                let inside = SandboxPath { client, id, path };
                if copy.source == CopySide::Stream {
                    // Standard input can be read only once, so wait for the sandbox before the copy.
                    retry_until_running(id, client, output, async || inside.stat_path().await).await?;
                }
                retry_until_running(id, client, output, async || copy_files(copy, &inside, output).await).await
            }
            (CopySide::Sandbox { .. }, CopySide::Sandbox { .. }) => {
                Err(Failure::input("both sides are in a sandbox; copy to this machine first"))
            }
            (CopySide::Local(_) | CopySide::Stream, CopySide::Local(_) | CopySide::Stream) => {
                Err(Failure::input("one side must be in a sandbox: SANDBOX:PATH"))
            }
        }
    };
    tokio::select! {
        // Print no report if stdout has the content.
        copied = copying => copied?.report(output, copy.destination != CopySide::Stream),
        _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
    }
}

async fn copy_files(copy: &CopyCommand, inside: &SandboxPath<'_>, output: &Output) -> Result<CopyReport> {
    match (&copy.source, &copy.destination) {
        (CopySide::Local(from), _) => upload_copy::copy_local(from, inside, output).await,
        (CopySide::Stream, _) => upload_copy::copy_stdin(inside).await,
        (CopySide::Sandbox { .. }, CopySide::Local(to)) => download_copy::copy_to_local(inside, to, output).await,
        (CopySide::Sandbox { .. }, CopySide::Stream | CopySide::Sandbox { .. }) => {
            download_copy::copy_to_stdout(inside, output).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_sides() {
        const ID: &str = "sbx_01m7fkrr8mezdtrwya23zj4ref";
        let inside_of = |sandbox: &str, path: &str| {
            Ok(CopySide::Sandbox { sandbox: sandbox.parse().unwrap(), path: path.to_owned() })
        };
        let inside = |path: &str| inside_of(ID, path);
        assert_eq!(format!("{ID}:a/b").parse(), inside("a/b"));
        assert_eq!(format!("{ID}:/a:b").parse(), inside("/a:b"));
        assert_eq!(format!("{ID}:").parse(), inside("."));
        assert_eq!("-".parse(), Ok(CopySide::Stream));
        assert_eq!("web:a".parse(), inside_of("web", "a"));
        for local in ["a", "./sbx_x:y", "/c:x", ":x", ID] {
            assert_eq!(local.parse(), Ok(CopySide::Local(local.into())));
        }
    }
}
