//! `atoll sandbox cp`: files and trees in and out of a sandbox. What comes out of one is hostile: it is put below the
//! destination, which nothing of it can leave.

mod channel;
mod down;
mod progress;
mod up;

use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::output::Output;
use atoll_core::id::SandboxId;
use serde_json::{Value, json};
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

One side is ID:PATH, absolute inside the sandbox or below its workspace. A directory is copied with all
that is in it: into DST if that is a directory, else as DST. `-` is the standard input or output, where a
directory is a tar. A tree from a sandbox is copied without what is neither file nor directory nor a link
that stays within it: this is named, and the exit code is 1.")]
pub struct Copy {
    /// A file or directory here, ID:PATH in a sandbox, or `-`
    #[arg(value_name = "SRC")]
    source: Side,
    /// The same
    #[arg(value_name = "DST")]
    destination: Side,
}

/// One end of a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Side {
    Inside { id: SandboxId, path: String },
    Here(PathBuf),
    Stream,
}

impl FromStr for Side {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "-" {
            return Ok(Self::Stream);
        }
        match text.split_once(':') {
            // A file of such a name is reached as ./sbx_…
            Some((id, path)) if id.starts_with("sbx_") => {
                let id = id.parse().map_err(|error| format!("{error}; `atoll sandbox ls` lists them"))?;
                Ok(Self::Inside { id, path: if path.is_empty() { "." } else { path }.to_owned() })
            }
            _ => Ok(Self::Here(text.into())),
        }
    }
}

/// A place in a sandbox, for the requests.
struct Inside<'a> {
    client: &'a Client,
    id: SandboxId,
    path: &'a str,
}

impl Inside<'_> {
    fn at(&self, rest: &str) -> String {
        format!("/sandboxes/{}/files{rest}", self.id)
    }

    fn query(path: &str) -> [(&'static str, String); 1] {
        [("path", path.to_owned())]
    }

    /// What is there; nothing if there is nothing.
    async fn look(&self) -> Result<Option<Value>> {
        match self.client.get(&self.at("/stat"), &Self::query(self.path)).await {
            Ok(found) => Ok(Some(found)),
            Err(Failure::Told(told)) if told.code == "file_not_found" => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Whether it is a directory, also by a link. A link to a directory lists; one to a file does not.
    async fn is_directory(&self) -> Result<bool> {
        let Some(found) = self.look().await? else { return Ok(false) };
        if found["kind"] != "link" {
            return Ok(found["kind"] == "directory");
        }
        let query = [("path", self.path.to_owned()), ("limit", "1".to_owned())];
        Ok(self.client.get(&self.at("/list"), &query).await.is_ok())
    }
}

/// What was copied, and what not.
#[derive(Debug, Default)]
struct Copied {
    bytes: u64,
    entries: u64,
    skipped: u64,
    named: Vec<(String, String)>,
}

impl Copied {
    /// Of an answer of the server.
    fn told(answer: &Value) -> Self {
        let count = |field: &str| answer[field].as_u64().unwrap_or(0);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let named = answer["named"].as_array().into_iter().flatten();
        Self {
            bytes: count("bytes"),
            entries: count("entries"),
            skipped: count("skipped"),
            named: named.map(|one| (text(&one["path"]), text(&one["why"]))).collect(),
        }
    }

    fn finish(self, output: &Output, tell: bool) -> Result {
        if output.json && tell {
            let told = json!({ "bytes": self.bytes, "entries": self.entries, "skipped": self.skipped });
            output.object(&told)?;
        }
        for (path, why) in &self.named {
            output.note(&format!("atoll: {path} was not copied: {why}"));
        }
        match self.skipped {
            0 => Ok(()),
            1 => Err(Failure::work("not_copied", "one entry was not copied")),
            count => Err(Failure::work("not_copied", format!("{count} entries were not copied"))),
        }
    }
}

pub async fn run(copy: &Copy, client: &Client, output: &Output) -> Result {
    let copying = async {
        match (&copy.source, &copy.destination) {
            (Side::Here(from), Side::Inside { id, path }) => {
                up::from_here(from, &Inside { client, id: *id, path }, output).await
            }
            (Side::Stream, Side::Inside { id, path }) => up::from_stdin(&Inside { client, id: *id, path }).await,
            (Side::Inside { id, path }, Side::Here(to)) => {
                down::to_here(&Inside { client, id: *id, path }, to, output).await
            }
            (Side::Inside { id, path }, Side::Stream) => {
                down::to_stdout(&Inside { client, id: *id, path }, output).await
            }
            (Side::Inside { .. }, Side::Inside { .. }) => {
                Err(Failure::input("both sides are in a sandbox; copy to this machine first, and from there"))
            }
            (Side::Here(_) | Side::Stream, Side::Here(_) | Side::Stream) => {
                Err(Failure::input("one side must be in a sandbox: ID:PATH"))
            }
        }
    };
    tokio::select! {
        // With content on the standard output nothing else may stand there.
        copied = copying => copied?.finish(output, copy.destination != Side::Stream),
        _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_told_apart() {
        const ID: &str = "sbx_01m7fkrr8mezdtrwya23zj4ref";
        let id = ID.parse().unwrap();
        let inside = |path: &str| Ok(Side::Inside { id, path: path.to_owned() });
        assert_eq!(format!("{ID}:a/b").parse(), inside("a/b"));
        assert_eq!(format!("{ID}:/a:b").parse(), inside("/a:b"));
        assert_eq!(format!("{ID}:").parse(), inside("."));
        assert_eq!("-".parse(), Ok(Side::Stream));
        for here in ["a", "./sbx_x:y", "c:/x", ID] {
            assert_eq!(here.parse(), Ok(Side::Here(here.into())));
        }
        assert!("sbx_nonsense:x".parse::<Side>().is_err());
    }
}
