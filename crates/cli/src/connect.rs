//! Finds the server and its token, and connects a typed client.

use crate::failure::{Failure, Result};
use crate::settings::{self, ConfigFiles};
use atoll_client::{Url, is_loopback};
use atoll_config::env;
use secrecy::SecretString;
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// A typed client, and the origin of its URL and token.
#[derive(Debug, Clone)]
pub struct ConnectedClient {
    client: atoll_client::Client,
    pub address: ServerAddress,
}

impl ConnectedClient {
    /// A client for the server of the flags, the environment or the data directory.
    pub fn find(connect: &Connect) -> Result<Self> {
        let address = connect.find_server()?;
        let token = connect.read_token(&address)?;
        Ok(Self { client: atoll_client::Client::with_token(address.url.clone(), token)?, address })
    }
}

impl Deref for ConnectedClient {
    type Target = atoll_client::Client;

    fn deref(&self) -> &Self::Target {
        &self.client
    }
}

/// The flags that select a server.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct Connect {
    /// URL of the server [default: the one in the data directory]
    #[arg(long, value_name = "URL", env = env::SERVER, hide_env_values = true, global = true)]
    pub server: Option<String>,
    /// File with the token, or ATOLL_TOKEN [default: the admin token in the data directory]
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// Data directory of the server [default: ATOLL_DATA_DIR, or the user's]
    #[arg(long, value_name = "DIR", global = true)]
    pub data_dir: Option<PathBuf>,
}

/// A server's URL, and the source of its token.
#[derive(Debug, Clone)]
pub struct ServerAddress {
    pub url: Url,
    /// The data directory, if the server runs on this machine.
    pub local: Option<PathBuf>,
    token_from: Option<PathBuf>,
}

impl ServerAddress {
    pub fn base_url(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }

    /// The server runs on this machine, and the token is its admin token: it may read repositories here.
    pub fn is_local_admin(&self) -> bool {
        self.local.as_ref().is_some_and(|dir| self.token_from.as_ref() == Some(&dir.join("admin-token")))
    }

    pub fn token_origin(&self) -> String {
        match &self.token_from {
            Some(path) => path.display().to_string(),
            None => env::TOKEN.to_owned(),
        }
    }
}

impl Connect {
    /// `--data-dir`, or the configured directory. An invalid configuration fails only if it is needed.
    pub fn data_dir(&self) -> Result<PathBuf> {
        match settings::load_with_data_dir(self.data_dir.as_deref(), &ConfigFiles::default()) {
            Ok(loaded) => Ok(loaded.config.data_dir),
            Err(failure) => {
                let named = self.data_dir.clone().or_else(|| std::env::var_os("ATOLL_DATA_DIR").map(PathBuf::from));
                named.map(|dir| std::path::absolute(&dir).unwrap_or(dir)).ok_or(failure)
            }
        }
    }

    fn find_server(&self) -> Result<ServerAddress> {
        if let Some(text) = self.server.as_deref().map(str::trim).filter(|text| !text.is_empty()) {
            let url = parse_url(text).map_err(|why| {
                Failure::input(format!("`{text}` is not a server URL: {why}"))
                    .with_hint("Use a URL such as http://127.0.0.1:7700 or https://atoll.example.org.")
            })?;
            let local = self.data_dir().ok().filter(|dir| recorded_url(dir).is_some_and(|known| known == url));
            let token_from = self.token_path(&url, local.as_deref());
            return Ok(ServerAddress { url, local, token_from });
        }
        let dir = self.data_dir()?;
        let file = dir.join("server");
        let url = recorded_url(&dir).ok_or_else(|| {
            let reason = format!("--server and ATOLL_SERVER are not set, and {} has no URL", file.display());
            Failure::setup("no_server", format!("no server found: {reason}"))
                .with_hint("Start one with `atoll serve`, or set --server URL.")
        })?;
        let token_from = self.token_path(&url, Some(&dir));
        Ok(ServerAddress { url, local: Some(dir), token_from })
    }

    /// The token's file, unless the token is in the environment. The local admin token is never sent to another machine.
    fn token_path(&self, url: &Url, local: Option<&Path>) -> Option<PathBuf> {
        if let Some(path) = &self.token_file {
            return Some(path.clone());
        }
        if environment_token().is_some() {
            return None;
        }
        match local {
            Some(dir) => Some(dir.join("admin-token")),
            None if is_loopback(url) => self.data_dir().ok().map(|dir| dir.join("admin-token")),
            None => None,
        }
    }

    fn read_token(&self, found: &ServerAddress) -> Result<SecretString> {
        const NEXT: &str = "Set ATOLL_TOKEN or --token-file; create a token with `atoll token new`.";
        let Some(path) = &found.token_from else {
            return environment_token().ok_or_else(|| {
                Failure::setup("no_token", format!("there is no token for {}", found.url)).with_hint(NEXT)
            });
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::setup("no_token", format!("cannot read the token in {}: {error}", path.display())).with_hint(NEXT)
        })?;
        parse_token(&text).ok_or_else(|| {
            Failure::setup(
                "no_token",
                format!("{} has no valid token: expected one line without spaces", path.display()),
            )
            .with_hint(NEXT)
        })
    }
}

fn environment_token() -> Option<SecretString> {
    parse_token(&std::env::var(env::TOKEN).ok()?)
}

fn parse_token(text: &str) -> Option<SecretString> {
    let token = text.trim();
    (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())).then(|| SecretString::from(token))
}

/// The URL that the server of a data directory has recorded.
pub fn recorded_url(dir: &Path) -> Option<Url> {
    parse_url(std::fs::read_to_string(dir.join("server")).ok()?.trim()).ok()
}

fn parse_url(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("expected http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err("expected no user and no query".to_owned());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validates_urls() {
        for good in ["http://127.0.0.1:7700", "https://atoll.example.org/base/", "http://[::1]:1"] {
            assert!(parse_url(good).is_ok(), "{good}");
        }
        for bad in ["", "localhost:7700", "ftp://x", "http://", "http://u:p@h", "http://h?x=1", "file:///x"] {
            assert!(parse_url(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn never_sends_the_local_token_to_another_machine() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("server"), "http://127.0.0.1:7700\n").unwrap();
        std::fs::write(dir.path().join("admin-token"), "secret\n").unwrap();
        let connect = |server: Option<&str>| Connect {
            server: server.map(str::to_owned),
            token_file: None,
            data_dir: Some(dir.path().to_owned()),
        };
        let local = connect(None).find_server().unwrap();
        assert_eq!(local.local.as_deref(), Some(dir.path()));
        assert_eq!(connect(None).token_path(&local.url, local.local.as_deref()), Some(dir.path().join("admin-token")));
        let far = connect(Some("https://atoll.example.org")).find_server().unwrap();
        assert_eq!((far.local, far.token_from), (None, None));
    }
}
