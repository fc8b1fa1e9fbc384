//! Failures of a connection to a remote repository: what happened, and what to do.

use super::push_refusal::PushRefusal;
use super::url::InvalidUrl;
use crate::error::Error;
use std::fmt;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    #[error(transparent)]
    Url(#[from] InvalidUrl),

    #[error("{url}: {failure}")]
    Connection { url: String, failure: RemoteFailure },

    #[error("{url}: there is no branch, tag or commit {base:?}; check its name, and that it was pushed")]
    BranchMissing { url: String, base: String },

    #[error("{url}: the push of {branch} was refused: {refusal}")]
    PushRefused { url: String, branch: String, refusal: PushRefusal },

    #[error("git on the server: {0}")]
    Local(#[from] Error),
}

/// Why git could not read or write a remote repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RemoteFailure {
    /// The server wants credentials, and there are none.
    CredentialsNeeded,
    CredentialsRefused,
    Forbidden,
    /// Missing, or hidden from these credentials.
    NotFound,
    TooSlow {
        bytes: u64,
        after: Duration,
    },
    TooLarge {
        bound: u64,
    },
    Network {
        detail: String,
    },
    ServerError {
        detail: String,
    },
    RateLimited,
    Redirected,
    SshKeyRefused,
    HostKeyUnknown,
    /// The server's certificate is not trusted, or it speaks no TLS.
    Tls {
        detail: String,
    },
    /// The disk of Atoll's server is full.
    DiskFull,
    /// The protocol or the owner of a directory is not allowed.
    Policy {
        detail: String,
    },
    /// The ssh server offers no large files.
    LargeFilesUnsupported {
        detail: String,
    },
    /// No branch: the repository is empty, or the address is a page for people.
    Empty,
    Other {
        detail: String,
    },
}

impl fmt::Display for RemoteFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CredentialsNeeded => f.write_str(
                "the server asks for credentials; configure a token for its host in git.credentials, or check the URL",
            ),
            Self::CredentialsRefused => f.write_str(
                "the server refuses the credentials; check that the token is valid, and its user name in git.credentials",
            ),
            Self::Forbidden => f.write_str(
                "the server forbids the access (403); give the token the right to read the repository, \
                 and to write it if results are pushed",
            ),
            Self::NotFound => f.write_str(
                "there is no such repository, or it is hidden from these credentials; \
                 check the URL, and configure a token with access in git.credentials",
            ),
            Self::TooSlow { bytes, after } => write!(
                f,
                "the transfer is too slow: {} in {} s ({} each second), twice; \
                 try again later, raise git.clone_timeout, or set a depth",
                show_bytes(*bytes),
                after.as_secs(),
                show_bytes(bytes / after.as_secs().max(1))
            ),
            Self::TooLarge { bound } => {
                write!(f, "the repository is larger than {}; set a depth", show_bytes(*bound))
            }
            Self::Network { detail } => {
                write!(f, "no connection ({detail}); check the URL, the server's network and its proxy, then try again")
            }
            Self::ServerError { detail } => write!(f, "the server failed ({detail}); try again later"),
            Self::RateLimited => f.write_str("the server received too many requests (429); wait some minutes"),
            Self::Redirected => f.write_str(
                "the server redirects to another address, which Atoll does not follow with credentials; use that URL",
            ),
            Self::SshKeyRefused => f.write_str(
                "the server refuses the ssh key; configure ssh_key for its host in git.credentials, \
                 and add the public key to the server",
            ),
            Self::HostKeyUnknown => f.write_str(
                "the server's host key is unknown or has changed; verify it and add it to known_hosts \
                 (`ssh-keyscan HOST`)",
            ),
            Self::Tls { detail } => write!(
                f,
                "no secure connection ({detail}); check the URL, and for an own certificate authority set the \
                 server's variable GIT_SSL_CAINFO to the file of its certificate"
            ),
            Self::DiskFull => f.write_str(
                "the disk of Atoll's server is full; free space in its data directory (`atoll cache prune`), \
                 then try again",
            ),
            Self::Policy { detail } => {
                write!(f, "git does not allow this repository ({detail}); use https, or the path of your own repository")
            }
            Self::LargeFilesUnsupported { detail } => write!(
                f,
                "the server gives no access to large files (LFS) over ssh ({detail}); use the repository's https URL"
            ),
            Self::Empty => f.write_str(
                "the repository has no branch: it is empty, or the address is a web page (such as a login); \
                 push a first commit, or check the URL",
            ),
            Self::Other { detail } => write!(f, "git failed: {detail}"),
        }
    }
}

