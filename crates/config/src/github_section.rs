//! The section `github`: where GitHub is, and the server's credentials for it.

use crate::format::{BASE_URL, FILE_PATH, SecretText, TEXT};
use crate::key::section;
use crate::sections::Config;
use secrecy::SecretString;
use std::path::PathBuf;

const SITE: &str = "https://github.com";
const API: &str = "https://api.github.com";

section! {
    Github at [github] {
        /// Token for repositories at GitHub that neither a user's login nor the App is for
        token: Option<SecretString> = None => SecretText, env(&["GITHUB_TOKEN"]), sample("ghp_example");
        /// URL of GitHub's site; for GitHub Enterprise, your own
        url: String = SITE.to_owned() => BASE_URL;
        /// URL of GitHub's REST API; if unset, that of `github.url`
        api_url: Option<String> = None => BASE_URL, sample("https://api.github.com");
        /// Id of a GitHub App; requires `github.app_key`
        app_id: Option<String> = None => TEXT, sample("Iv23liExample");
        /// Private key of the GitHub App, PEM; requires `github.app_id`
        app_key: Option<PathBuf> = None => FILE_PATH, sample("/etc/atoll/github-app.pem");
        /// Client id of a GitHub App or OAuth app for `atoll forge login github`; its device flow must be on
        client_id: Option<String> = None => TEXT, sample("Iv23liExample");
        /// Secret that signs GitHub's webhooks; if unset, the server accepts none
        webhook_secret: Option<SecretString> = None => SecretText, sample("a-long-random-text");
    }
}

impl Github {
    /// The URL of the REST API. GitHub Enterprise has it below its site.
    pub fn api_base(&self) -> String {
        match &self.api_url {
            Some(url) => url.clone(),
            None if self.url == SITE => API.to_owned(),
            None => format!("{}/api/v3", self.url),
        }
    }

    /// The host of the site, with its port if that is not the protocol's default one.
    pub fn host(&self) -> String {
        authority(&self.url).to_ascii_lowercase()
    }
}

fn authority(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.split('/').next().unwrap_or_default()
}

/// True for a URL to which a token may be sent: https, or http of this machine.
pub(crate) fn protects_tokens(url: &str) -> bool {
    let authority = authority(url);
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let is_loopback = host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback());
    url.starts_with("https://") || is_loopback
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_api_is_at_its_own_host_or_below_the_site() {
        let of = |url: &str| Github { url: url.to_owned(), ..Github::default() };
        assert_eq!(of(SITE).api_base(), "https://api.github.com");
        assert_eq!(of("https://Git.Example.org").api_base(), "https://Git.Example.org/api/v3");
        assert_eq!(of("https://Git.Example.org:8443/x").host(), "git.example.org:8443");
        let api_url = Some("http://127.0.0.1:1".to_owned());
        assert_eq!(Github { api_url, ..Github::default() }.api_base(), "http://127.0.0.1:1");
    }

    #[test]
    fn tokens_travel_encrypted_or_not_at_all() {
        for url in ["https://h", "http://127.0.0.1:80/x", "http://localhost", "http://[::1]:80"] {
            assert!(protects_tokens(url), "{url}");
        }
        for url in ["http://github.com", "http://localhost.example", "http://127.0.0.1.example/", "http://[::2]"] {
            assert!(!protects_tokens(url), "{url}");
        }
    }
}
