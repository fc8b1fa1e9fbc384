//! Prepares a worker from its options: opens the spool, loads the journal, reads the token.

use crate::link::{BadServer, Dial, Dialer, Server};
use atoll_core::id::SandboxId;
use atoll_dispatcher::disk::Disk;
use atoll_dispatcher::{Behaviour, Worker};
use atoll_spool::journal::load_journal;
use atoll_spool::{EventQueue, Spool};
use secrecy::SecretString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Time for the program to write its last lines after a stop.
const STOP_GRACE: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub struct Options {
    pub server: String,
    pub sandbox: SandboxId,
    pub token_file: PathBuf,
    pub spool: PathBuf,
    /// Lease messages and hand them to the program.
    pub messages: bool,
    /// Time limit for sending after the end of the input; `None` means no limit.
    pub flush_timeout: Option<Duration>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to read the token file {}", path.display())]
    TokenFile { path: PathBuf, source: io::Error },
    #[error("the token file {} has no token; write one line of printable characters", path.display())]
    NoToken { path: PathBuf },
    #[error(transparent)]
    Server(#[from] BadServer),
    #[error(transparent)]
    Spool(#[from] atoll_spool::Error),
    #[error("failed to start")]
    Start(#[from] io::Error),
}

/// A worker whose spool is locked and whose stream has begun.
pub struct PreparedWorker {
    pub worker: Worker,
    pub server: Server,
    /// Held as long as the worker runs.
    pub lock: File,
}

/// Prepares a worker that connects to the server and serves the program at its stdin and stdout.
pub fn prepare_worker(options: Options) -> Result<PreparedWorker, Error> {
    let dialer = Dialer::new(&options.server)?;
    let token = read_token(&options.token_file)?;
    let behaviour = Behaviour {
        messages: options.messages,
        flush_timeout: options.flush_timeout,
        stop_grace: STOP_GRACE,
        signal_grace: None,
        timer_origin: None,
    };
    open_worker(options.spool, options.sandbox, Arc::new(dialer), Some(token), behaviour, None)
}

/// Opens the spool, which may have a limit in bytes.
pub fn open_worker(
    spool: PathBuf,
    sandbox: SandboxId,
    dialer: Arc<dyn Dial>,
    token: Option<SecretString>,
    behaviour: Behaviour,
    max_spool_bytes: Option<u64>,
) -> Result<PreparedWorker, Error> {
    let opened = Spool::open(&spool, sandbox)?;
    let (journal, journal_file, acknowledgements) = load_journal(opened.dir())?;
    let stream = opened.stream();
    let (mut writer, outbox, lock) = opened.split()?;
    if let Some(bytes) = max_spool_bytes {
        writer.set_max_bytes(bytes);
    }
    let left_by_earlier_workers = outbox.progress().older_unacked;
    tracing::info!(%stream, server = ?dialer, left_by_earlier_workers, "started");
    let server = Server::new(dialer, sandbox, token, &spool);
    let (disk, link) = (Disk::start(writer, journal_file)?, Arc::new(server.clone()));
    let worker = Worker { link, behaviour, stream, disk, outbox: Box::new(outbox), journal, acknowledgements };
    Ok(PreparedWorker { worker, server, lock })
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
        tracing::warn!(path = %path.display(), "other users can read the token file; run chmod 600 on it");
    }
    Ok(SecretString::from(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use secrecy::ExposeSecret;

    #[test]
    fn reads_and_validates_the_token() {
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
