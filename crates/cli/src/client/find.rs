//! Which server, and with which token.

use crate::failure::{Failure, Result};
use crate::settings::{self, ConfigFiles};
use atoll_config::env;
use reqwest::Url;
use secrecy::SecretString;
use std::path::{Path, PathBuf};

/// Where a command finds its server.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct Connect {
    /// The server's address [default: the one in the data directory]
    #[arg(long, value_name = "URL", env = env::SERVER, hide_env_values = true, global = true)]
    pub server: Option<String>,
    /// A file that holds the token; or ATOLL_TOKEN [default: the admin's in the data directory]
    #[arg(long, value_name = "FILE", global = true)]
    pub token_file: Option<PathBuf>,
    /// The server's data directory [default: ATOLL_DATA_DIR, else the user's]
    #[arg(long, value_name = "DIR", global = true)]
    pub data_dir: Option<PathBuf>,
}

/// An address, and how it was found.
#[derive(Debug, Clone)]
pub struct Found {
    pub url: Url,
    /// For people: where the address stands.
    pub origin: String,
    /// The data directory of a server on this machine, if it is one.
    pub local: Option<PathBuf>,
    token_from: Option<PathBuf>,
}

impl Found {
    pub fn base(&self) -> &str {
        self.url.as_str().trim_end_matches('/')
    }

    pub fn token_origin(&self) -> String {
        match &self.token_from {
            Some(path) => path.display().to_string(),
            None => env::TOKEN.to_owned(),
        }
    }
}

impl Connect {
    /// `--data-dir`, else what the configuration says. A configuration that can't be read is in the
    /// way only if it is needed.
    pub fn data_dir(&self) -> Result<PathBuf> {
        let flag = self.data_dir.as_ref().map(|dir| ("data_dir".to_owned(), dir.display().to_string()));
        match settings::load(flag.into_iter().collect(), &ConfigFiles::default()) {
            Ok(loaded) => Ok(loaded.config.data_dir),
            Err(failure) => {
                let named = self.data_dir.clone().or_else(|| std::env::var_os("ATOLL_DATA_DIR").map(PathBuf::from));
                named.map(|dir| std::path::absolute(&dir).unwrap_or(dir)).ok_or(failure)
            }
        }
    }

    pub(super) fn find(&self) -> Result<Found> {
        if let Some(text) = self.server.as_deref().map(str::trim).filter(|text| !text.is_empty()) {
            let url = address(text).map_err(|why| {
                Failure::input(format!("`{text}` is not a server's address: {why}"))
                    .next("Write it like http://127.0.0.1:7700 or https://atoll.example.org.")
            })?;
            let local = self.data_dir().ok().filter(|dir| recorded(dir).is_some_and(|known| known == url));
            let token_from = self.token_path(&url, local.as_deref());
            return Ok(Found { url, origin: "from --server or ATOLL_SERVER".to_owned(), local, token_from });
        }
        let dir = self.data_dir()?;
        let file = dir.join("server");
        let url = recorded(&dir).ok_or_else(|| {
            let tried = format!("--server and ATOLL_SERVER are not set, and {} does not name one", file.display());
            Failure::setup("no_server", format!("no server is known: {tried}"))
                .next("Start one with `atoll serve`, or name one with --server URL.")
        })?;
        let token_from = self.token_path(&url, Some(&dir));
        Ok(Found { url, origin: format!("from {}", file.display()), local: Some(dir), token_from })
    }

    /// The file that the token is in, unless the environment has it. The admin's token of this
    /// machine goes to no other machine.
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

    pub(super) fn token(&self, found: &Found) -> Result<SecretString> {
        const NEXT: &str =
            "Put one into ATOLL_TOKEN, or into a file named by --token-file; `atoll token new` makes them.";
        let Some(path) = &found.token_from else {
            return environment_token()
                .ok_or_else(|| Failure::setup("no_token", format!("there is no token for {}", found.url)).next(NEXT));
        };
        let text = std::fs::read_to_string(path).map_err(|error| {
            Failure::setup("no_token", format!("can't read the token in {}: {error}", path.display())).next(NEXT)
        })?;
        usable(&text).ok_or_else(|| {
            Failure::setup("no_token", format!("{} does not hold a token: one line without spaces", path.display()))
                .next(NEXT)
        })
    }
}

fn environment_token() -> Option<SecretString> {
    usable(&std::env::var(env::TOKEN).ok()?)
}

fn usable(text: &str) -> Option<SecretString> {
    let token = text.trim();
    (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())).then(|| SecretString::from(token))
}

/// The address that the server of a data directory wrote down.
pub fn recorded(dir: &Path) -> Option<Url> {
    address(std::fs::read_to_string(dir.join("server")).ok()?.trim()).ok()
}

fn address(text: &str) -> Result<Url, String> {
    let url = Url::parse(text).map_err(|error| error.to_string())?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err("it begins with http:// or https://".to_owned());
    }
    if !url.username().is_empty() || url.password().is_some() || url.query().is_some() || url.fragment().is_some() {
        return Err("it has neither a user nor a query".to_owned());
    }
    Ok(url)
}

pub fn is_loopback(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let ip = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked() {
        for good in ["http://127.0.0.1:7700", "https://atoll.example.org/base/", "http://[::1]:1"] {
            assert!(address(good).is_ok(), "{good}");
        }
        for bad in ["", "localhost:7700", "ftp://x", "http://", "http://u:p@h", "http://h?x=1", "file:///x"] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn loopback_is_told_from_elsewhere() {
        let loopback = |text: &str| is_loopback(&address(text).unwrap());
        assert!(loopback("http://localhost:1") && loopback("http://127.9.9.9") && loopback("http://[::1]:1"));
        assert!(!loopback("http://10.0.0.1") && !loopback("https://localhost.example"));
    }

    #[test]
    fn the_token_of_this_machine_goes_to_no_other() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("server"), "http://127.0.0.1:7700\n").unwrap();
        std::fs::write(dir.path().join("admin-token"), "secret\n").unwrap();
        let connect = |server: Option<&str>| Connect {
            server: server.map(str::to_owned),
            token_file: None,
            data_dir: Some(dir.path().to_owned()),
        };
        let local = connect(None).find().unwrap();
        assert_eq!(local.local.as_deref(), Some(dir.path()));
        assert_eq!(connect(None).token_path(&local.url, local.local.as_deref()), Some(dir.path().join("admin-token")));
        let far = connect(Some("https://atoll.example.org")).find().unwrap();
        assert_eq!((far.local, far.token_from), (None, None));
    }
}
