//! The credential for a repository behind a URL.

use crate::forge_access::find_git_token;
use crate::gateway::is_bound_to;
use crate::problem::{Code, Problem, Result};
use crate::secrets::seal::open_secret;
use crate::state::App;
use atoll_config::GitCredential;
use atoll_core::id::{ProjectId, UserId};
use atoll_forge::remote::{Protocol, RemoteCredential, RemoteUrl};
use atoll_store::secrets;

/// The project and the user whose credentials reach a repository.
#[derive(Debug, Clone, Copy)]
pub struct CredentialScope {
    pub project: ProjectId,
    pub requester: Option<UserId>,
}

/// The credential for a URL: from `git.credentials`, else the one for the forge's API.
pub async fn credential_for(app: &App, scope: CredentialScope, url: &RemoteUrl) -> Result<RemoteCredential> {
    let CredentialScope { project, requester } = scope;
    let Some(entry) = find_entry(&app.config.git.credentials, url) else {
        let token = find_git_token(app, url, requester).await?;
        return Ok(token.map_or(RemoteCredential::None, |token| RemoteCredential::token(None, token)));
    };
    if let Some(key) = &entry.ssh_key {
        return Ok(RemoteCredential::SshKey { key: key.clone(), known_hosts: entry.known_hosts.clone() });
    }
    if let Some(token) = &entry.token {
        return Ok(RemoteCredential::token(entry.user.clone(), token.clone()));
    }
    let host = &entry.host;
    let missing = |detail: String| Problem::new(Code::CloneFailed, detail).with("cause", "remote_credential_missing");
    let Some(name) = entry.secret.clone() else {
        let variable = entry.token_env.as_deref().unwrap_or_default();
        return Err(missing(format!("the token for {host} is missing: set the server's variable {variable}")));
    };
    let remedy = format!("run `atoll secret set {name} --upstream {host}`");
    let read_name = name.clone();
    let found = app.read(async move |tx| Ok(secrets::resolve_secret(tx, project, &read_name).await?)).await?;
    let secret =
        found.ok_or_else(|| missing(format!("the secret {name} with the token for {host} is not set: {remedy}")))?;
    if !is_bound_to(&secret, url.as_str()) {
        return Err(missing(format!("the secret {name} is not for {host}: {remedy}")));
    }
    let opened = app.secrets.key_ring().and_then(|keys| open_secret(&secret, &keys));
    let token = opened.map_err(|error| missing(format!("the secret {name} cannot be opened: {error}")))?;
    Ok(RemoteCredential::token(entry.user.clone(), token))
}

/// The first entry for the URL's host and protocol. An entry without a port is for every port.
fn find_entry<'a>(entries: &'a [GitCredential], url: &RemoteUrl) -> Option<&'a GitCredential> {
    let is_for_protocol = |entry: &&GitCredential| match url.protocol() {
        Protocol::Https | Protocol::Http => entry.ssh_key.is_none(),
        Protocol::Ssh => entry.ssh_key.is_some(),
        Protocol::File => false,
    };
    let is_for_host = |entry: &&GitCredential| entry.host == url.host() || entry.host == url.host_and_port();
    entries.iter().filter(is_for_protocol).find(is_for_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(host: &str, is_key: bool) -> GitCredential {
        GitCredential {
            host: host.to_owned(),
            user: None,
            token_env: (!is_key).then(|| "X".to_owned()),
            secret: None,
            ssh_key: is_key.then(|| "/key".into()),
            known_hosts: None,
            token: None,
        }
    }

    #[test]
    fn an_entry_is_for_its_host_and_protocol() {
        let entries = [entry("a.example", true), entry("a.example", false), entry("b.example:8443", false)];
        let found = |url: &str| {
            let found = find_entry(&entries, &RemoteUrl::parse(url).unwrap());
            found.map(|entry| (entry.host.as_str(), entry.ssh_key.is_some()))
        };
        assert_eq!(found("https://A.example/x"), Some(("a.example", false)));
        assert_eq!(found("git@a.example:x"), Some(("a.example", true)));
        assert_eq!(found("https://b.example:8443/x"), Some(("b.example:8443", false)));
        assert_eq!(found("https://b.example/x"), None);
        assert_eq!(found("https://a.example.evil/x"), None);
        assert_eq!(found("file:///a.example"), None);
    }
}
