//! Sends requests to GitHub: credentials, bounded retries, bounded responses.

use super::Credentials;
use super::app_token::AppTokens;
use super::retry_rule::{LimitHeaders, rate_limit_wait};
use crate::error::{Error, Result};
use crate::forge::RepositoryName;
use reqwest::header::HeaderMap;
use reqwest::{Method, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);
const MAX_RESPONSE_BYTES: usize = 8 << 20;
const MAX_ATTEMPTS: u32 = 4;
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(250);
/// Redirects of renamed repositories.
const MAX_REDIRECTS: usize = 3;
const API_VERSION: &str = "2022-11-28";
/// Texts of a response that an error repeats.
const MAX_DETAIL_CHARS: usize = 300;

/// Where and as whom to call GitHub.
#[derive(Debug, Clone)]
pub struct GitHubOptions {
    /// `https://api.github.com`, or `https://HOST/api/v3` of an own installation.
    pub api_url: String,
    pub credentials: Credentials,
    /// Longer waits are errors, so that a job can wait without holding a request.
    pub max_wait: Duration,
}

/// GitHub's REST API with one set of credentials.
#[derive(Clone)]
pub struct GitHub {
    http: reqwest::Client,
    api_url: String,
    credentials: Credentials,
    app_tokens: Arc<AppTokens>,
    max_wait: Duration,
}

/// A response that is not a transport failure.
pub(super) struct Reply {
    pub status: StatusCode,
    pub body: Value,
}

/// Whether a request may be sent again after a transport failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeat {
    /// It changes nothing, or the same thing again.
    Safe,
    /// The first attempt may have had an effect: the caller looks for it before it repeats the request.
    Unsafe,
}

impl GitHub {
    pub fn new(options: GitHubOptions) -> Result<Self> {
        // A second installation is an error, and the first one is the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let invalid = |detail: String| Error::Configuration { detail };
        let url: Url = options.api_url.parse().map_err(|error| invalid(format!("github.api_url: {error}")))?;
        let origin = url.origin();
        // Credentials never follow a redirect to another server.
        let same_origin = reqwest::redirect::Policy::custom(move |attempt| {
            if attempt.previous().len() > MAX_REDIRECTS || attempt.url().origin() != origin {
                attempt.stop()
            } else {
                attempt.follow()
            }
        });
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(RESPONSE_TIMEOUT)
            .redirect(same_origin);
        if is_loopback(&url) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| invalid(error.to_string()))?;
        Ok(Self {
            http,
            api_url: options.api_url.trim_end_matches('/').to_owned(),
            credentials: options.credentials,
            app_tokens: Arc::default(),
            max_wait: options.max_wait,
        })
    }

    /// The same connections and the same cache of the App's tokens with other credentials.
    pub fn with_credentials(&self, credentials: Credentials) -> Self {
        Self { credentials, ..self.clone() }
    }

    /// A token for git's own transport and for requests about a repository.
    pub async fn repository_token(&self, repository: &RepositoryName) -> Result<SecretString> {
        match &self.credentials {
            Credentials::Token(token) => Ok(token.clone()),
            Credentials::App(app) => self.app_tokens.find_or_request(self, app, repository).await,
        }
    }

    /// The name of the account that the token belongs to.
    pub async fn read_account(&self) -> Result<String> {
        let Credentials::Token(token) = &self.credentials else {
            return Err(Error::Configuration { detail: "an App has no account".to_owned() });
        };
        #[derive(serde::Deserialize)]
        struct Account {
            login: String,
        }
        let found = self.send_as(token, Method::GET, "/user", None::<&()>, Repeat::Safe).await?;
        Ok(found.parse::<Account>("account")?.login)
    }

    /// Sends a request about a repository. `path` begins after `/repos/OWNER/NAME`.
    pub(super) async fn send(
        &self,
        repository: &RepositoryName,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        repeat: Repeat,
    ) -> Result<Reply> {
        let token = self.repository_token(repository).await?;
        let url = format!("/repos/{}/{}{path}", repository.owner, repository.name);
        let sent = self.send_as(&token, method.clone(), &url, body, repeat).await;
        let Credentials::App(_) = &self.credentials else { return sent };
        // A token ends with the installation, and keeps the permissions that the App had when it was issued.
        match sent {
            Err(Error::Unauthorized { .. }) => {
                self.app_tokens.forget(repository, &token);
                let token = self.repository_token(repository).await?;
                self.send_as(&token, method, &url, body, repeat).await
            }
            Err(error @ Error::Forbidden { .. }) => {
                self.app_tokens.forget(repository, &token);
                Err(error)
            }
            other => other,
        }
    }

    pub(super) async fn send_as(
        &self,
        token: &SecretString,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
        repeat: Repeat,
    ) -> Result<Reply> {
        let mut waited = Duration::ZERO;
        let mut delay = FIRST_RETRY_DELAY;
        let mut attempt = 1;
        loop {
            let failure = match self.send_once(token, method.clone(), path, body).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            let (wait, may_repeat) = match &failure {
                // The forge did not process the request.
                Error::RateLimited { retry_after } => (*retry_after, true),
                Error::Unavailable { .. } => (delay, repeat == Repeat::Safe),
                _ => return Err(failure),
            };
            waited += wait;
            if !may_repeat || attempt >= MAX_ATTEMPTS || waited > self.max_wait {
                return Err(failure);
            }
            tracing::debug!(path, attempt, error = %failure, "repeating a request to the forge");
            tokio::time::sleep(wait).await;
            delay *= 2;
            attempt += 1;
        }
    }

    async fn send_once(
        &self,
        token: &SecretString,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<Reply> {
        let mut request = self
            .http
            .request(method, format!("{}{path}", self.api_url))
            .bearer_auth(token.expose_secret())
            .header("accept", "application/vnd.github+json")
            .header("x-github-api-version", API_VERSION);
        if let Some(body) = body {
            request = request.json(body);
        }
        let response = request.send().await.map_err(|error| unavailable(&error))?;
        let (status, headers) = (response.status(), limit_headers(response.headers()));
        let text = read_bounded(response).await?;
        if status.is_server_error() {
            return Err(Error::Unavailable { detail: format!("status {}", status.as_u16()) });
        }
        let body: Value = match text.is_empty() {
            true => Value::Null,
            false => serde_json::from_slice(&text).map_err(|_| unexpected(status, "the body is not JSON"))?,
        };
        let message = response_message(&body);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        if let Some(retry_after) = rate_limit_wait(status.as_u16(), &headers, &message, now) {
            return Err(Error::RateLimited { retry_after });
        }
        match status {
            StatusCode::UNAUTHORIZED => Err(Error::Unauthorized { detail: message }),
            StatusCode::FORBIDDEN => Err(Error::Forbidden { detail: message }),
            _ => Ok(Reply { status, body }),
        }
    }
}

