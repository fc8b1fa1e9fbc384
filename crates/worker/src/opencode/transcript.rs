//! The transcript of a session, as the program's own `export` would write it: asked of the server that runs, which
//! takes milliseconds where the program takes seconds.

use super::http::Client;
use super::wire::plain;
use atoll_core::bounds::BLOB_BYTES;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// In the agent's home. Its password is no secret there: it stands in the environment of the agent's own server.
const FILE: &str = ".atoll-opencode-server.json";
/// For a server that works.
const ANSWER: Duration = Duration::from_secs(10);
/// More than such a file ever has.
const LONGEST: u64 = 64 * 1024;

/// How the server is reached is known as long as this lives.
#[derive(Debug)]
pub(super) struct Known(Option<PathBuf>);

impl Known {
    pub(super) fn tell(client: &Client) -> Self {
        let Some(home) = std::env::var_os("HOME") else { return Self(None) };
        let path = PathBuf::from(home).join(FILE);
        let write = || -> io::Result<()> {
            // Of an earlier one.
            drop(fs::remove_file(&path));
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(client.as_json().to_string().as_bytes())
        };
        Self(write().is_ok().then_some(path))
    }
}

impl Drop for Known {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            drop(fs::remove_file(path));
        }
    }
}

/// Fails where no server runs.
pub fn print(home: &Path, session: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to begin: {error}"))?;
    let client = reached(home).ok_or("no server is known")?;
    let printed = runtime.block_on(async { tokio::time::timeout(ANSWER, copy(&client, session)).await });
    printed.unwrap_or_else(|_| Err("it does not answer in time".to_owned()))
}

fn reached(home: &Path) -> Option<Client> {
    let mut text = String::new();
    File::open(home.join(FILE)).ok()?.take(LONGEST).read_to_string(&mut text).ok()?;
    Client::from_json(&serde_json::from_str::<Value>(&text).ok()?)
}

/// Nothing is printed before all of it is there: what follows a failure is another try.
async fn copy(client: &Client, session: &str) -> Result<(), String> {
    let (mut all, mut most) = (b"{\"info\":".to_vec(), BLOB_BYTES);
    let session = plain(session);
    client.copy(&format!("/session/{session}"), &mut all, &mut most).await?;
    all.extend_from_slice(b",\"messages\":");
    client.copy(&format!("/session/{session}/message"), &mut all, &mut most).await?;
    all.extend_from_slice(b"}\n");
    io::stdout().lock().write_all(&all).map_err(|error| format!("failed to print it: {error}"))
}
