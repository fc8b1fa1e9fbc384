//! GitHub's device flow: a person confirms a code in a browser, and the program gets that person's token.

use super::client::is_loopback;
use crate::error::{Error, Result};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const GRANT_TYPE: &str = "urn:ietf:params:oauth:grant-type:device_code";
/// Added to the interval when GitHub says `slow_down`.
pub const SLOW_DOWN: Duration = Duration::from_secs(5);

/// The code that a person confirms.
#[derive(Debug, Clone)]
pub struct DeviceCode {
    /// Only the program knows it.
    pub device_code: SecretString,
    pub user_code: String,
    pub verification_uri: String,
    /// In seconds.
    pub expires_in: u64,
    /// Seconds between two polls.
    pub interval: u64,
}

/// A person's token. An App's token expires, and then has a refresh token.
#[derive(Debug, Clone)]
pub struct UserGrant {
    pub access_token: SecretString,
    pub expires_in: Option<u64>,
    pub refresh_token: Option<SecretString>,
}

/// The state of a device login.
#[derive(Debug, Clone)]
pub enum PollOutcome {
    /// The person has not confirmed the code yet.
    Pending,
    /// Poll less often.
    SlowDown,
    Granted(UserGrant),
    /// The code expired.
    Expired,
    Denied,
}

/// The endpoints of the device flow, at GitHub's site and not its API.
pub struct DeviceLogin {
    http: reqwest::Client,
    site_url: String,
    client_id: String,
}

#[derive(Deserialize)]
struct CodePayload {
    device_code: String,
    user_code: String,
    verification_uri: String,
    expires_in: u64,
    interval: u64,
}

#[derive(Deserialize)]
struct TokenPayload {
    access_token: Option<String>,
    expires_in: Option<u64>,
    refresh_token: Option<String>,
    error: Option<String>,
}

impl DeviceLogin {
    /// `site_url` is `https://github.com`, or that of an own installation.
    pub fn new(site_url: &str, client_id: &str) -> Result<Self> {
        drop(rustls::crypto::ring::default_provider().install_default());
        let invalid = |detail: String| Error::Configuration { detail };
        let url: Url = site_url.parse().map_err(|error| invalid(format!("github.url: {error}")))?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
            .timeout(RESPONSE_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&url) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| invalid(error.to_string()))?;
        Ok(Self { http, site_url: site_url.trim_end_matches('/').to_owned(), client_id: client_id.to_owned() })
    }

    pub async fn request_code(&self, scope: &str) -> Result<DeviceCode> {
        let body = BTreeMap::from([("client_id", self.client_id.as_str()), ("scope", scope)]);
        let code = self.post("/login/device/code", &body).await?;
        let code: CodePayload = serde_json::from_value(code).map_err(|_| unexpected())?;
        Ok(DeviceCode {
            device_code: code.device_code.into(),
            user_code: code.user_code,
            verification_uri: code.verification_uri,
            expires_in: code.expires_in,
            interval: code.interval,
        })
    }

    pub async fn poll(&self, code: &SecretString) -> Result<PollOutcome> {
        let body = BTreeMap::from([
            ("client_id", self.client_id.as_str()),
            ("device_code", code.expose_secret()),
            ("grant_type", GRANT_TYPE),
        ]);
        self.request_token(&body).await
    }

    /// Renews a token. The old refresh token is used up.
    pub async fn refresh(&self, refresh_token: &SecretString) -> Result<UserGrant> {
        let body = BTreeMap::from([
            ("client_id", self.client_id.as_str()),
            ("refresh_token", refresh_token.expose_secret()),
            ("grant_type", "refresh_token"),
        ]);
        match self.request_token(&body).await? {
            PollOutcome::Granted(grant) => Ok(grant),
            PollOutcome::Pending | PollOutcome::SlowDown | PollOutcome::Expired | PollOutcome::Denied => {
                Err(Error::Unauthorized { detail: "the login can no longer be renewed; log in again".to_owned() })
            }
        }
    }

    async fn request_token(&self, body: &(impl Serialize + ?Sized)) -> Result<PollOutcome> {
        let reply: TokenPayload =
            serde_json::from_value(self.post("/login/oauth/access_token", body).await?).map_err(|_| unexpected())?;
        match (reply.error.as_deref(), reply.access_token) {
            (None, Some(access_token)) => {
                let (access_token, refresh_token) = (access_token.into(), reply.refresh_token.map(SecretString::from));
                Ok(PollOutcome::Granted(UserGrant { access_token, expires_in: reply.expires_in, refresh_token }))
            }
            (Some("authorization_pending"), _) => Ok(PollOutcome::Pending),
            (Some("slow_down"), _) => Ok(PollOutcome::SlowDown),
            (Some("expired_token"), _) => Ok(PollOutcome::Expired),
            (Some("access_denied" | "bad_refresh_token"), _) => Ok(PollOutcome::Denied),
            (Some(code), _) => {
                let code: String = code.chars().filter(|c| c.is_ascii_graphic()).take(60).collect();
                Err(Error::Refused { detail: format!("the login failed: {code}") })
            }
            (None, None) => Err(unexpected()),
        }
    }

    async fn post(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Result<Value> {
        let request =
            self.http.post(format!("{}{path}", self.site_url)).header("accept", "application/json").json(body);
        let down = |error: reqwest::Error| Error::Unavailable { detail: error.without_url().to_string() };
        let response = request.send().await.map_err(down)?;
        let status = response.status();
        if status.is_server_error() {
            return Err(Error::Unavailable { detail: format!("status {}", status.as_u16()) });
        }
        if status == reqwest::StatusCode::NOT_FOUND {
            return Err(Error::Configuration {
                detail: "github.client_id: the forge does not know it, or its device flow is off".to_owned(),
            });
        }
        response.json().await.map_err(|_| unexpected())
    }
}

/// Repeats nothing of the response, which can hold a token.
fn unexpected() -> Error {
    Error::UnexpectedResponse { detail: "the response of the login is not what the device flow defines".to_owned() }
}
