//! Git over a workspace, in a container of its own: no network, no agent, and nothing of the host but what goes through.

use super::engine::{Engine, Phase};
use super::place::{Place, Record};
use super::shape::{self, Common};
use atoll_core::provider::{Error, Exit, GitDone};
use bollard::container::LogOutput;
use bollard::query_parameters::{AttachContainerOptions, CreateContainerOptions, StartContainerOptions};
use futures_util::StreamExt;
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::time::{sleep, timeout};

/// Long enough for very large repositories; who asks has a shorter patience of their own.
const DEADLINE: Duration = Duration::from_secs(1200);
/// How much of what git says in error is kept.
const SAID: usize = 64 << 10;
const GLANCE: Duration = Duration::from_millis(5);

/// One job, whole: it goes on to its end also when nobody waits for it any more.
pub(super) struct Job {
    pub engine: Arc<Engine>,
    pub server: String,
    pub worker: PathBuf,
    pub place: Place,
    pub record: Record,
    pub arguments: Vec<String>,
    pub input: Option<File>,
    pub output: Option<File>,
}

impl Job {
    pub(super) async fn run(self) -> Result<GitDone, Error> {
        let running = tokio::spawn(async move {
            let name = format!("{}-git-{}", self.place.name(), uuid::Uuid::now_v7().simple());
            let engine = Arc::clone(&self.engine);
            let done = match timeout(DEADLINE, self.go(&name)).await {
                Ok(done) => done,
                Err(_) => Ok(GitDone { exit: Exit::TimedOut, said: String::new() }),
            };
            if let Err(error) = engine.remove(&name).await {
                tracing::warn!(container = name, %error, "the container of a git job can't be removed; it goes with its sandbox");
            }
            done
        });
        running.await.map_err(|error| Error::Unreachable { detail: error.to_string() })?
    }

    async fn go(self, name: &str) -> Result<GitDone, Error> {
        let engine = &*self.engine;
        let told = |error: bollard::errors::Error| engine.told(&error);
        let client = engine.client().await?;
        let common = Common { server: &self.server, worker: &self.worker, programs: &[] };
        let has_input = self.input.is_some();
        let body = shape::job(&common, &self.place, &self.record, self.arguments, has_input);
        let options = CreateContainerOptions { name: Some(name.to_owned()), ..CreateContainerOptions::default() };
        client.create_container(Some(options), body).await.map_err(told)?;
        let wanted = AttachContainerOptions {
            stream: true,
            stdin: has_input,
            stdout: true,
            stderr: true,
            ..AttachContainerOptions::default()
        };
        let attached = client.attach_container(name, Some(wanted)).await.map_err(told)?;
        client.start_container(name, None::<StartContainerOptions>).await.map_err(told)?;

        let mut to = attached.input;
        let input = self.input.map(tokio::fs::File::from_std);
        let feeding = async {
            if let Some(mut input) = input {
                // One that ends without reading everything says why by itself.
                drop(tokio::io::copy(&mut input, &mut to).await);
                drop(to.shutdown().await);
            }
        };
        let mut output = self.output.map(tokio::fs::File::from_std);
        let mut from = attached.output;
        let reading = async {
            let mut said = Vec::new();
            while let Some(piece) = from.next().await {
                match piece.map_err(told)? {
                    LogOutput::StdOut { message } => {
                        if let Some(output) = &mut output {
                            output.write_all(&message).await.map_err(|error| kept(&error))?;
                        }
                    }
                    LogOutput::StdErr { message } | LogOutput::Console { message } | LogOutput::StdIn { message } => {
                        said.extend(message.iter().take(SAID.saturating_sub(said.len())));
                    }
                }
            }
            if let Some(output) = &mut output {
                output.flush().await.map_err(|error| kept(&error))?;
            }
            Ok(String::from_utf8_lossy(&said).into_owned())
        };
        let (said, ()) = tokio::join!(reading, feeding);
        let said = said?;
        loop {
            match engine.phase(name).await? {
                Some(Phase::Ended(exit)) => return Ok(GitDone { exit, said }),
                Some(Phase::Made | Phase::Running | Phase::Paused | Phase::Ending) => sleep(GLANCE).await,
                None => return Ok(GitDone { exit: Exit::Unknown, said }),
            }
        }
    }
}

fn kept(error: &std::io::Error) -> Error {
    Error::Unreachable { detail: format!("what git gave can't be kept: {error}") }
}