impl Reply {
    /// Parses a success; 404 means that `what` is missing.
    pub fn parse<T: DeserializeOwned>(self, what: &'static str) -> Result<T> {
        if self.status.is_success() {
            return serde_json::from_value(self.body).map_err(|error| unexpected(self.status, &error.to_string()));
        }
        Err(self.into_error(what))
    }

    pub fn into_error(self, what: &'static str) -> Error {
        match self.status {
            StatusCode::NOT_FOUND => Error::NotFound { what },
            StatusCode::UNPROCESSABLE_ENTITY | StatusCode::CONFLICT | StatusCode::METHOD_NOT_ALLOWED => {
                Error::Refused { detail: self.message() }
            }
            status => unexpected(status, &self.message()),
        }
    }

    /// The forge's own words: its message and the messages of its list of errors.
    pub fn message(&self) -> String {
        response_message(&self.body)
    }
}

fn response_message(body: &Value) -> String {
    let listed = body["errors"].as_array().map(Vec::as_slice).unwrap_or_default();
    let listed = listed.iter().filter_map(|error| error.as_str().or_else(|| error["message"].as_str()));
    let texts: Vec<&str> = body["message"].as_str().into_iter().chain(listed).collect();
    texts.join("; ").chars().filter(|c| !c.is_control()).take(MAX_DETAIL_CHARS).collect()
}

fn unexpected(status: StatusCode, detail: &str) -> Error {
    let detail: String = detail.chars().take(MAX_DETAIL_CHARS).collect();
    Error::UnexpectedResponse { detail: format!("status {}: {detail}", status.as_u16()) }
}

/// The innermost cause; the outer ones repeat the URL.
fn unavailable(error: &reqwest::Error) -> Error {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let detail = if error.is_timeout() { "it did not answer in time".to_owned() } else { cause.to_string() };
    Error::Unavailable { detail }
}

async fn read_bounded(mut response: Response) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| unavailable(&error))? {
        if bytes.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(Error::UnexpectedResponse { detail: "the response is too large".to_owned() });
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn limit_headers(headers: &HeaderMap) -> LimitHeaders {
    let number = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse().ok();
    LimitHeaders {
        retry_after: number("retry-after"),
        remaining: number("x-ratelimit-remaining"),
        reset: number("x-ratelimit-reset"),
    }
}

pub(crate) fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        None => false,
    }
}
