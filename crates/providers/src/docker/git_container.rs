//! Runs git over a workspace in its own container: no network, no agent, and only stdin and stdout connect it to the
//! host.

use super::container_dir::{ContainerDir, ContainerRecord};
use super::container_spec::{self, CommonOptions};
use super::engine::{ContainerPhase, Engine};
use atoll_core::provider::{CommandExit, Error, GitResult};
use bollard::container::LogOutput;
use bollard::query_parameters::{AttachContainerOptions, CreateContainerOptions, StartContainerOptions};
use futures_util::StreamExt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

/// Enough for very large repositories; callers set shorter deadlines.
const GIT_TIMEOUT: Duration = Duration::from_secs(1200);
/// Limit on the retained error output of git.
const MAX_STDERR_BYTES: usize = 64 << 10;
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// One git run. It completes even if the caller stops waiting.
pub(super) struct GitContainer {
    pub engine: Arc<Engine>,
    pub server: String,
    pub worker: PathBuf,
    pub dir: ContainerDir,
    pub record: ContainerRecord,
    pub arguments: Vec<String>,
    pub input: Option<File>,
    pub output: Option<File>,
}

impl GitContainer {
    pub(super) async fn run(self) -> Result<GitResult, Error> {
        let running = tokio::spawn(async move {
            let name = format!("{}-git-{}", self.dir.container_name(), uuid::Uuid::now_v7().simple());
            let engine = Arc::clone(&self.engine);
            let done = match timeout(GIT_TIMEOUT, self.run_container(&name)).await {
                Ok(done) => done,
                Err(_) => Ok(GitResult { exit: CommandExit::TimedOut, error_output: String::new() }),
            };
            if let Err(error) = engine.remove_container(&name).await {
                tracing::warn!(container = name, %error, "cannot remove the container of a git operation; it is removed with its sandbox");
            }
            done
        });
        running.await.map_err(|error| Error::Unreachable { detail: error.to_string() })?
    }

    async fn run_container(self, name: &str) -> Result<GitResult, Error> {
        let engine = &*self.engine;
        let translate_error = |error: bollard::errors::Error| engine.translate_error(&error);
        let client = engine.client().await?;
        let common = CommonOptions { server: &self.server, worker: &self.worker, programs: &[] };
        let has_input = self.input.is_some();
        let body = container_spec::git_container(&common, &self.dir, &self.record, self.arguments, has_input);
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        client.create_container(Some(options), body).await.map_err(translate_error)?;
        let attach_options = AttachContainerOptions {
            stream: true,
            stdin: has_input,
            stdout: true,
            stderr: true,
            ..AttachContainerOptions::default()
        };
        let attached = client.attach_container(name, Some(attach_options)).await.map_err(translate_error)?;
        client.start_container(name, None::<StartContainerOptions>).await.map_err(translate_error)?;

        let mut to = attached.input;
        let input = self.input.map(tokio::fs::File::from_std);
        let feeding = async {
            if let Some(mut input) = input {
                // A git that exits before it has read everything reports the reason itself.
                drop(tokio::io::copy(&mut input, &mut to).await);
                drop(to.shutdown().await);
            }
        };
        let mut output = self.output.map(tokio::fs::File::from_std);
        let mut from = attached.output;
        let reading = async {
            let mut stderr = Vec::new();
            while let Some(piece) = from.next().await {
                match piece.map_err(translate_error)? {
                    LogOutput::StdOut { message } => {
                        if let Some(output) = &mut output {
                            output.write_all(&message).await.map_err(|error| output_error(&error))?;
                        }
                    }
                    LogOutput::StdErr { message } | LogOutput::Console { message } | LogOutput::StdIn { message } => {
                        stderr.extend(message.iter().take(MAX_STDERR_BYTES.saturating_sub(stderr.len())));
                    }
                }
            }
            if let Some(output) = &mut output {
                output.flush().await.map_err(|error| output_error(&error))?;
            }
            Ok(String::from_utf8_lossy(&stderr).into_owned())
        };
        let (stderr, ()) = tokio::join!(reading, feeding);
        let stderr = stderr?;
        loop {
            match engine.container_phase(name).await? {
                Some(ContainerPhase::Exited(exit)) => return Ok(GitResult { exit, error_output: stderr }),
                Some(
                    ContainerPhase::Created
                    | ContainerPhase::Running
                    | ContainerPhase::Paused
                    | ContainerPhase::Removing,
                ) => sleep(POLL_INTERVAL).await,
                None => return Ok(GitResult { exit: CommandExit::Unknown, error_output: stderr }),
            }
        }
    }
}

fn output_error(error: &std::io::Error) -> Error {
    Error::Unreachable { detail: format!("cannot write the output of git: {error}") }
}
