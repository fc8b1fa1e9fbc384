//! The worker's side: a transcript goes from the process that reads it through a file that nobody else can reach to
//! the server, and from there into the process that puts it into its place. Nothing of it is believed but its length.

use super::Agent;
use crate::backoff::Backoff;
use crate::environment::Environment;
use crate::executor::Tail;
use crate::hands::{Ending, Handle, Process, Program, Streams};
use crate::link::{Reply, Server};
use atoll_core::bounds::BLOB_BYTES;
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

const PIECE: usize = 64 * 1024;
/// For a process whose outputs have ended to be gone.
const GOING: Duration = Duration::from_secs(2);

/// What is kept of which agent.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub agent: Agent,
    /// The agent's own name for it.
    pub native_id: String,
    pub program: Option<PathBuf>,
    /// What the agent's program needs beside what every command gets.
    pub env: Vec<(String, String)>,
}

/// The blob that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Saved {
    pub blob: String,
    pub bytes: u64,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server or the agent's files can't be reached now.
    Later(String),
    /// There is none to be had; why.
    For(String),
}

/// What it works with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Keeper {
    pub hands: Handle,
    pub environment: Arc<Environment>,
    pub server: Server,
    /// A directory that the agent can't reach.
    pub spool: PathBuf,
    /// The worker's own program, as it is found in the sandbox.
    pub worker: PathBuf,
    pub workspace: PathBuf,
}

/// A process of the hands, with its last words.
struct Running {
    process: Process,
    stderr: Receiver,
}

impl Keeper {
    /// Takes the transcript to the server, unless that has it already under the name `known`.
    pub async fn save(
        self,
        of: Conversation,
        known: Option<String>,
        limit: Duration,
    ) -> Result<Option<Saved>, Failure> {
        let late = || Failure::Later(format!("it took longer than {} s", limit.as_secs()));
        timeout(limit, self.save_now(&of, known)).await.unwrap_or_else(|_| Err(late()))
    }

    async fn save_now(&self, of: &Conversation, known: Option<String>) -> Result<Option<Saved>, Failure> {
        let (ours, theirs) = pipe().map_err(|error| later(&error))?;
        let mut stdout = Receiver::from_owned_fd(ours).map_err(|error| later(&error))?;
        let running = self.run(of, "out", None, theirs).await?;
        let copied = self.copy(&mut stdout).await;
        drop(stdout);
        let (file, blob, bytes) = copied?;
        running.ended().await?;
        if bytes == 0 || known.as_ref() == Some(&blob) {
            return Ok(None);
        }
        let (file, mut backoff) = (Arc::new(file), Backoff::default());
        loop {
            match self.server.put_blob(&blob, Arc::clone(&file), bytes).await {
                Reply::Ok(_) => return Ok(Some(Saved { blob, bytes })),
                Reply::Later { why, after } => {
                    tracing::warn!(why, "the server can't take the transcript now");
                    backoff.wait(after).await;
                }
                Reply::Fenced(problem)
                | Reply::TooLarge(problem)
                | Reply::Unauthorized(problem)
                | Reply::Refused(problem) => return Err(Failure::For(format!("the server refused it: {problem}"))),
                Reply::KeyGap { .. } => return Err(Failure::For("the server refused it".to_owned())),
            }
        }
    }

    /// Into a file without a name, which goes with whoever holds it.
    async fn copy(&self, from: &mut Receiver) -> Result<(File, String, u64), Failure> {
        let path = self.spool.join(format!("transcript-{}", uuid::Uuid::now_v7()));
        let made = File::options().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let mut file = made.map_err(|error| later(&error))?;
        std::fs::remove_file(&path).map_err(|error| later(&error))?;
        let (mut hash, mut bytes, mut piece) = (Sha256::new(), 0_u64, vec![0; PIECE]);
        loop {
            let count = from.read(&mut piece).await.map_err(|error| later(&error))?;
            if count == 0 {
                break;
            }
            bytes += count as u64;
            if bytes > BLOB_BYTES as u64 {
                return Err(Failure::For(format!("it has more than {BLOB_BYTES} bytes, which is more than is kept")));
            }
            hash.update(&piece[..count]);
            file.write_all(&piece[..count]).map_err(|error| later(&error))?;
        }
        let blob = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok((file, blob, bytes))
    }

