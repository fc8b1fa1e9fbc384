//! Access to a repository at its forge: which credential to use, and errors that name the remedy.

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_config::Github;
use atoll_core::id::UserId;
use atoll_forge::remote::{Protocol, RemoteUrl};
use atoll_forges::github::{AppCredentials, Credentials, GitHub, GitHubOptions};
use atoll_forges::{Error, Forge, RepositoryName};
use secrecy::SecretString;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Waits for a rate limit that are part of one request. Longer ones are errors, and the caller's job continues later.
const MAX_RATE_LIMIT_WAIT: Duration = Duration::from_secs(10);
/// Larger than any private key.
const MAX_KEY_BYTES: u64 = 64 << 10;

/// The connections to forges, which all credentials share.
pub struct ForgeClients {
    config: Github,
    github: OnceLock<GitHub>,
    app: OnceLock<AppCredentials>,
}

impl ForgeClients {
    pub fn new(config: Github) -> Self {
        Self { config, github: OnceLock::new(), app: OnceLock::new() }
    }

    /// GitHub with these credentials.
    pub fn github(&self, credentials: Credentials) -> Result<GitHub> {
        if let Some(known) = self.github.get() {
            return Ok(known.with_credentials(credentials));
        }
        let api_url = self.config.api_base();
        let options = GitHubOptions { api_url, credentials: credentials.clone(), max_wait: MAX_RATE_LIMIT_WAIT };
        let created = GitHub::new(options).map_err(|error| forge_problem(&error, None))?;
        Ok(self.github.get_or_init(|| created).with_credentials(credentials))
    }

    /// The configured App. Its key is read at the first use, as the server's user.
    fn app_credentials(&self) -> Result<Option<AppCredentials>> {
        let (Some(app_id), Some(path)) = (&self.config.app_id, &self.config.app_key) else { return Ok(None) };
        if let Some(known) = self.app.get() {
            return Ok(Some(known.clone()));
        }
        let read = File::open(path).and_then(|file| {
            let mut text = String::new();
            file.take(MAX_KEY_BYTES).read_to_string(&mut text).map(|_| SecretString::from(text))
        });
        let private_key = read.map_err(|error| {
            let detail = format!("github.app_key: cannot read {}: {error}", path.display());
            forge_problem(&Error::Configuration { detail }, None)
        })?;
        Ok(Some(self.app.get_or_init(|| AppCredentials { app_id: app_id.clone(), private_key }).clone()))
    }
}

/// A repository at its forge, with the credential for it.
pub struct ForgeConnection {
    pub forge: Arc<dyn Forge>,
    pub repository: RepositoryName,
    /// For git over https.
    pub git_token: Option<SecretString>,
    credential: ForgeCredential,
}

/// The source of a credential, which decides the remedy when the forge refuses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForgeCredential {
    UserLogin,
    App,
    DeploymentToken,
}

impl ForgeCredential {
    const fn describe(self) -> &'static str {
        match self {
            Self::UserLogin => "the requesting user's login",
            Self::App => "the server's App",
            Self::DeploymentToken => "the server's token (github.token)",
        }
    }

    const fn remedy(self) -> &'static str {
        match self {
            Self::UserLogin => {
                "run `atoll forge login github` again as an account that may do this, or `atoll forge logout github` to \
                 use the server's credentials"
            }
            Self::App => "install the App on the repository with the permissions that docs/forges.md lists",
            Self::DeploymentToken => "set `github.token` or GITHUB_TOKEN to a token that may do this",
        }
    }
}

/// Connects to the forge of a repository with the first credential that there is: the requesting user's own login, the App,
/// the deployment's token.
///
/// `requester` is the user whose work this is.
pub async fn connect_forge(app: &App, repo_url: &str, requester: Option<UserId>) -> Result<ForgeConnection> {
    let repository = find_repository(app, repo_url)?;
    let Some((forge, token, credential)) = choose_credential(app, &repository, requester).await? else {
        let detail = format!(
            "the server has no credential for {repository} at {}: run `atoll forge login github`, install the server's \
             App on it, or set `github.token`",
            app.config.github.host()
        );
        return Err(Problem::new(Code::ForgeAccess, detail).with("cause", "forge_credential_missing"));
    };
    Ok(ForgeConnection { forge: Arc::new(forge), repository, git_token: Some(token), credential })
}

/// The token for git over https to a repository at the forge; `None` if the URL is elsewhere, or there is no credential.
pub async fn find_git_token(app: &App, url: &RemoteUrl, requester: Option<UserId>) -> Result<Option<SecretString>> {
    if !matches!(url.protocol(), Protocol::Https | Protocol::Http) {
        return Ok(None);
    }
    let Some(repository) = name_at(url, &app.config.github.host()) else { return Ok(None) };
    Ok(choose_credential(app, &repository, requester).await?.map(|(_, token, _)| token))
}

