//! Requests and responses.

use crate::error::{Error, Result, innermost_cause};
use atoll_api::{Health, Page, ProblemDocument};
use bytes::Bytes;
use reqwest::header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Method, RequestBuilder, Response, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// For operations that read or write much, such as the removal of old data.
const LONG_RESPONSE_TIMEOUT: Duration = Duration::from_secs(3600);

/// A query without parameters.
pub(crate) const NO_QUERY: &[(&str, &str)] = &[];
/// The body of a request without fields.
pub(crate) const EMPTY_BODY: EmptyBody = EmptyBody {};

#[derive(Serialize)]
pub(crate) struct EmptyBody {}

/// A client of one Atoll server. Clones share their connections.
#[derive(Debug, Clone)]
pub struct Client {
    http: reqwest::Client,
    token: SecretString,
    url: Url,
}

/// The URL names the machine that the client runs on.
pub fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        None => false,
    }
}

impl Client {
    /// Creates a client for the server at `url`, such as `http://127.0.0.1:7700`.
    pub fn new(url: &str, token: impl Into<String>) -> Result<Self> {
        let url: Url = url.parse().map_err(|error| Error::Configuration(format!("{url} is not a URL: {error}")))?;
        Self::with_token(url, SecretString::from(token.into()))
    }

    /// Creates a client with a token that stays hidden in memory dumps and debug output.
    pub fn with_token(url: Url, token: SecretString) -> Result<Self> {
        // A second installation is an error, and the first one is the same.
        drop(rustls::crypto::ring::default_provider().install_default());
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&url) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| Error::Configuration(error.to_string()))?;
        Ok(Self { http, token, url })
    }

    /// The server's URL.
    pub fn url(&self) -> &Url {
        &self.url
    }

    /// The server's version, from `/healthz`; needs no token.
    pub async fn server_version(&self) -> Result<String> {
        let url = format!("{}/healthz", self.url.as_str().trim_end_matches('/'));
        let health: Health = self.send_for_json(self.http.get(url).timeout(CONNECT_TIMEOUT)).await?;
        Ok(health.version)
    }

    /// Starts a request to a path below `/api/v1`, for a route that has no method of its own.
    pub fn request(&self, method: Method, path: &str, query: &(impl Serialize + ?Sized)) -> RequestBuilder {
        let url = format!("{}/api/v1{path}", self.url.as_str().trim_end_matches('/'));
        self.http.request(method, url).query(query).bearer_auth(self.token.expose_secret())
    }

    /// Sends a request; a problem document becomes an error.
    pub async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(self.problem_of(response).await) }
    }

    /// Sends a request and parses the response.
    pub async fn send_for_json<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T> {
        let text = self.send_for_text(request).await?;
        serde_json::from_str(&text).map_err(|error| self.unexpected_response(&format!("invalid JSON: {error}")))
    }

    /// Sends a request and returns the response's text as it is.
    pub async fn send_for_text(&self, request: RequestBuilder) -> Result<String> {
        let response = self.send(request).await?;
        response.text().await.map_err(|error| self.broken_response(&error))
    }

    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str, query: &(impl Serialize + ?Sized)) -> Result<T> {
        self.send_for_json(self.request(Method::GET, path, query).timeout(RESPONSE_TIMEOUT)).await
    }

    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Result<T> {
        self.send_for_json(self.request(Method::POST, path, NO_QUERY).timeout(RESPONSE_TIMEOUT).json(body)).await
    }

    pub(crate) async fn post_long<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &(impl Serialize + ?Sized),
    ) -> Result<T> {
        self.send_for_json(self.request(Method::POST, path, NO_QUERY).timeout(LONG_RESPONSE_TIMEOUT).json(body)).await
    }

    pub(crate) async fn put<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Result<T> {
        self.send_for_json(self.request(Method::PUT, path, NO_QUERY).timeout(RESPONSE_TIMEOUT).json(body)).await
    }

    pub(crate) async fn patch<T: DeserializeOwned>(&self, path: &str, body: &(impl Serialize + ?Sized)) -> Result<T> {
        self.send_for_json(self.request(Method::PATCH, path, NO_QUERY).timeout(RESPONSE_TIMEOUT).json(body)).await
    }

    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str, query: &(impl Serialize + ?Sized)) -> Result<T> {
        self.send_for_json(self.request(Method::DELETE, path, query).timeout(RESPONSE_TIMEOUT)).await
    }

    /// Sends bytes as a stream, without a time-out.
    pub(crate) async fn send_bytes<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        body: reqwest::Body,
    ) -> Result<T> {
        self.send_for_json(request.header(CONTENT_TYPE, "application/octet-stream").body(body)).await
    }

    /// Requests a response in another media type than JSON.
    pub(crate) async fn get_as(
        &self,
        media_type: &str,
        path: &str,
        query: &(impl Serialize + ?Sized),
    ) -> Result<Bytes> {
        let request = self.request(Method::GET, path, query).header(ACCEPT, media_type).timeout(LONG_RESPONSE_TIMEOUT);
        let response = self.send(request).await?;
        response.bytes().await.map_err(|error| self.broken_response(&error))
    }

    /// Reads all pages of a list: calls `load` with the cursor of each page.
    ///
    /// ```no_run
    /// # async fn example(client: &atoll_client::Client) -> Result<(), atoll_client::Error> {
    /// use atoll_client::{Client, api::SandboxListQuery};
    ///
    /// let sandboxes = Client::collect_pages(async |cursor| {
    ///     client.list_sandboxes(&SandboxListQuery { cursor, ..Default::default() }).await
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn collect_pages<T>(mut load: impl AsyncFnMut(Option<String>) -> Result<Page<T>>) -> Result<Vec<T>> {
        let mut items = Vec::new();
        let mut cursor = None;
        loop {
            let page = load(cursor).await?;
            items.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(items);
            }
        }
    }

    pub(crate) fn unreachable(&self, error: &reqwest::Error) -> Error {
        let (url, cause) = (self.url.to_string(), innermost_cause(error));
        if cause.contains("certificate") { Error::Untrusted { url, cause } } else { Error::Unreachable { url, cause } }
    }

    pub(crate) fn broken_response(&self, error: &reqwest::Error) -> Error {
        Error::BrokenResponse { url: self.url.to_string(), cause: innermost_cause(error) }
    }

    pub(crate) fn unexpected_response(&self, detail: &str) -> Error {
        Error::UnexpectedResponse { url: self.url.to_string(), detail: detail.to_owned() }
    }

    /// Reads the problem document of an unsuccessful response.
    pub(crate) async fn problem_of(&self, response: Response) -> Error {
        let status = response.status();
        let retry_after = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        let retry_after = retry_after.map(Duration::from_secs);
        let text = response.text().await.unwrap_or_default();
        match serde_json::from_str::<ProblemDocument>(&text) {
            Ok(problem) => Error::Problem { problem: Box::new(problem), retry_after },
            Err(_) => self.unexpected_response(&format!("status {status} without a problem document")),
        }
    }
}
