//! Saves transcripts to the server and restores them. The bytes pass through an unlinked file in the spool; nothing
//! about them is trusted except their length.

use super::DIRECTORY_FLAG;
use crate::environment::Environment;
use crate::link::Server;
use crate::output_tail::OutputTail;
use crate::spawner::{ExitStatus, ProgramSpec, SpawnedProcess, Spawner, StdStreams};
use atoll_core::bounds::MAX_BLOB_BYTES;
use atoll_dispatcher::link::Reply;
use atoll_dispatcher::link::backoff::Backoff;
use http_body_util::BodyExt;
use rustix::pipe::{PipeFlags, pipe_with};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::time::timeout;

const CHUNK_BYTES: usize = 64 * 1024;
/// Maximum wait for the exit of a process that closed its output.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// A conversation whose transcript is saved or restored.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// The agent's name.
    pub agent: String,
    /// The agent's own id of the conversation.
    pub native_id: String,
    pub program: Option<PathBuf>,
    /// The directory below the home with all sessions, for agents whose sessions Atoll cannot tell apart.
    pub directory: Option<String>,
    /// Additional variables for the agent's program.
    pub env: Vec<(String, String)>,
}

/// The blob with the transcript.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SavedTranscript {
    pub blob: String,
    pub bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum TranscriptFailure {
    /// The server or the agent's files are unavailable now.
    Temporary(String),
    /// There is no usable transcript.
    Permanent(String),
}

/// Saves and restores transcripts. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TranscriptStore {
    pub spawner: Spawner,
    pub environment: Arc<Environment>,
    pub server: Server,
    /// Path of the worker's own program in the sandbox.
    pub worker: PathBuf,
    pub workspace: PathBuf,
}

/// A running `atoll-worker transcript` process.
struct TransferProcess {
    process: SpawnedProcess,
    stderr: Receiver,
}

