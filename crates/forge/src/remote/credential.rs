//! Credentials for a remote repository. A token reaches git through a descriptor, a key through ssh's own option.

use secrecy::{ExposeSecret, SecretString};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

/// The descriptor of git that has the token.
const TOKEN_DESCRIPTOR: u32 = 3;

/// The user name for servers that accept any, such as GitHub and GitLab.
pub const DEFAULT_TOKEN_USER: &str = "x-access-token";

/// The credential of a connection. It has no text form that shows a secret.
#[derive(Debug, Clone, Default)]
pub enum RemoteCredential {
    /// Public repositories, and directories of this machine.
    #[default]
    None,
    /// A user name and a token or password, for https.
    Token { username: String, token: SecretString },
    /// A private key, for ssh.
    SshKey {
        key: PathBuf,
        /// Host keys to trust, in addition to the machine's.
        known_hosts: Option<PathBuf>,
    },
}

impl RemoteCredential {
    pub fn token(username: Option<String>, token: SecretString) -> Self {
        Self::Token { username: username.unwrap_or_else(|| DEFAULT_TOKEN_USER.to_owned()), token }
    }

    /// The helper that reads the credential from git's descriptor, as a value of `credential.helper`.
    ///
    /// Its text is constant. It ignores git's requests to store or erase a credential.
    pub(super) const HELPER: &'static str =
        "!read_credential() { test \"$1\" = get && cat /dev/fd/3; }; read_credential";

    /// An unnamed file in memory with the credential in git's format; `None` if git needs no helper.
    pub(super) fn helper_file(&self) -> io::Result<Option<File>> {
        let Self::Token { username, token } = self else { return Ok(None) };
        let token = token.expose_secret();
        if [username.as_str(), token].iter().any(|value| value.contains(['\n', '\r', '\0']) || value.is_empty()) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a user name or token is empty or has line breaks",
            ));
        }
        let mut file = File::from(rustix::fs::memfd_create("atoll", rustix::fs::MemfdFlags::CLOEXEC)?);
        write!(file, "username={username}\npassword={token}\n")?;
        file.rewind()?;
        debug_assert_eq!(TOKEN_DESCRIPTOR, 3, "the helper reads this descriptor");
        Ok(Some(file))
    }

    /// The ssh command for git, which passes it to a shell.
    pub(super) fn ssh_command(&self) -> io::Result<String> {
        let quoted: Vec<String> = self.ssh_arguments()?.iter().map(|argument| format!("'{argument}'")).collect();
        Ok(format!("ssh {}", quoted.join(" ")))
    }

    /// The options of ssh, without single quotes. Host keys must be known, no configuration file applies, and only the given
    /// key is offered.
    pub(super) fn ssh_arguments(&self) -> io::Result<Vec<String>> {
        let mut arguments = vec!["-F".to_owned(), "none".to_owned()];
        let mut set = |option: String| arguments.extend(["-o".to_owned(), option]);
        SSH_OPTIONS.iter().for_each(|option| set((*option).to_owned()));
        match self {
            Self::SshKey { key, known_hosts } => {
                if let Some(file) = known_hosts {
                    set(format!("UserKnownHostsFile={}", checked(file)?));
                }
                arguments.extend(["-i".to_owned(), checked(key)?.to_owned()]);
            }
            Self::None | Self::Token { .. } => set("IdentityFile=none".to_owned()),
        }
        Ok(arguments)
    }

    /// Replaces the token in text that came from the remote.
    pub fn redact(&self, text: &str) -> String {
        match self {
            Self::Token { token, .. } if !token.expose_secret().is_empty() => {
                text.replace(token.expose_secret(), "***")
            }
            Self::Token { .. } | Self::None | Self::SshKey { .. } => text.to_owned(),
        }
    }

    pub(super) const fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// Distinguishes credentials without revealing them, so that a mirror knows which of them may read it.
    pub(super) fn fingerprint(&self) -> String {
        use sha2::{Digest, Sha256};
        let text = match self {
            Self::None => "none".to_owned(),
            Self::Token { username, token } => format!("token\0{username}\0{}", token.expose_secret()),
            Self::SshKey { key, .. } => format!("ssh\0{}", key.display()),
        };
        let digest = Sha256::digest(format!("atoll credential\0{text}"));
        digest.iter().take(16).map(|byte| format!("{byte:02x}")).collect()
    }
}

const SSH_OPTIONS: [&str; 7] = [
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "IdentitiesOnly=yes",
    "IdentityAgent=none",
    "ConnectTimeout=20",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
];

fn checked(path: &Path) -> io::Result<&str> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidInput, "the path of an ssh file must be absolute plain text");
    let text = path.to_str().ok_or_else(invalid)?;
    // ssh expands `%` and, in options, splits at spaces.
    let is_plain =
        path.is_absolute() && !text.contains(|c: char| c.is_control() || c.is_whitespace() || "%\"'\\".contains(c));
    is_plain.then_some(text).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_token_is_only_in_its_file() {
        let credential = RemoteCredential::token(None, "s3cret-value".into());
        assert!(!format!("{credential:?}").contains("s3cret"));
        assert_eq!(credential.redact("remote: s3cret-value!"), "remote: ***!");
        assert!(!credential.ssh_command().unwrap().contains("s3cret"));
        assert!(!credential.fingerprint().contains("s3cret"));
        let mut text = String::new();
        credential.helper_file().unwrap().unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "username=x-access-token\npassword=s3cret-value\n");
        for token in ["", "a\nhost=evil", "a\0"] {
            assert!(RemoteCredential::token(None, token.into()).helper_file().is_err(), "{token:?}");
        }
        assert!(RemoteCredential::None.helper_file().unwrap().is_none());
    }

    #[test]
    fn the_ssh_command_has_no_unusual_text() {
        let ssh = |key: &str| RemoteCredential::SshKey { key: key.into(), known_hosts: None }.ssh_command();
        let command = ssh("/etc/atoll/key").unwrap();
        assert!(command.ends_with("'-i' '/etc/atoll/key'") && command.contains("StrictHostKeyChecking=yes"));
        for refused in ["key", "/a b", "/a'b", "/%h", "/a\nb"] {
            assert!(ssh(refused).is_err(), "{refused}");
        }
        assert!(RemoteCredential::None.ssh_command().unwrap().contains("IdentityFile=none"));
    }

    #[test]
    fn fingerprints_differ() {
        let of = |token: &str| RemoteCredential::token(None, token.into()).fingerprint();
        assert_eq!(of("a"), of("a"));
        assert_ne!(of("a"), of("b"));
        assert_ne!(of("a"), RemoteCredential::None.fingerprint());
    }
}