impl RemoteError {
    /// The stable error code.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Url(_) => "remote_url_refused",
            Self::Connection { failure, .. } => failure.code(),
            Self::BranchMissing { .. } => "base_missing",
            Self::PushRefused { .. } => "push_refused",
            Self::Local(error) => error.code(),
        }
    }

    /// True if a later attempt can succeed without a change of the settings.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Connection { failure, .. } => failure.is_transient(),
            Self::Url(_) | Self::BranchMissing { .. } | Self::PushRefused { .. } | Self::Local(_) => false,
        }
    }
}

impl RemoteFailure {
    pub const fn code(&self) -> &'static str {
        match self {
            Self::CredentialsNeeded | Self::CredentialsRefused => "remote_auth",
            Self::Forbidden => "remote_forbidden",
            Self::NotFound => "remote_not_found",
            Self::TooSlow { .. } => "remote_too_slow",
            Self::TooLarge { .. } => "source_too_large",
            Self::Network { .. } => "remote_network",
            Self::ServerError { .. } => "remote_server_error",
            Self::RateLimited => "remote_rate_limited",
            Self::Redirected => "remote_redirected",
            Self::SshKeyRefused => "remote_ssh_key",
            Self::HostKeyUnknown => "remote_host_key",
            Self::Tls { .. } => "remote_tls",
            Self::DiskFull => "server_disk_full",
            Self::Policy { .. } => "remote_policy",
            Self::LargeFilesUnsupported { .. } => "large_files_unsupported",
            Self::Empty => "remote_empty",
            Self::Other { .. } => "git_failed",
        }
    }

    /// True for failures of the network or the server, after which git is run once more.
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::TooSlow { .. } | Self::Network { .. } | Self::ServerError { .. } | Self::RateLimited => true,
            Self::CredentialsNeeded
            | Self::CredentialsRefused
            | Self::Forbidden
            | Self::NotFound
            | Self::TooLarge { .. }
            | Self::Redirected
            | Self::SshKeyRefused
            | Self::HostKeyUnknown
            | Self::Tls { .. }
            | Self::DiskFull
            | Self::Policy { .. }
            | Self::LargeFilesUnsupported { .. }
            | Self::Empty
            | Self::Other { .. } => false,
        }
    }

    /// Classifies git's messages, which are in English (`LC_ALL=C`).
    pub fn classify(stderr: &str, has_credential: bool) -> Self {
        let has = |words: &str| stderr.contains(words);
        let detail = || shorten(stderr);
        if has("No space left on device") || has("Disk quota exceeded") {
            return Self::DiskFull;
        }
        if has("Host key verification failed") {
            return Self::HostKeyUnknown;
        }
        if has("Permission denied (") {
            return Self::SshKeyRefused;
        }
        if has("could not read Username") || has("could not read Password") || has("Authentication failed") {
            return if has_credential { Self::CredentialsRefused } else { Self::CredentialsNeeded };
        }
        if let Some(status) = http_status(stderr) {
            return match status {
                300..=399 => Self::Redirected,
                401 if !has_credential => Self::CredentialsNeeded,
                401 => Self::CredentialsRefused,
                403 => Self::Forbidden,
                404 | 410 => Self::NotFound,
                429 => Self::RateLimited,
                500..=599 => Self::ServerError { detail: format!("HTTP {status}") },
                _ => Self::Other { detail: detail() },
            };
        }
        if has("unable to update url base from redirection") {
            return Self::Redirected;
        }
        if has("dubious ownership") || (has("transport '") && has("not allowed")) {
            return Self::Policy { detail: detail() };
        }
        let not_found = [
            "' not found",
            "does not appear to be a git repository",
            "no such repository",
            "epository not found",
            "does not exist",
        ];
        if not_found.iter().any(|words| has(words)) {
            return Self::NotFound;
        }
        if has("not valid: is this a git repository") || has("invalid server response") {
            return Self::Empty;
        }
        let is_interrupted = ["RPC failed", "Connection reset", "SYSCALL", "timed out"].iter().any(|words| has(words));
        if !is_interrupted && ["SSL", "gnutls", "certificate"].iter().any(|words| has(words)) {
            return Self::Tls { detail: detail() };
        }
        let network = [
            "Could not resolve host",
            "Could not resolve hostname",
            "Failed to connect",
            "Couldn't connect",
            "Connection refused",
            "Connection timed out",
            "Connection reset",
            "Connection closed",
            "No route to host",
            "Network is unreachable",
            "Operation too slow",
            "Operation timed out",
            "early EOF",
            "RPC failed",
            "unexpected disconnect",
            "The remote end hung up",
            "Could not read from remote repository",
            "unable to access",
            "SSL",
            "gnutls",
        ];
        if network.iter().any(|words| has(words)) {
            return Self::Network { detail: detail() };
        }
        Self::Other { detail: detail() }
    }
}