impl TranscriptStore {
    /// Saves the transcript to the server, unless its hash is `known`.
    pub async fn save(
        self,
        of: Conversation,
        known: Option<String>,
        limit: Duration,
    ) -> Result<Option<SavedTranscript>, TranscriptFailure> {
        let late = || TranscriptFailure::Temporary(format!("timed out after {} s", limit.as_secs()));
        timeout(limit, self.save_now(&of, known)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn save_now(
        &self,
        of: &Conversation,
        known: Option<String>,
    ) -> Result<Option<SavedTranscript>, TranscriptFailure> {
        let (reader, writer) = open_pipe().map_err(|error| temporary_failure(&error))?;
        let mut stdout = Receiver::from_owned_fd(reader).map_err(|error| temporary_failure(&error))?;
        let running = self.spawn_transfer(of, "out", None, writer).await?;
        let copied = self.copy_to_file(&mut stdout).await;
        drop(stdout);
        let (file, blob, bytes) = copied?;
        running.wait_for_exit().await?;
        if bytes == 0 || known.as_ref() == Some(&blob) {
            return Ok(None);
        }
        let (file, mut backoff) = (Arc::new(file), Backoff::default());
        loop {
            match self.server.put_blob(&blob, Arc::clone(&file), bytes).await {
                Reply::Ok(_) => return Ok(Some(SavedTranscript { blob, bytes })),
                Reply::Later { why, after } => {
                    tracing::warn!(why, "failed to upload the transcript; retrying");
                    backoff.wait(after).await;
                }
                Reply::Fenced(problem)
                | Reply::TooLarge(problem)
                | Reply::Unauthorized(problem)
                | Reply::Refused(problem) => {
                    return Err(TranscriptFailure::Permanent(format!("the server rejected the transcript: {problem}")));
                }
                Reply::KeyGap { .. } => {
                    return Err(TranscriptFailure::Permanent("the server rejected the transcript".to_owned()));
                }
            }
        }
    }

    /// Copies to an unlinked file.
    async fn copy_to_file(&self, from: &mut Receiver) -> Result<(File, String, u64), TranscriptFailure> {
        let path = self.server.spool.join(format!("transcript-{}", uuid::Uuid::now_v7()));
        let created = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let mut file = created.map_err(|error| temporary_failure(&error))?;
        std::fs::remove_file(&path).map_err(|error| temporary_failure(&error))?;
        let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0_u64, vec![0; CHUNK_BYTES]);
        loop {
            let count = from.read(&mut piece).await.map_err(|error| temporary_failure(&error))?;
            if count == 0 {
                break;
            }
            bytes += count as u64;
            if bytes > MAX_BLOB_BYTES as u64 {
                return Err(TranscriptFailure::Permanent(format!("the transcript exceeds {MAX_BLOB_BYTES} bytes")));
            }
            hash.update(&piece[..count]);
            file.write_all(&piece[..count]).map_err(|error| temporary_failure(&error))?;
        }
        let blob = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((file, blob, bytes))
    }

    /// Puts a stored transcript in its place, so that the agent can resume the conversation.
    pub async fn restore(self, of: Conversation, blob: String, limit: Duration) -> Result<(), String> {
        let late = || Err(format!("timed out after {} s", limit.as_secs()));
        timeout(limit, self.restore_now(&of, &blob)).await.unwrap_or_else(|_| late())
    }

    async fn restore_now(&self, of: &Conversation, blob: &str) -> Result<(), String> {
        let mut backoff = Backoff::default();
        let mut body = loop {
            match self.server.get_blob(blob).await {
                Ok(body) => break body,
                Err(Reply::Later { after, .. }) => backoff.wait(after).await,
                Err(reply) => return Err(format!("failed to download the transcript: {reply:?}")),
            }
        };
        let failed = |error: io::Error| format!("failed to write the transcript: {error}");
        let (reader, writer) = open_pipe().map_err(failed)?;
        let (out, to_out) = open_pipe().map_err(failed)?;
        drop(out);
        let mut input = Sender::from_owned_fd(writer).map_err(failed)?;
        let running =
            self.spawn_transfer(of, "in", Some(reader), to_out).await.map_err(TranscriptFailure::into_message)?;
        let mut broken = None;
        while let Some(frame) = body.frame().await {
            let piece = match frame {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => {
                    broken = Some(format!("the download of the transcript failed: {error}"));
                    break;
                }
            };
            // A process that stops reading reports the reason.
            if input.write_all(&piece).await.is_err() {
                break;
            }
        }
        if let Some(broken) = broken {
            // Kills the process first: the end of its input would look like the end of the transcript.
            drop(running);
            return Err(broken);
        }
        drop(input);
        running.wait_for_exit().await.map_err(TranscriptFailure::into_message)
    }

    async fn spawn_transfer(
        &self,
        of: &Conversation,
        direction: &str,
        input: Option<OwnedFd>,
        stdout: OwnedFd,
    ) -> Result<TransferProcess, TranscriptFailure> {
        let (stderr, to_stderr) = open_pipe().map_err(|error| temporary_failure(&error))?;
        let stderr = Receiver::from_owned_fd(stderr).map_err(|error| temporary_failure(&error))?;
        let worker = self.worker.to_string_lossy().into_owned();
        let mut argv = vec![worker, "transcript".to_owned(), direction.to_owned()];
        match &of.directory {
            Some(directory) => argv.extend([DIRECTORY_FLAG.to_owned(), directory.clone()]),
            None => {
                argv.extend([of.agent.clone(), of.native_id.clone()]);
                argv.extend(of.program.as_ref().map(|program| program.to_string_lossy().into_owned()));
            }
        }
        let env = self.environment.for_command(&of.env.iter().cloned().collect::<BTreeMap<_, _>>());
        let program =
            ProgramSpec { argv, cwd: self.workspace.clone(), env, kill_group_on_exit: true, ..ProgramSpec::default() };
        let streams = StdStreams { input, stdout, stderr: to_stderr };
        let process = self
            .spawner
            .spawn(program, streams)
            .await
            .map_err(|error| TranscriptFailure::Temporary(error.to_string()))?;
        Ok(TransferProcess { process, stderr })
    }
}

impl TransferProcess {
    async fn wait_for_exit(mut self) -> Result<(), TranscriptFailure> {
        let (mut tail, mut piece) = (OutputTail::default(), vec![0; CHUNK_BYTES]);
        while let Ok(count) = self.stderr.read(&mut piece).await
            && count > 0
        {
            tail.push(&piece[..count]);
        }
        match timeout(EXIT_TIMEOUT, self.process.wait_for_exit()).await {
            Ok(ExitStatus::Exited(0)) => Ok(()),
            Ok(ExitStatus::Exited(_)) => {
                let stderr = tail.text();
                Err(TranscriptFailure::Permanent(
                    stderr.lines().last().unwrap_or("failed to read the transcript").to_owned(),
                ))
            }
            Ok(ExitStatus::Signalled(_) | ExitStatus::Lost) => {
                Err(TranscriptFailure::Temporary("the transcript process was killed".to_owned()))
            }
            Err(_) => Err(TranscriptFailure::Temporary("the transcript process does not end".to_owned())),
        }
    }
}

/// Kills the process if it has not ended.
impl Drop for TransferProcess {
    fn drop(&mut self) {
        self.process.kill();
    }
}

impl TranscriptFailure {
    pub fn into_message(self) -> String {
        match self {
            Self::Temporary(why) | Self::Permanent(why) => why,
        }
    }
}

fn open_pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn temporary_failure(error: &io::Error) -> TranscriptFailure {
    TranscriptFailure::Temporary(error.to_string())
}