/// The first credential for a repository, with its token. An App counts only where it is installed.
async fn choose_credential(
    app: &App,
    repository: &RepositoryName,
    requester: Option<UserId>,
) -> Result<Option<(GitHub, SecretString, ForgeCredential)>> {
    if let Some(user) = requester
        && let Some(token) = app.forge_logins.find_token(user).await?
    {
        let forge = app.forges.github(Credentials::Token(token.clone()))?;
        return Ok(Some((forge, token, ForgeCredential::UserLogin)));
    }
    if let Some(credentials) = app.forges.app_credentials()? {
        let forge = app.forges.github(Credentials::App(credentials))?;
        match forge.repository_token(repository).await {
            Ok(token) => {
                app.secrets.learn(None, std::slice::from_ref(&token));
                return Ok(Some((forge, token, ForgeCredential::App)));
            }
            Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(forge_problem(&error, Some(ForgeCredential::App))),
        }
    }
    let Some(token) = app.config.github.token.clone() else { return Ok(None) };
    let forge = app.forges.github(Credentials::Token(token.clone()))?;
    Ok(Some((forge, token, ForgeCredential::DeploymentToken)))
}

impl ForgeConnection {
    /// A failure of the forge as one sentence with its remedy.
    pub fn problem(&self, error: &Error) -> Problem {
        forge_problem(error, Some(self.credential))
    }
}

/// The repository that a URL names at GitHub.
fn find_repository(app: &App, repo_url: &str) -> Result<RepositoryName> {
    let host = app.config.github.host();
    RemoteUrl::parse(repo_url).ok().and_then(|url| name_at(&url, &host)).ok_or_else(|| {
        let detail = format!(
            "the repository {repo_url} is not at {host}, the only forge of this server; for GitHub Enterprise set \
             `github.url`"
        );
        Problem::new(Code::ForgeAccess, detail).with("cause", "forge_unknown")
    })
}

/// Owner and name of a repository at the forge with this host. Forges serve ssh at another port.
fn name_at(url: &RemoteUrl, host: &str) -> Option<RepositoryName> {
    let is_there = match url.protocol() {
        Protocol::Https | Protocol::Http => url.host_and_port() == host,
        Protocol::Ssh => Some(url.host()) == host.split(':').next(),
        Protocol::File => false,
    };
    let name = RepositoryName::from_identity(&format!("{host}/{}", url.path()))?;
    (is_there && !name.owner.contains('/')).then_some(name)
}

/// A failure of a forge as one sentence with its remedy.
pub fn forge_problem(error: &Error, credential: Option<ForgeCredential>) -> Problem {
    let remedy = |text: String| credential.map_or(text.clone(), |used| format!("{text}; {}", used.remedy()));
    let used = credential.map_or("the credential", ForgeCredential::describe);
    let problem = match error {
        Error::Unavailable { .. } => {
            Problem::new(Code::ForgeUnavailable, format!("{error}; retry later")).retry_after(30)
        }
        Error::RateLimited { retry_after } => {
            Problem::new(Code::ForgeUnavailable, error.to_string()).retry_after(retry_after.as_secs())
        }
        Error::Unauthorized { detail } => {
            Problem::new(Code::ForgeAccess, remedy(format!("the forge rejects {used}: {detail}")))
        }
        Error::Forbidden { detail } => {
            Problem::new(Code::ForgeAccess, remedy(format!("the forge does not allow this with {used}: {detail}")))
        }
        Error::NotFound { what } => {
            Problem::new(Code::ForgeAccess, remedy(format!("the forge has no such {what}, or {used} may not see it")))
        }
        Error::Refused { .. } | Error::UnexpectedResponse { .. } => Problem::new(Code::ForgeRefused, error.to_string()),
        Error::Configuration { .. } => Problem::new(Code::ForgeAccess, error.to_string()),
    };
    problem.with("cause", error.code())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_at_its_host() {
        let name = |url: &str, host: &str| {
            name_at(&RemoteUrl::parse(url).unwrap(), host).map(|name| name.to_string()).unwrap_or_default()
        };
        for url in [
            "https://github.com/Octo/Hello.git",
            "git@github.com:Octo/Hello.git",
            "ssh://git@github.com:443/Octo/Hello",
        ] {
            assert_eq!(name(url, "github.com"), "Octo/Hello", "{url}");
        }
        assert_eq!(name("http://127.0.0.1:8080/octo/hello", "127.0.0.1:8080"), "octo/hello");
        for url in [
            "https://github.com.evil.example/o/n",
            "https://github.com:8443/o/n",
            "https://github.com/only",
            "https://github.com/a/b/c",
            "file:///github.com/o/n",
        ] {
            assert_eq!(name(url, "github.com"), "", "{url}");
        }
    }

    #[test]
    fn a_failure_names_its_remedy() {
        let rejected = Error::Unauthorized { detail: "Bad credentials".into() };
        let problem = forge_problem(&rejected, Some(ForgeCredential::DeploymentToken));
        assert_eq!(
            problem.detail,
            "the forge rejects the server's token (github.token): Bad credentials; set `github.token` or GITHUB_TOKEN \
             to a token that may do this"
        );
        let limited = forge_problem(&Error::RateLimited { retry_after: Duration::from_secs(7) }, None);
        assert_eq!((limited.code, limited.retry_after_s), (Code::ForgeUnavailable, Some(7)));
    }
}
