//! The process of OpenCode's server.

use super::http::ServerClient;
use rand::RngExt;
use std::net::SocketAddr;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

/// OpenCode unpacks itself at its first start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Printed when the server listens; earlier connections can hang.
const LISTENING_PREFIX: &str = "listening on http://";

#[derive(Debug)]
pub(super) struct OpenCodeServer {
    child: Child,
    client: ServerClient,
}

impl OpenCodeServer {
    pub(super) async fn start(program: &str) -> Result<Self, String> {
        // The password keeps other processes in the sandbox from using the session by accident.
        let password: String = rand::rng().sample_iter(rand::distr::Alphanumeric).take(32).map(char::from).collect();
        let mut command = Command::new(program);
        command.args(["serve", "--hostname", "127.0.0.1", "--port", "0"]).env("OPENCODE_SERVER_PASSWORD", &password);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| format!("failed to start {program}: {error}"))?;
        let stdout = child.stdout.take().ok_or("the server has no output")?;
        let mut lines = BufReader::new(stdout).lines();
        let listening = async {
            while let Ok(Some(line)) = lines.next_line().await {
                if let Some(address) = parse_address(&line) {
                    return Ok(address);
                }
            }
            Err(format!("{program} ended before it listened on a port"))
        };
        let address = tokio::time::timeout(START_TIMEOUT, listening)
            .await
            .map_err(|_| format!("{program} did not listen in time"))??;
        // Drains the output, so that the server does not block on a full pipe.
        tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
        let directory =
            std::env::current_dir().map_err(|error| format!("failed to get the working directory: {error}"))?;
        Ok(Self { child, client: ServerClient::new(address, &password, &directory.to_string_lossy()) })
    }

    pub(super) fn client(&self) -> ServerClient {
        self.client.clone()
    }

    pub(super) async fn wait_for_exit(&mut self) -> std::io::Result<ExitStatus> {
        self.child.wait().await
    }

    pub(super) async fn stop(mut self) {
        if let Some(pid) = self.child.id().and_then(|id| rustix::process::Pid::from_raw(id.cast_signed())) {
            // Fails only if the process has already ended.
            let _gone = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await.is_err() {
            drop(self.child.kill().await);
        }
    }
}

fn parse_address(line: &str) -> Option<SocketAddr> {
    let (_, address) = line.split_once(LISTENING_PREFIX)?;
    address.trim().trim_end_matches('/').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_address() {
        let at = parse_address("opencode server listening on http://127.0.0.1:4096");
        assert_eq!(at, Some(([127, 0, 0, 1], 4096).into()));
        for other in ["", "listening", "listening on http://name", "listening on https://127.0.0.1:1"] {
            assert_eq!(parse_address(other), None, "{other}");
        }
    }
}
