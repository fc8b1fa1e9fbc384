//! From options to a worker that can run, or a clear sentence why not.

use crate::journal::{self, Answer, Journal};
use crate::link::{BadServer, Dial, Dialer, Server};
use crate::spool::{self, Outbox, Spool, Stream, Writer};
use atoll_core::id::SandboxId;
use secrecy::SecretString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// For a program to write its last lines after a stop.
const STOP_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct Options {
    pub server: String,
    pub sandbox: SandboxId,
    pub token_file: PathBuf,
    pub spool: PathBuf,
    /// Take messages and hand them over.
    pub messages: bool,
    /// How long to go on sending after the end of the input; without it, as long as it takes.
    pub flush_timeout: Option<Duration>,
}

/// How a worker behaves towards whoever it works for.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// Take messages and hand them over.
    pub messages: bool,
    /// How long to go on sending after the end of the input; without it, as long as it takes.
    pub flush_timeout: Option<Duration>,
    /// For last words after the sandbox has ended.
    pub stop_grace: Duration,
    /// For last work after the worker was told to go; without it, nothing is waited for.
    pub leave_grace: Option<Duration>,
    /// When the runtime's clock started, if the worker is one of many on its machine and should wake it seldom.
    pub seldom: Option<Instant>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read the token file {}", path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    #[error("the token file {} holds no token: one line of printable characters", path.display())]
    NoToken { path: PathBuf },
    #[error(transparent)]
    Server(#[from] BadServer),
    #[error(transparent)]
    Spool(#[from] spool::Error),
    #[error("failed to start")]
    Start(#[from] io::Error),
}

/// Everything that a run needs, with the spool locked and a stream begun.
pub struct Worker {
    pub server: Server,
    pub manner: Manner,
    pub stream: Stream,
    pub spool: PathBuf,
    pub writer: Writer,
    pub outbox: Outbox,
    pub journal: Journal,
    pub journal_file: journal::File,
    /// What earlier workers left to tell the server.
    pub answers: Vec<Answer>,
    pub lock: File,
}

impl Worker {
    /// A worker that dials the server and works for the program at its standard input and output.
    pub fn prepare(options: Options) -> Result<Self, Error> {
        let dialer = Dialer::new(&options.server)?;
        let token = read_token(&options.token_file)?;
        let manner = Manner {
            messages: options.messages,
            flush_timeout: options.flush_timeout,
            stop_grace: STOP_GRACE,
            leave_grace: None,
            seldom: None,
        };
        Self::open(options.spool, options.sandbox, Arc::new(dialer), Some(token), manner)
    }

    pub fn open(
        spool: PathBuf,
        sandbox: SandboxId,
        dialer: Arc<dyn Dial>,
        token: Option<SecretString>,
        manner: Manner,
    ) -> Result<Self, Error> {
        let opened = Spool::open(&spool, sandbox)?;
        let (journal, journal_file, answers) = journal::load(opened.dir())?;
        let stream = opened.stream();
        let (writer, outbox, lock) = opened.split()?;
        let server = Server::new(dialer, sandbox, token);
        Ok(Self { server, manner, stream, spool, writer, outbox, journal, journal_file, answers, lock })
    }
}

fn read_token(path: &Path) -> Result<SecretString, Error> {
    let failed = |source| Error::TokenFile { path: path.to_owned(), source };
    let text = fs::read_to_string(path).map_err(failed)?;
    let mode = fs::metadata(path).map_err(failed)?.mode();
    let token = text.trim();
    if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::NoToken { path: path.to_owned() });
    }
    if mode & 0o077 != 0 {
        tracing::warn!(path = %path.display(), "others than its owner can read the token file; chmod 600 mends it");
    }
    Ok(SecretString::from(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    #[test]
    fn a_token_is_trimmed_and_must_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        assert!(matches!(read_token(&path), Err(Error::TokenFile { .. })));
        for (text, ok) in [("atoll_x\n", true), ("  \n", false), ("", false), ("a b", false), ("a\nb", false)] {
            fs::write(&path, text).unwrap();
            assert_eq!(read_token(&path).is_ok(), ok, "{text:?}");
        }
        fs::write(&path, " secret \n").unwrap();
        assert_eq!(read_token(&path).unwrap().expose_secret(), "secret");
    }
}
