//! Prints a session's transcript in the format of `opencode export`. It asks the running server, which takes
//! milliseconds; the program takes seconds.

use super::http::ServerClient;
use super::request::sanitize_id;
use atoll_core::bounds::MAX_BLOB_BYTES;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// File in the agent's home. It contains the server's password, which the agent's own environment contains, too.
const ADDRESS_FILE: &str = ".atoll-opencode-server.json";
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ADDRESS_FILE_BYTES: u64 = 64 * 1024;

/// Advertises the server's address in a file until it is dropped.
#[derive(Debug)]
pub(super) struct AdvertisedServer(Option<PathBuf>);

impl AdvertisedServer {
    pub(super) fn advertise(client: &ServerClient) -> Self {
        let Some(home) = std::env::var_os("HOME") else { return Self(None) };
        let path = PathBuf::from(home).join(ADDRESS_FILE);
        let write = || -> io::Result<()> {
            // Removes the file of an earlier server.
            drop(fs::remove_file(&path));
            let mut file = File::options().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(client.as_json().to_string().as_bytes())
        };
        Self(write().is_ok().then_some(path))
    }
}

impl Drop for AdvertisedServer {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            drop(fs::remove_file(path));
        }
    }
}

/// Prints the transcript; fails if no server runs.
pub fn print_transcript(home: &Path, session: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("failed to start the runtime: {error}"))?;
    let client = find_server(home).ok_or("no server of OpenCode is running")?;
    let printed =
        runtime.block_on(async { tokio::time::timeout(RESPONSE_TIMEOUT, print_session(&client, session)).await });
    printed.unwrap_or_else(|_| Err("OpenCode's server timed out".to_owned()))
}

fn find_server(home: &Path) -> Option<ServerClient> {
    let mut text = String::new();
    File::open(home.join(ADDRESS_FILE)).ok()?.take(MAX_ADDRESS_FILE_BYTES).read_to_string(&mut text).ok()?;
    ServerClient::from_json(&serde_json::from_str::<Value>(&text).ok()?)
}

/// Prints nothing on failure: the caller then tries the program.
async fn print_session(client: &ServerClient, session: &str) -> Result<(), String> {
    let (mut all, mut most) = (b"{\"info\":".to_vec(), MAX_BLOB_BYTES);
    let session = sanitize_id(session);
    client.copy_body(&format!("/session/{session}"), &mut all, &mut most).await?;
    all.extend_from_slice(b",\"messages\":");
    client.copy_body(&format!("/session/{session}/message"), &mut all, &mut most).await?;
    all.extend_from_slice(b"}\n");
    io::stdout().lock().write_all(&all).map_err(|error| format!("failed to print the transcript: {error}"))
}
