//! The Docker engine's API: connects on first use and translates responses.

use super::engine_info::EngineInfo;
use atoll_core::provider::{CommandExit, Error};
use bollard::models::{ContainerState, ContainerStateStatusEnum as Status, ContainerSummaryStateEnum};
use bollard::query_parameters::{
    InspectContainerOptions, KillContainerOptions, ListContainersOptions, LogsOptions, RemoveContainerOptions,
    RemoveVolumeOptions, StartContainerOptions,
};
use bollard::{API_DEFAULT_VERSION, Docker};
use futures_util::StreamExt;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::OnceCell;
use tokio::time::{Instant, sleep};

type EngineError = bollard::errors::Error;

/// Time limit for one response; loading a large image's layers is the slowest request.
const RESPONSE_TIMEOUT_SECONDS: u64 = 120;
/// Time limit for a container to exit or to be removed.
const EXIT_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The engine reports an out-of-memory kill with this exit code.
const SIGKILL_EXIT_CODE: i64 = 128 + 9;

pub(super) struct Engine {
    socket: String,
    connected: OnceCell<EngineConnection>,
}

struct EngineConnection {
    client: Docker,
    facts: EngineInfo,
}

/// The current state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ContainerPhase {
    Created,
    Running,
    Paused,
    Removing,
    Exited(CommandExit),
}

pub(super) struct ListedContainer {
    pub name: String,
    pub phase: ContainerPhase,
}

impl Engine {
    pub(super) fn new(socket: &str) -> Self {
        Self { socket: socket.to_owned(), connected: OnceCell::new() }
    }

    async fn get_connection(&self) -> Result<&EngineConnection, Error> {
        self.connected.get_or_try_init(|| self.open_connection()).await
    }

