//! The server's process.

use super::http::Client;
use rand::RngExt;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// For it to come up: it unpacks itself on its first start, and may share the machine with many.
const STARTING: Duration = Duration::from_secs(120);
/// For it to go by itself.
const GOING: Duration = Duration::from_secs(1);
/// What it says when it listens; a connection made before that can hang.
const LISTENING: &str = "listening on http://";

#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    client: Client,
}

impl Server {
    pub(super) async fn start(program: &str) -> Result<Self, String> {
        // So that nobody else in the sandbox speaks in the agent's name by accident.
        let password: String = rand::rng().sample_iter(rand::distr::Alphanumeric).take(32).map(char::from).collect();
        let mut command = Command::new(program);
        command.args(["serve", "--hostname", "127.0.0.1", "--port", "0"]).env("OPENCODE_SERVER_PASSWORD", &password);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("failed to start {program}: {error}"))?;
        let stdout = child.stdout.take().ok_or("it has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let listening = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(address) = address(&line) {
                    return Ok(address);
                }
            }
            Err(format!("{program} ended before it listened"))
        };
        let address =
            tokio::time::timeout(STARTING, listening).await.map_err(|_| format!("{program} does not listen"))??;
        // What it says later is nobody's, but a full pipe would hold it up.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let directory =
            std::env::current_dir().map_err(|error| format!("there is no directory to work in: {error}"))?;
        Ok(Self { child, client: Client::new(address, &password, &directory.to_string_lossy()) })
    }

    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) async fn ended(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    pub(super) async fn end(mut self) {
        if let Some(pid) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            // One that has gone already has done what it was to do.
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(GOING, self.child.wait()).await.is_err() {
            drop(self.child.kill().await);
        }
    }
}

fn address(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once(LISTENING)?;
    address.trim().trim_end_matches('/').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_where_it_listens() {
        let at = address("opencode server listening on http://127.0.0.1:4096");
        assert_eq!(at, Some(([127, 0, 0, 1], 4096).into()));
        for other in ["", "listening", "listening on http://somewhere", "listening on https://127.0.0.1:1"] {
            assert_eq!(address(other), None, "{other}");
        }
    }
}