/// The status in `The requested URL returned error: 403`.
fn http_status(stderr: &str) -> Option<u16> {
    let after = stderr.split_once("returned error: ")?.1;
    after.get(..3)?.parse().ok()
}

/// Text of a remote is bounded, and its end has the reason.
pub(super) fn shorten(text: &str) -> String {
    const MAX_DETAIL_CHARS: usize = 300;
    let count = text.chars().count();
    text.chars().skip(count.saturating_sub(MAX_DETAIL_CHARS)).collect()
}

fn show_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{} kB", bytes / 1_000),
        1_000_000..10_000_000_000 => format!("{} MB", bytes / 1_000_000),
        10_000_000_000.. => format!("{} GB", bytes / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gits_messages_have_one_class_each() {
        let class = |stderr: &str| RemoteFailure::classify(stderr, false).code();
        for (stderr, code) in [
            ("fatal: could not read Username for 'https://h': terminal prompts disabled", "remote_auth"),
            ("remote: Invalid; fatal: Authentication failed for 'https://h/x/'", "remote_auth"),
            ("fatal: unable to access 'https://h/x/': The requested URL returned error: 403", "remote_forbidden"),
            ("fatal: unable to access 'https://h/x/': The requested URL returned error: 429", "remote_rate_limited"),
            ("fatal: unable to access 'https://h/x/': The requested URL returned error: 503", "remote_server_error"),
            ("fatal: unable to access 'https://h/x/': The requested URL returned error: 301", "remote_redirected"),
            ("fatal: repository 'https://h/x/' not found", "remote_not_found"),
            (
                "fatal: '/srv/x' does not appear to be a git repository; fatal: Could not read from remote repository.",
                "remote_not_found",
            ),
            ("ERROR: Repository not found.; fatal: Could not read from remote repository.", "remote_not_found"),
            ("fatal: unable to access 'https://h/': Could not resolve host: h", "remote_network"),
            (
                "ssh: Could not resolve hostname h: Name or service not known; fatal: Could not read from remote repository.",
                "remote_network",
            ),
            ("fatal: unable to access 'https://h/': Failed to connect to h port 443", "remote_network"),
            (
                "error: RPC failed; curl 28 Operation too slow. Less than 1000 bytes/sec; fatal: early EOF",
                "remote_network",
            ),
            ("git@h: Permission denied (publickey).; fatal: Could not read from remote repository.", "remote_ssh_key"),
            ("Host key verification failed.; fatal: Could not read from remote repository.", "remote_host_key"),
            ("fatal: unable to access 'https://h/': SSL certificate problem: self-signed certificate", "remote_tls"),
            (
                "fatal: unable to access 'https://h/': server verification failed: certificate signer not trusted.",
                "remote_tls",
            ),
            (
                "error: RPC failed; curl 56 OpenSSL SSL_read: Connection reset by peer; fatal: early EOF",
                "remote_network",
            ),
            ("fatal: write error: No space left on device; fatal: index-pack failed", "server_disk_full"),
            ("fatal: transport 'file' not allowed", "remote_policy"),
            ("fatal: detected dubious ownership in repository at '/srv/x'", "remote_policy"),
            ("fatal: https://h/x/info/refs not valid: is this a git repository?", "remote_empty"),
            ("fatal: something new", "git_failed"),
        ] {
            assert_eq!(class(stderr), code, "{stderr}");
        }
        let wrong = RemoteFailure::classify("fatal: Authentication failed for 'https://h/'", true);
        assert_eq!(wrong, RemoteFailure::CredentialsRefused);
    }

    #[test]
    fn every_failure_has_a_remedy() {
        let slow = RemoteFailure::TooSlow { bytes: 12_345_678, after: Duration::from_secs(60) };
        assert_eq!(
            slow.to_string(),
            "the transfer is too slow: 12 MB in 60 s (205 kB each second), twice; \
             try again later, raise git.clone_timeout, or set a depth"
        );
        for failure in [
            RemoteFailure::CredentialsNeeded,
            RemoteFailure::CredentialsRefused,
            RemoteFailure::Forbidden,
            RemoteFailure::NotFound,
            RemoteFailure::TooLarge { bound: 1 },
            RemoteFailure::Network { detail: "x".into() },
            RemoteFailure::ServerError { detail: "x".into() },
            RemoteFailure::RateLimited,
            RemoteFailure::Redirected,
            RemoteFailure::SshKeyRefused,
            RemoteFailure::HostKeyUnknown,
            RemoteFailure::Tls { detail: "x".into() },
            RemoteFailure::DiskFull,
            RemoteFailure::Policy { detail: "x".into() },
            RemoteFailure::Empty,
        ] {
            assert!(failure.to_string().contains("; "), "{failure}");
        }
    }
}
