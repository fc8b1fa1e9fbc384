//! Access to the large files (LFS) of a repository behind ssh: `git-lfs-authenticate` on its server names an address and the
//! headers for it. The files then come over https.

use super::credential::RemoteCredential;
use super::error::{RemoteError, RemoteFailure, shorten};
use super::url::{RemoteUrl, is_loopback};
use crate::error::Error;
use crate::plumbing::subprocess::{RunFailure, RunLimits, run_command};
use secrecy::SecretString;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;
use url::Url;

const ACTION: &str = "asking for access to large files";
const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_ANSWER_BYTES: u64 = 64 << 10;
const SEARCH_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The address of a repository's large files, with the headers that its server demands.
#[derive(Debug)]
pub struct LargeFileAccess {
    pub url: String,
    pub headers: BTreeMap<String, SecretString>,
}

#[derive(Deserialize)]
struct Answer {
    href: Option<String>,
    #[serde(default)]
    header: BTreeMap<String, String>,
}

/// Asks the server of a repository behind ssh for access to its large files. Blocks.
pub fn request_large_file_access(
    url: &RemoteUrl,
    credential: &RemoteCredential,
) -> Result<LargeFileAccess, RemoteError> {
    let failed = |failure| RemoteError::Connection { url: url.to_string(), failure };
    let unsupported = |detail: &str| failed(RemoteFailure::LargeFilesUnsupported { detail: shorten(detail) });
    let Some(path) = url.ssh_path().filter(|path| is_plain(path)) else {
        return Err(unsupported("the repository's path has unusual characters"));
    };
    let mut command = Command::new("ssh");
    command.env_clear().env("PATH", SEARCH_PATH).env("LC_ALL", "C").current_dir("/").stdin(Stdio::null());
    command.args(credential.ssh_arguments().map_err(|source| Error::Io { what: ACTION, source })?);
    command.args(url.ssh_destination()).arg(format!("git-lfs-authenticate {path} download"));
    let limits = RunLimits { timeout: TIMEOUT, output_bytes: MAX_ANSWER_BYTES, memory_bytes: None, file_bytes: None };
    let mut answer = Vec::new();
    let mut keep = |bytes: &[u8]| {
        answer.extend_from_slice(bytes);
        Ok(())
    };
    let exit = run_command(&mut command, limits, &mut keep).map_err(|failure| match failure {
        RunFailure::SpawnFailed(source) | RunFailure::Io(source) => Error::Io { what: ACTION, source }.into(),
        RunFailure::TimedOut => failed(RemoteFailure::TooSlow { bytes: 0, after: TIMEOUT }),
        RunFailure::OutputTooLarge => unsupported("the answer is too long"),
    })?;
    if !exit.status.success() {
        return Err(match RemoteFailure::classify(&exit.stderr, true) {
            known @ (RemoteFailure::HostKeyUnknown | RemoteFailure::SshKeyRefused | RemoteFailure::Network { .. }) => {
                failed(known)
            }
            _ => unsupported(&exit.stderr),
        });
    }
    let answer: Answer = serde_json::from_slice(&answer).map_err(|_| unsupported("the answer is malformed"))?;
    let address = answer.href.unwrap_or_else(|| format!("https://{}/{}.git/info/lfs", url.host(), url.path()));
    if !is_allowed_address(url, &address) {
        return Err(unsupported("its address must be https, on another machine than this one"));
    }
    let headers = answer.header.into_iter().map(|(name, value)| (name, SecretString::from(value))).collect();
    Ok(LargeFileAccess { url: address, headers })
}

/// The path becomes part of a command line on the server.
fn is_plain(path: &str) -> bool {
    let is_plain_char = |c: char| c.is_ascii_alphanumeric() || "/._-+@~".contains(c);
    !path.is_empty() && !path.starts_with('-') && path.chars().all(is_plain_char)
}

/// The server names any address. It must be encrypted, and this machine only if the repository is on it.
fn is_allowed_address(repository: &RemoteUrl, address: &str) -> bool {
    let Ok(parsed) = Url::parse(address) else { return false };
    let is_here = parsed.host().is_none_or(is_loopback);
    match parsed.scheme() {
        "https" => !is_here || repository.is_loopback_host(),
        "http" => is_here && repository.is_loopback_host(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_encrypted_or_of_the_repositorys_machine() {
        let allows =
            |repository: &str, address: &str| is_allowed_address(&RemoteUrl::parse(repository).unwrap(), address);
        for allowed in ["https://git.example.org/a.git/info/lfs", "https://files.example.net/x"] {
            assert!(allows("git@git.example.org:a.git", allowed), "{allowed}");
        }
        for refused in ["http://git.example.org/a", "https://127.0.0.1/a", "https://localhost/a", "file:///etc", "x"] {
            assert!(!allows("git@git.example.org:a.git", refused), "{refused}");
        }
        assert!(allows("ssh://a@127.0.0.1:22/a", "http://127.0.0.1:8080/a"));
        assert!(!allows("ssh://a@127.0.0.1:22/a", "http://git.example.org/a"));
    }

    #[test]
    fn a_path_is_one_word_of_the_servers_shell() {
        for plain in ["octo/hello.git", "/srv/a_b-c.git", "~/a"] {
            assert!(is_plain(plain), "{plain}");
        }
        for unusual in ["", "-x", "a b", "a;b", "$(a)", "a'b", "a\nb"] {
            assert!(!is_plain(unusual), "{unusual:?}");
        }
    }
}
