//! The engine: reached over its socket on this machine when it is first needed, and what its answers mean here.

use super::facts::Facts;
use atoll_core::provider::{Error, Exit};
use bollard::models::{ContainerState, ContainerStateStatusEnum as Status, ContainerSummaryStateEnum};
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptions, ListContainersOptions, LogsOptions, RemoveContainerOptions,
    RemoveVolumeOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::StreamExt;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

type Failure = bollard::errors::Error;

/// For one answer, in seconds. Loading a large image's layers is the slowest thing that is asked.
const ANSWER: u64 = 120;
/// For what was told to end or to go.
const ENDING: Duration = Duration::from_secs(30);
const GLANCE: Duration = Duration::from_millis(20);
/// A container that was killed for its memory says that it was killed.
const KILLED: i64 = 128 + 9;

pub(super) struct Engine {
    socket: String,
    connected: OnceCell<Connected>,
}

struct Connected {
    client: Docker,
    facts: Facts,
}

/// A container as it is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Made,
    Running,
    Paused,
    Ending,
    Ended(Exit),
}

pub(super) struct Listed {
    pub name: String,
    pub phase: Phase,
}

impl Engine {
    pub(super) fn new(socket: &str) -> Self {
        Self { socket: socket.to_owned(), connected: OnceCell::new() }
    }

    async fn connected(&self) -> Result<&Connected, Error> {
        self.connected.get_or_try_init(|| self.connect()).await
    }

    async fn connect(&self) -> Result<Connected, Error> {
        let Some(path) = self.socket.strip_prefix("unix://").filter(|path| path.starts_with('/')) else {
            let why = "only an engine on this machine can be used, by a socket such as unix:///var/run/docker.sock";
            return Err(Error::Refused { detail: format!("docker.socket is {}: {why}", self.socket) });
        };
        let client = Docker::connect_with_unix(path, ANSWER, API_DEFAULT_VERSION).map_err(|error| self.told(&error))?;
        let client = client.negotiate_version().await.map_err(|error| self.told(&error))?;
        let facts = Facts::of(&client.info().await.map_err(|error| self.told(&error))?);
        Ok(Connected { client, facts })
    }

    pub(super) async fn client(&self) -> Result<&Docker, Error> {
        Ok(&self.connected().await?.client)
    }

    pub(super) async fn facts(&self) -> Result<&Facts, Error> {
        Ok(&self.connected().await?.facts)
    }

    /// What an answer of the engine means for a sandbox.
    pub(super) fn told(&self, error: &Failure) -> Error {
        match error {
            Failure::DockerResponseServerError { status_code: 404, .. } => Error::Gone,
            // In the way now, and perhaps not in a moment.
            Failure::DockerResponseServerError { status_code: 409, message } => {
                Error::Unreachable { detail: format!("the Docker engine is busy with it: {message}") }
            }
            Failure::DockerResponseServerError { status_code: 400..=499, message } => {
                Error::Refused { detail: format!("the Docker engine says: {message}") }
            }
            Failure::DockerResponseServerError { message, .. } => {
                Error::Unreachable { detail: format!("the Docker engine failed: {message}") }
            }
            other => Error::Unreachable {
                detail: format!(
                    "the Docker engine at {} does not answer ({other}); is it running, and may this user use its socket?",
                    self.socket
                ),
            },
        }
    }

    /// `None` when there is no such container.
    pub(super) async fn phase(&self, name: &str) -> Result<Option<Phase>, Error> {
        let found = self.client().await?.inspect_container(name, None::<InspectContainerOptions>).await;
        match found {
            Ok(found) => Ok(Some(found.state.as_ref().map_or(Phase::Made, phase))),
            Err(error) => match self.told(&error) {
                Error::Gone => Ok(None),
                error => Err(error),
            },
        }
    }

    /// All containers that carry these labels, whatever they do.
    pub(super) async fn list(&self, labels: &[(&str, &str)]) -> Result<Vec<Listed>, Error> {
        let wanted = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let filters = Some(HashMap::from([("label".to_owned(), wanted)]));
        let options = ListContainersOptions { all: true, filters, ..ListContainersOptions::default() };
        let found = self.client().await?.list_containers(Some(options)).await.map_err(|error| self.told(&error))?;
        let listed = found.into_iter().filter_map(|one| {
            let name = one.names?.into_iter().next()?.trim_start_matches('/').to_owned();
            Some(Listed { name, phase: summary(one.state) })
        });
        Ok(listed.collect())
    }

    /// Ends every process in it; one that has ended already is as wished.
    pub(super) async fn kill(&self, name: &str) -> Result<(), Error> {
        let client = self.client().await?;
        let deadline = Instant::now() + ENDING;
        loop {
            match self.phase(name).await? {
                Some(Phase::Ended(_) | Phase::Made) | None => return Ok(()),
                // What is frozen dies only when it is not.
                Some(Phase::Paused) => drop(client.unpause_container(name).await),
                Some(Phase::Running | Phase::Ending) => {}
            }
            if Instant::now() > deadline {
                return Err(Error::Unreachable { detail: format!("its container still lives after {ENDING:?}") });
            }
            let options = KillContainerOptions { signal: "KILL".to_owned() };
            match client.kill_container(name, Some(options)).await.map_err(|error| self.told(&error)) {
                // It may be ending by itself just now.
                Ok(()) | Err(Error::Gone | Error::Unreachable { .. }) => {}
                Err(error) => return Err(error),
            }
            sleep(GLANCE).await;
        }
    }

