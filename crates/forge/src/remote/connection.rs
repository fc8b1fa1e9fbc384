//! Runs git with a connection to one remote repository: only its protocol, no redirects, no stored credentials, a minimum
//! speed, and one more attempt after a failure of the network.

use super::credential::RemoteCredential;
use super::error::{RemoteError, RemoteFailure};
use super::url::{Protocol, RemoteUrl};
use crate::error::Error;
use crate::git_command::{HostGitCommand, Owner, RepositoryDirs};
use crate::plumbing::GitOutput;
use std::time::{Duration, Instant};

const ACTION: &str = "connecting to the remote repository";

/// A transfer below this speed for this time ends.
const MIN_BYTES_PER_SECOND: &str = "http.lowSpeedLimit=1000";
const SLOW_SECONDS: &str = "http.lowSpeedTime=60";

/// Time before the second attempt.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Bytes of git's list of refs or report of a push.
const MAX_OUTPUT_BYTES: u64 = 64 << 20;

/// Variables of the server's environment that git needs to reach a remote.
const INHERITED_VARIABLES: [&str; 10] = [
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "GIT_SSL_CAINFO",
    "GIT_SSL_CAPATH",
];

/// A remote repository with the credential for it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Connection<'a> {
    pub url: &'a RemoteUrl,
    pub credential: &'a RemoteCredential,
    /// Time limit of one attempt.
    pub timeout: Duration,
    /// Size of one received file.
    pub max_bytes: Option<u64>,
}

/// One git command, without the options of the connection.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteCommand<'a> {
    pub dirs: Option<&'a RepositoryDirs>,
    pub settings: &'a [String],
    pub arguments: &'a [String],
    /// Exit codes whose output is an answer.
    pub answers: &'a [i32],
}

impl Connection<'_> {
    /// Runs git, twice after a failure of the network. `received` measures what an interrupted run left.
    pub fn run(&self, command: RemoteCommand<'_>, received: &dyn Fn() -> u64) -> Result<GitOutput, RemoteError> {
        let first = self.run_once(command, received);
        match first {
            Err(error) if error.is_transient() => {
                tracing::debug!(url = %self.url, %error, "a connection failed; will try once more");
                std::thread::sleep(RETRY_PAUSE);
                self.run_once(command, received)
            }
            other => other,
        }
    }

    fn run_once(&self, command: RemoteCommand<'_>, received: &dyn Fn() -> u64) -> Result<GitOutput, RemoteError> {
        let began = Instant::now();
        let run = self.prepare(command)?;
        let answer = match run.capture_output(MAX_OUTPUT_BYTES) {
            Err(Error::TimedOut { .. }) => {
                return Err(self.failure(RemoteFailure::TooSlow { bytes: received(), after: began.elapsed() }));
            }
            other => other?,
        };
        let is_answer = answer.is_success() || answer.exit_code().is_some_and(|code| command.answers.contains(&code));
        if is_answer {
            return Ok(answer);
        }
        let detail = self.credential.redact(&answer.failure_detail());
        if let Some(bound) = self.max_bytes.filter(|_| detail.contains("died of signal 25")) {
            return Err(self.failure(RemoteFailure::TooLarge { bound }));
        }
        if detail.contains("Operation too slow") {
            return Err(self.failure(RemoteFailure::TooSlow { bytes: received(), after: began.elapsed() }));
        }
        Err(self.failure(RemoteFailure::classify(&detail, !self.credential.is_none())))
    }

    pub fn failure(&self, failure: RemoteFailure) -> RemoteError {
        RemoteError::Connection { url: self.url.to_string(), failure }
    }

    fn prepare(&self, command: RemoteCommand<'_>) -> Result<HostGitCommand, Error> {
        let failed = |source| Error::Io { what: ACTION, source };
        let credential = match self.url.protocol() {
            Protocol::Https | Protocol::Http => self.credential.helper_file().map_err(failed)?,
            Protocol::Ssh | Protocol::File => None,
        };
        let has_helper = credential.is_some();
        let mut run = match credential {
            Some(file) => HostGitCommand::with_descriptor(Owner::current(), command.dirs, ACTION, self.timeout, file)?,
            None => HostGitCommand::new(Owner::current(), command.dirs, ACTION, self.timeout)?,
        };
        if has_helper {
            run = run.args(["-c", &format!("credential.helper={}", RemoteCredential::HELPER)]);
        }
        for setting in [
            "http.followRedirects=false",
            MIN_BYTES_PER_SECOND,
            SLOW_SECONDS,
            "http.sslVerify=true",
            "http.extraHeader=",
            "http.cookieFile=",
            "http.emptyAuth=false",
            "transfer.credentialsInUrl=die",
            "transfer.bundleURI=false",
            "protocol.version=2",
            "ssh.variant=ssh",
            "push.gpgSign=false",
            "push.followTags=false",
            "push.recurseSubmodules=no",
        ] {
            run = run.args(["-c", setting]);
        }
        run = run.env("GIT_ALLOW_PROTOCOL", self.url.protocol().name()).env("GIT_SSH_VARIANT", "ssh");
        if self.url.protocol() == Protocol::Ssh {
            run = run.env("GIT_SSH_COMMAND", self.credential.ssh_command().map_err(failed)?);
        }
        if !self.url.is_loopback_host() {
            for name in INHERITED_VARIABLES {
                if let Some(value) = std::env::var_os(name) {
                    run = run.env(name, value);
                }
            }
        }
        for setting in command.settings {
            run = run.args(["-c", setting]);
        }
        if let Some(bytes) = self.max_bytes {
            run = run.file_limit(bytes);
        }
        Ok(run.args(command.arguments))
    }
}