    async fn open_connection(&self) -> Result<EngineConnection, Error> {
        let Some(path) = self.socket.strip_prefix("unix://").filter(|path| path.starts_with('/')) else {
            let why = "only a local engine is supported; set a socket such as unix:///var/run/docker.sock";
            return Err(Error::Refused { detail: format!("docker.socket is {}: {why}", self.socket) });
        };
        let client = Docker::connect_with_unix(path, RESPONSE_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
            .map_err(|error| self.translate_error(&error))?;
        let client = client.negotiate_version().await.map_err(|error| self.translate_error(&error))?;
        let facts = EngineInfo::from_info(&client.info().await.map_err(|error| self.translate_error(&error))?);
        Ok(EngineConnection { client, facts })
    }

    pub(super) async fn client(&self) -> Result<&Docker, Error> {
        Ok(&self.get_connection().await?.client)
    }

    pub(super) async fn engine_info(&self) -> Result<&EngineInfo, Error> {
        Ok(&self.get_connection().await?.facts)
    }

    /// Maps an engine error to a provider error.
    pub(super) fn translate_error(&self, error: &EngineError) -> Error {
        match error {
            EngineError::DockerResponseServerError { status_code: 404, .. } => Error::Gone,
            // A conflict that may be over in a moment.
            EngineError::DockerResponseServerError { status_code: 409, message } => {
                Error::Unreachable { detail: format!("the Docker engine is busy with this container: {message}") }
            }
            EngineError::DockerResponseServerError { status_code: 400..=499, message } => {
                Error::Refused { detail: format!("the Docker engine refused the request: {message}") }
            }
            EngineError::DockerResponseServerError { message, .. } => {
                Error::Unreachable { detail: format!("the Docker engine failed: {message}") }
            }
            other => Error::Unreachable {
                detail: format!(
                    "the Docker engine at {} does not respond ({other}); check that it runs and that this user may use its socket",
                    self.socket
                ),
            },
        }
    }

    /// Returns `None` if the container does not exist.
    pub(super) async fn container_phase(&self, name: &str) -> Result<Option<ContainerPhase>, Error> {
        let found = self.client().await?.inspect_container(name, None::<InspectContainerOptions>).await;
        match found {
            Ok(found) => Ok(Some(found.state.as_ref().map_or(ContainerPhase::Created, phase_of_state))),
            Err(error) => match self.translate_error(&error) {
                Error::Gone => Ok(None),
                error => Err(error),
            },
        }
    }

    /// Lists all containers with these labels, in every state.
    pub(super) async fn list_containers(&self, labels: &[(&str, &str)]) -> Result<Vec<ListedContainer>, Error> {
        let label_filters = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let filters = Some(HashMap::from([("label".to_owned(), label_filters)]));
        let options = ListContainersOptions { all: true, filters, ..ListContainersOptions::default() };
        let found =
            self.client().await?.list_containers(Some(options)).await.map_err(|error| self.translate_error(&error))?;
        let listed = found.into_iter().filter_map(|one| {
            let name = one.names?.into_iter().next()?.trim_start_matches('/').to_owned();
            Some(ListedContainer { name, phase: phase_of_summary(one.state) })
        });
        Ok(listed.collect())
    }

    /// Kills every process of a container. Succeeds if it has already exited.
    pub(super) async fn kill_container(&self, name: &str) -> Result<(), Error> {
        let client = self.client().await?;
        let deadline = Instant::now() + EXIT_TIMEOUT;
        loop {
            match self.container_phase(name).await? {
                Some(ContainerPhase::Exited(_) | ContainerPhase::Created) | None => return Ok(()),
                // A frozen process does not die before it is thawed.
                Some(ContainerPhase::Paused) => drop(client.unpause_container(name).await),
                Some(ContainerPhase::Running | ContainerPhase::Removing) => {}
            }
            if Instant::now() > deadline {
                return Err(Error::Unreachable {
                    detail: format!("the container still runs {EXIT_TIMEOUT:?} after the kill"),
                });
            }
            let options = KillContainerOptions { signal: "KILL".to_owned() };
            match client.kill_container(name, Some(options)).await.map_err(|error| self.translate_error(&error)) {
                // The container may be exiting by itself.
                Ok(()) | Err(Error::Gone | Error::Unreachable { .. }) => {}
                Err(error) => return Err(error),
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    pub(super) async fn start_container(&self, name: &str) -> Result<(), Error> {
        let started = self.client().await?.start_container(name, None::<StartContainerOptions>).await;
        started.map_err(|error| self.translate_error(&error))
    }

    /// Removes a container with its processes and anonymous volumes, and waits until it is gone.
    pub(super) async fn remove_container(&self, name: &str) -> Result<(), Error> {
        let client = self.client().await?;
        let deadline = Instant::now() + EXIT_TIMEOUT;
        loop {
            let options = RemoveContainerOptions { v: true, force: true, ..RemoveContainerOptions::default() };
            let removed = client.remove_container(name, Some(options)).await;
            match removed.map_err(|error| self.translate_error(&error)) {
                Err(Error::Gone) => return Ok(()),
                Ok(()) => {}
                Err(error) if Instant::now() > deadline => return Err(error),
                Err(_) => sleep(POLL_INTERVAL).await,
            }
        }
    }

    pub(super) async fn remove_volume(&self, name: &str) -> Result<(), Error> {
        let removed = self.client().await?.remove_volume(name, Some(RemoveVolumeOptions { force: true })).await;
        match removed.map_err(|error| self.translate_error(&error)) {
            Ok(()) | Err(Error::Gone) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Returns the last lines of the container's log.
    pub(super) async fn read_log_tail(&self, name: &str) -> String {
        const MAX_CHARS: usize = 600;
        let Ok(client) = self.client().await else { return String::new() };
        let options = LogsOptions { stdout: true, stderr: true, tail: "20".to_owned(), ..LogsOptions::default() };
        let mut lines = client.logs(name, Some(options));
        let mut log = String::new();
        while let Some(Ok(line)) = lines.next().await {
            log.push_str(&String::from_utf8_lossy(&line.into_bytes()));
        }
        let from = log.char_indices().rev().nth(MAX_CHARS).map_or(0, |(at, _)| at);
        log.get(from..).unwrap_or_default().trim().to_owned()
    }
}

fn phase_of_state(state: &ContainerState) -> ContainerPhase {
    match state.status {
        Some(Status::CREATED | Status::RESTARTING) => ContainerPhase::Created,
        Some(Status::RUNNING | Status::STOPPING) => ContainerPhase::Running,
        Some(Status::PAUSED) => ContainerPhase::Paused,
        Some(Status::REMOVING) => ContainerPhase::Removing,
        Some(Status::EXITED | Status::DEAD | Status::EMPTY) | None => ContainerPhase::Exited(exit_of_state(state)),
    }
}

/// The exit of the first process. The engine reports a signal as the shell's exit code.
fn exit_of_state(state: &ContainerState) -> CommandExit {
    match (state.exit_code, state.oom_killed) {
        (Some(SIGKILL_EXIT_CODE), Some(true)) => CommandExit::OutOfMemory,
        (Some(code), _) => match i32::try_from(code) {
            Ok(code @ 129..=192) => CommandExit::Signalled { signal: code - 128 },
            Ok(code) => CommandExit::Exited { code },
            Err(_) => CommandExit::Unknown,
        },
        (None, _) => CommandExit::Unknown,
    }
}

/// The phase from a list entry, which has no exit code.
fn phase_of_summary(state: Option<ContainerSummaryStateEnum>) -> ContainerPhase {
    use ContainerSummaryStateEnum as S;
    match state {
        Some(S::CREATED | S::RESTARTING) => ContainerPhase::Created,
        Some(S::RUNNING | S::STOPPING) => ContainerPhase::Running,
        Some(S::PAUSED) => ContainerPhase::Paused,
        Some(S::REMOVING) => ContainerPhase::Removing,
        Some(S::EXITED | S::DEAD | S::EMPTY) | None => ContainerPhase::Exited(CommandExit::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn engine_response(status_code: u16) -> EngineError {
        EngineError::DockerResponseServerError { status_code, message: "message".into() }
    }

    #[test]
    fn maps_each_engine_response_to_one_error() {
        let engine = Engine::new("unix:///run/x.sock");
        assert_eq!(engine.translate_error(&engine_response(404)), Error::Gone);
        for busy in [409, 500, 503] {
            assert!(matches!(engine.translate_error(&engine_response(busy)), Error::Unreachable { .. }), "{busy}");
        }
        assert!(matches!(engine.translate_error(&engine_response(400)), Error::Refused { .. }));
        let refused = EngineError::IOError { err: std::io::Error::from(std::io::ErrorKind::ConnectionRefused) };
        let error = engine.translate_error(&refused);
        assert!(matches!(&error, Error::Unreachable { detail } if detail.contains("unix:///run/x.sock")), "{error}");
    }

    #[test]
    fn maps_exit_codes_to_exits() {
        let ended = |code, memory| {
            let state = ContainerState {
                status: Some(Status::EXITED),
                exit_code: Some(code),
                oom_killed: Some(memory),
                ..ContainerState::default()
            };
            phase_of_state(&state)
        };
        assert_eq!(ended(0, false), ContainerPhase::Exited(CommandExit::Exited { code: 0 }));
        assert_eq!(ended(137, false), ContainerPhase::Exited(CommandExit::Signalled { signal: 9 }));
        assert_eq!(ended(137, true), ContainerPhase::Exited(CommandExit::OutOfMemory));
        // A child ran out of memory and the first process continued.
        assert_eq!(ended(3, true), ContainerPhase::Exited(CommandExit::Exited { code: 3 }));
        assert_eq!(phase_of_state(&ContainerState::default()), ContainerPhase::Exited(CommandExit::Unknown));
    }

    #[tokio::test]
    async fn a_missing_engine_is_named_in_the_error() {
        let nowhere = Engine::new("unix:///nowhere/docker.sock").container_phase("x").await;
        assert!(matches!(nowhere, Err(Error::Unreachable { detail }) if detail.contains("/nowhere/docker.sock")));
        let far = Engine::new("tcp://10.0.0.1:2375").container_phase("x").await;
        assert!(matches!(far, Err(Error::Refused { detail }) if detail.contains("tcp://10.0.0.1:2375")));
    }
}