    /// Removes it with its processes and the volumes that are its alone, and sees that it is gone.
    pub(super) async fn remove(&self, name: &str) -> Result<(), Error> {
        let client = self.client().await?;
        let deadline = Instant::now() + ENDING;
        loop {
            let options = RemoveContainerOptions { v: true, force: true, ..RemoveContainerOptions::default() };
            let removed = client.remove_container(name, Some(options)).await;
            match removed.map_err(|error| self.told(&error)) {
                Err(Error::Gone) => return Ok(()),
                Ok(()) => {}
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => sleep(GLANCE).await,
            }
        }
    }

    pub(super) async fn remove_volume(&self, name: &str) -> Result<(), Error> {
        let removed = self.client().await?.remove_volume(name, Some(RemoveVolumeOptions { force: true })).await;
        match removed.map_err(|error| self.told(&error)) {
            Ok(()) | Err(Error::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The last that its first process said on its error output.
    pub(super) async fn said(&self, name: &str) -> String {
        const MOST: usize = 600;
        let Ok(client) = self.client().await else { return String::new() };
        let options = LogsOptions { stdout: true, stderr: true, tail: "20".to_owned(), ..LogsOptions::default() };
        let mut lines = client.logs(name, Some(options));
        let mut said = String::new();
        while let Some(Ok(line)) = lines.next().await {
            said.push_str(&String::from_utf8_lossy(&line.into_bytes()));
        }
        let from = said.char_indices().rev().nth(MOST).map_or(0, |(at, _)| at);
        said.get(from..).unwrap_or_default().trim().to_owned()
    }
}

fn phase(state: &ContainerState) -> Phase {
    match state.status {
        Some(Status::CREATED | Status::RESTARTING) => Phase::Made,
        Some(Status::RUNNING | Status::STOPPING) => Phase::Running,
        Some(Status::PAUSED) => Phase::Paused,
        Some(Status::REMOVING) => Phase::Ending,
        Some(Status::EXITED | Status::DEAD | Status::EMPTY) | None => Phase::Ended(exit(state)),
    }
}

/// How its first process ended. The engine tells a signal by the code that a shell would give.
fn exit(state: &ContainerState) -> Exit {
    match (state.exit_code, state.oom_killed) {
        (Some(KILLED), Some(true)) => Exit::OutOfMemory,
        (Some(code), _) => match i32::try_from(code) {
            Ok(code @ 129..=192) => Exit::Signalled { signal: code - 128 },
            Ok(code) => Exit::Exited { code },
            Err(_) => Exit::Unknown,
        },
        (None, _) => Exit::Unknown,
    }
}

/// A list says less than a look: how one ended is not in it.
fn summary(state: Option<ContainerSummaryStateEnum>) -> Phase {
    use ContainerSummaryStateEnum as S;
    match state {
        Some(S::CREATED | S::RESTARTING) => Phase::Made,
        Some(S::RUNNING | S::STOPPING) => Phase::Running,
        Some(S::PAUSED) => Phase::Paused,
        Some(S::REMOVING) => Phase::Ending,
        Some(S::EXITED | S::DEAD | S::EMPTY) | None => Phase::Ended(Exit::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(status_code: u16) -> Failure {
        Failure::DockerResponseServerError { status_code, message: "so it is".into() }
    }

    #[test]
    fn every_answer_has_one_meaning() {
        let engine = Engine::new("unix:///run/x.sock");
        assert_eq!(engine.told(&answer(404)), Error::Gone);
        for busy in [409, 500, 503] {
            assert!(matches!(engine.told(&answer(busy)), Error::Unreachable { .. }), "{busy}");
        }
        assert!(matches!(engine.told(&answer(400)), Error::Refused { .. }));
        let refused = Failure::IOError { err: std::io::Error::from(std::io::ErrorKind::ConnectionRefused) };
        let told = engine.told(&refused);
        assert!(matches!(&told, Error::Unreachable { detail } if detail.contains("unix:///run/x.sock")), "{told}");
    }

    #[test]
    fn an_end_is_what_it_was() {
        let ended = |code, memory| {
            let state = ContainerState {
                status: Some(Status::EXITED),
                exit_code: Some(code),
                oom_killed: Some(memory),
                ..ContainerState::default()
            };
            phase(&state)
        };
        assert_eq!(ended(0, false), Phase::Ended(Exit::Exited { code: 0 }));
        assert_eq!(ended(137, false), Phase::Ended(Exit::Signalled { signal: 9 }));
        assert_eq!(ended(137, true), Phase::Ended(Exit::OutOfMemory));
        // Something in it ran out of memory once, and it went on.
        assert_eq!(ended(3, true), Phase::Ended(Exit::Exited { code: 3 }));
        assert_eq!(phase(&ContainerState::default()), Phase::Ended(Exit::Unknown));
    }

    #[tokio::test]
    async fn without_an_engine_it_is_said_which_one_is_missing() {
        let nowhere = Engine::new("unix:///nowhere/docker.sock").phase("x").await;
        assert!(matches!(nowhere, Err(Error::Unreachable { detail }) if detail.contains("/nowhere/docker.sock")));
        let far = Engine::new("tcp://10.0.0.1:2375").phase("x").await;
        assert!(matches!(far, Err(Error::Refused { detail }) if detail.contains("tcp://10.0.0.1:2375")));
    }
}
