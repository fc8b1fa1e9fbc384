//! The section `git`: branches, and the credentials and mirrors of repositories behind a URL.

use crate::format::{SWITCH, Structure, TEXT, TIME, TIME_OR_ZERO};
use crate::key::section;
use crate::sections::Config;
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

const CREDENTIALS_FORM: &str = "[{host: a host or HOST:PORT, user: NAME, token_env: a variable with the token or secret: NAME of the \
                                secret with it, or ssh_key: absolute path of a key, known_hosts: absolute path of its host keys}]";

section! {
    /// Git repositories and branches.
    Git at [git] {
        /// Prefix of the branches that runs create
        branch_prefix: String = "atoll".to_owned() => TEXT;
        /// Name the agent as co-author (Co-Authored-By) of the commit with its uncommitted work
        co_author: bool = true => SWITCH;
        /// Credentials for repositories behind a URL, by host; tokens are variables or secrets
        credentials: Vec<GitCredential> = Vec::new()
            => Structure { form: CREDENTIALS_FORM, check: check_credentials };
        /// Age up to which the copy of a remote repository is used without asking the remote
        mirror_age: Duration = Duration::from_secs(60) => TIME_OR_ZERO;
        /// Time limit of one attempt to fetch a remote repository
        clone_timeout: Duration = Duration::from_secs(15 * 60) => TIME;
    }
}

/// One entry of `git.credentials`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitCredential {
    /// In lower case, with a port if it is not the protocol's default one.
    pub host: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// Stored secret with the token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_key: Option<PathBuf>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_hosts: Option<PathBuf>,
    /// The value of `token_env`.
    #[serde(skip)]
    pub token: Option<SecretString>,
}

fn check_credentials(mut credentials: Vec<GitCredential>) -> Result<Vec<GitCredential>, String> {
    for entry in &mut credentials {
        entry.host.make_ascii_lowercase();
        let host = &entry.host;
        let is_host = |c: char| c.is_ascii_alphanumeric() || "-._:[]".contains(c);
        if host.is_empty() || !host.chars().all(is_host) || host.starts_with('-') {
            return Err(format!("`{host}` is not a host, like git.example.org or git.example.org:8443"));
        }
        let sources = [entry.token_env.is_some(), entry.secret.is_some(), entry.ssh_key.is_some()];
        if sources.iter().filter(|is_set| **is_set).count() != 1 {
            return Err(format!("{host} needs one of token_env, secret and ssh_key"));
        }
        let is_variable = |name: &String| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        if !entry.token_env.iter().all(is_variable) {
            return Err(format!("token_env of {host} is the name of a variable, not the token"));
        }
        if entry.secret.as_deref().is_some_and(|name| !atoll_core::secret::is_secret_name(name)) {
            return Err(format!("secret of {host} is the name of a secret, like GIT_TOKEN"));
        }
        let is_user = |user: &String| {
            !user.is_empty() && user.len() <= 100 && !user.contains(|c: char| c == ':' || c.is_control())
        };
        if !entry.user.iter().all(is_user) {
            return Err(format!("user of {host} is a name without `:`"));
        }
        let is_plain = |path: &PathBuf| {
            let text = path.to_str().unwrap_or_default();
            path.is_absolute() && !text.contains(|c: char| c.is_control() || c.is_whitespace() || "%\"'\\".contains(c))
        };
        if !entry.ssh_key.iter().chain(&entry.known_hosts).all(is_plain) {
            return Err(format!("ssh_key and known_hosts of {host} are absolute paths without spaces and quotes"));
        }
        if entry.known_hosts.is_some() && entry.ssh_key.is_none() {
            return Err(format!("known_hosts of {host} needs an ssh_key"));
        }
    }
    Ok(credentials)
}

/// Reads the tokens that variables hold. An unset one is an error of the first use, which names it.
pub(crate) fn resolve_tokens(config: &mut Config, env: &BTreeMap<String, String>) {
    for entry in &mut config.git.credentials {
        let value = entry.token_env.as_ref().and_then(|name| env.get(name)).filter(|value| !value.is_empty());
        entry.token = value.map(|value| value.as_str().into());
        config.secret_values.extend(entry.token.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(json: &str) -> Result<Vec<GitCredential>, String> {
        serde_json::from_str(json).map_err(|error| error.to_string()).and_then(check_credentials)
    }

    #[test]
    fn an_entry_names_one_credential() {
        let entries = check(r#"[{"host": "Git.Example.org", "token_env": "GIT_TOKEN", "user": "ann"}]"#).unwrap();
        assert_eq!(entries[0].host, "git.example.org");
        check(r#"[{"host": "h:22", "ssh_key": "/etc/atoll/key", "known_hosts": "/etc/atoll/hosts"}]"#).unwrap();
        check(r#"[{"host": "h", "secret": "GIT_TOKEN"}]"#).unwrap();
        for refused in [
            r#"[{"host": "h"}]"#,
            r#"[{"host": "", "secret": "GIT_TOKEN"}]"#,
            r#"[{"host": "https://h", "secret": "GIT_TOKEN"}]"#,
            r#"[{"host": "h", "secret": "GIT_TOKEN", "token_env": "X"}]"#,
            r#"[{"host": "h", "token_env": "ghp_x-y"}]"#,
            r#"[{"host": "h", "ssh_key": "key"}]"#,
            r#"[{"host": "h", "ssh_key": "/a b"}]"#,
            r#"[{"host": "h", "secret": "GIT_TOKEN", "known_hosts": "/x"}]"#,
            r#"[{"host": "h", "secret": "GIT_TOKEN", "user": "a:b"}]"#,
            r#"[{"host": "h", "token": "value"}]"#,
        ] {
            assert!(check(refused).is_err(), "{refused}");
        }
    }
}