    /// Puts the transcript into its place, so that the agent can go on with it.
    pub async fn restore(self, of: Conversation, blob: String, limit: Duration) -> Result<(), String> {
        let late = || Err(format!("it took longer than {} s", limit.as_secs()));
        timeout(limit, self.restore_now(&of, &blob)).await.unwrap_or_else(|_| late())
    }

    async fn restore_now(&self, of: &Conversation, blob: &str) -> Result<(), String> {
        let mut backoff = Backoff::default();
        let mut body = loop {
            match self.server.get_blob(blob).await {
                Ok(body) => break body,
                Err(Reply::Later { after, .. }) => backoff.wait(after).await,
                Err(reply) => return Err(format!("the server does not have its transcript: {reply:?}")),
            }
        };
        let failed = |error: io::Error| format!("failed to hand it over: {error}");
        let (theirs, ours) = pipe().map_err(failed)?;
        let (out, to_out) = pipe().map_err(failed)?;
        drop(out);
        let mut input = Sender::from_owned_fd(ours).map_err(failed)?;
        let running = self.run(of, "in", Some(theirs), to_out).await.map_err(Failure::words)?;
        let mut broken = None;
        while let Some(frame) = body.frame().await {
            let piece = match frame {
                Ok(frame) => frame.into_data().unwrap_or_default(),
                Err(error) => {
                    broken = Some(format!("the transcript broke off: {error}"));
                    break;
                }
            };
            // One that reads no more says why.
            if input.write_all(&piece).await.is_err() {
                break;
            }
        }
        if let Some(broken) = broken {
            // Before the end of its input, which would look like the transcript's.
            drop(running);
            return Err(broken);
        }
        drop(input);
        running.ended().await.map_err(Failure::words)
    }

    async fn run(
        &self,
        of: &Conversation,
        direction: &str,
        input: Option<OwnedFd>,
        stdout: OwnedFd,
    ) -> Result<Running, Failure> {
        let (stderr, to_stderr) = pipe().map_err(|error| later(&error))?;
        let stderr = Receiver::from_owned_fd(stderr).map_err(|error| later(&error))?;
        let worker = self.worker.to_string_lossy().into_owned();
        let mut argv = vec![worker, "transcript".to_owned(), direction.to_owned()];
        argv.extend([of.agent.name().to_owned(), of.native_id.clone()]);
        argv.extend(of.program.as_ref().map(|program| program.to_string_lossy().into_owned()));
        let env = self.environment.of_command(&of.env.iter().cloned().collect::<BTreeMap<_, _>>());
        let program = Program { argv, cwd: self.workspace.clone(), env, whole: true, ..Program::default() };
        let streams = Streams { input, stdout, stderr: to_stderr };
        let process = self.hands.spawn(program, streams).await.map_err(|error| Failure::Later(error.to_string()))?;
        Ok(Running { process, stderr })
    }
}

impl Running {
    async fn ended(mut self) -> Result<(), Failure> {
        let (mut tail, mut piece) = (Tail::default(), vec![0; PIECE]);
        while let Ok(count) = self.stderr.read(&mut piece).await
            && count > 0
        {
            tail.push(&piece[..count]);
        }
        match timeout(GOING, self.process.ended()).await {
            Ok(Ending::Exited(0)) => Ok(()),
            Ok(Ending::Exited(_)) => {
                let said = tail.text();
                Err(Failure::For(said.lines().last().unwrap_or("it could not be read").to_owned()))
            }
            Ok(Ending::Signalled(_) | Ending::Lost) => Err(Failure::Later("what reads it was ended".to_owned())),
            Err(_) => Err(Failure::Later("what reads it does not end".to_owned())),
        }
    }
}

/// Nobody waits for one that is not done by now.
impl Drop for Running {
    fn drop(&mut self) {
        self.process.kill();
    }
}

impl Failure {
    pub fn words(self) -> String {
        match self {
            Self::Later(why) | Self::For(why) => why,
        }
    }
}

fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(pipe_with(PipeFlags::CLOEXEC)?)
}

fn later(error: &io::Error) -> Failure {
    Failure::Later(error.to_string())
}
