//! Talking to a server: one request, one answer, one kind of failure.

pub mod exec;
mod find;
pub mod follow;
pub mod pages;
pub mod sse;
pub mod terminal;

use crate::failure::{Failure, Result};
pub use find::{Connect, Found, recorded};
use reqwest::header::{ACCEPT, CONTENT_TYPE};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use std::error::Error;
use std::path::Path;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(5);
/// An ordinary request is answered within this.
const ANSWER: Duration = Duration::from_secs(60);
/// Sweeping a large database takes its time.
const LONG_ANSWER: Duration = Duration::from_secs(3600);

pub struct Client {
    http: reqwest::Client,
    token: SecretString,
    pub found: Found,
}

impl Client {
    /// The server that the flags, the environment or the data directory name.
    pub fn find(connect: &Connect) -> Result<Self> {
        let found = connect.find()?;
        let token = connect.token(&found)?;
        Ok(Self { http: http(&found.url)?, token, found })
    }

    fn request(&self, method: Method, path: &str, query: &[(&str, String)]) -> RequestBuilder {
        let url = format!("{}/api/v1{path}", self.found.base());
        self.http.request(method, url).query(query).bearer_auth(self.token.expose_secret())
    }

    async fn ask(&self, request: RequestBuilder) -> Result<Response> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(refusal(&self.found, response).await) }
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Value> {
        let text = self.text(request).await?;
        serde_json::from_str(&text).map_err(|error| self.not_atoll(&format!("its answer is not JSON ({error})")))
    }

    async fn text(&self, request: RequestBuilder) -> Result<String> {
        let response = self.ask(request).await?;
        response.text().await.map_err(|error| self.unreachable(&error))
    }

    pub async fn get(&self, path: &str, query: &[(&str, String)]) -> Result<Value> {
        self.answer(self.request(Method::GET, path, query).timeout(ANSWER)).await
    }

    /// The answer's own text, for what is passed on as it is.
    pub async fn get_text(&self, path: &str, query: &[(&str, String)]) -> Result<String> {
        self.text(self.request(Method::GET, path, query).timeout(ANSWER)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value> {
        self.answer(self.request(Method::POST, path, &[]).timeout(ANSWER).json(body)).await
    }

    pub async fn post_long(&self, path: &str, body: &Value) -> Result<Value> {
        self.answer(self.request(Method::POST, path, &[]).timeout(LONG_ANSWER).json(body)).await
    }

    /// A file as the body, as it is; `-` is the input.
    pub async fn post_file(&self, path: &str, query: &[(&str, String)], file: &Path) -> Result<Value> {
        let name = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
        let opened = tokio::fs::File::open(name).await;
        let body = opened.map_err(|error| Failure::input(format!("can't read {}: {error}", file.display())))?;
        let asked = self.request(Method::POST, path, query).header(CONTENT_TYPE, "application/octet-stream");
        self.answer(asked.timeout(LONG_ANSWER).body(reqwest::Body::from(body))).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Result<Value> {
        self.answer(self.request(Method::PATCH, path, &[]).timeout(ANSWER).json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Result<Value> {
        self.answer(self.request(Method::PUT, path, &[]).timeout(ANSWER).json(body)).await
    }

    pub async fn delete(&self, path: &str, query: &[(&str, String)]) -> Result<Value> {
        self.answer(self.request(Method::DELETE, path, query).timeout(ANSWER)).await
    }

    /// An answer that goes on until one side ends it.
    pub async fn stream(&self, path: &str, query: &[(&str, String)]) -> Result<Response> {
        self.ask(self.request(Method::GET, path, query)).await
    }

    /// The next bytes of such an answer; nothing after the last.
    pub async fn piece(&self, answer: &mut Response) -> Result<Option<bytes::Bytes>> {
        answer.chunk().await.map_err(|error| {
            Failure::work("broke_off", format!("the answer of {} broke off: {}", self.found.url, innermost(&error)))
        })
    }

    /// A body as it comes, for as long as it takes.
    pub async fn put_stream(&self, path: &str, query: &[(&str, String)], body: reqwest::Body) -> Result<Value> {
        self.answer(self.request(Method::PUT, path, query).body(body)).await
    }

    /// The answer in another form than JSON, as it is.
    pub async fn get_as(&self, accept: &str, path: &str, query: &[(&str, String)]) -> Result<Vec<u8>> {
        let asked = self.request(Method::GET, path, query).header(ACCEPT, accept).timeout(LONG_ANSWER);
        let answer = self.ask(asked).await?;
        Ok(answer.bytes().await.map_err(|error| self.unreachable(&error))?.to_vec())
    }

    pub fn not_atoll(&self, what: &str) -> Failure {
        not_atoll(&self.found, what)
    }

    fn unreachable(&self, error: &reqwest::Error) -> Failure {
        let cause = innermost(error);
        if cause.contains("certificate") {
            return Failure::setup("untrusted", format!("the server at {} is not trusted: {cause}", self.found.url))
                .next("Name it as its certificate does with --server URL, and the authority that signed it with SSL_CERT_FILE.");
        }
        let detail = format!("no server answers at {}: {cause}", self.found.url);
        Failure::setup("no_server", format!("{detail} ({})", self.found.origin))
            .next("Start one with `atoll serve`, or name another one with --server URL.")
    }
}

/// What is at this address, without a token; used to look before talking.
pub async fn look(url: &Url, path: &str) -> Result<Response, String> {
    let client = http(url).map_err(|failure| failure.shown(false).unwrap_or_default())?;
    let asked = client.get(format!("{}{path}", url.as_str().trim_end_matches('/'))).timeout(CONNECT);
    asked.send().await.map_err(|error| innermost(&error))
}

fn http(url: &Url) -> Result<reqwest::Client> {
    // A second installation is refused, and the first one is the same.
    drop(rustls::crypto::ring::default_provider().install_default());
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT)
        .redirect(reqwest::redirect::Policy::none());
    if find::is_loopback(url) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|error| Failure::setup("http", format!("can't set up HTTP: {error}")))
}

/// The reason at the bottom, which is the one that says something.
pub fn cause_of(error: &reqwest::Error) -> String {
    innermost(error)
}

fn innermost(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "it takes too long".to_owned();
    }
    let mut cause: &dyn Error = error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    cause.to_string()
}

fn not_atoll(found: &Found, what: &str) -> Failure {
    Failure::setup("not_atoll", format!("{} does not answer like an Atoll server: {what}", found.url))
        .next("Check the address; `atoll doctor` looks at it.")
}

/// A problem document as a failure; anything else is somebody in between.
async fn refusal(found: &Found, response: Response) -> Failure {
    let status = response.status();
    let problem: Option<Value> = response.text().await.ok().and_then(|text| serde_json::from_str(&text).ok());
    let code = problem.as_ref().and_then(|problem| problem["code"].as_str());
    let (Some(problem), Some(code)) = (problem.as_ref(), code) else {
        return not_atoll(found, &format!("it said {status}"));
    };
    let failure = Failure::refused(code, problem["detail"].as_str().unwrap_or("refused"));
    match (status, code, problem["sandbox_id"].as_str(), problem["session_id"].as_str()) {
        (StatusCode::UNAUTHORIZED, ..) => failure.next(format!(
            "The token came from {}; name another one with ATOLL_TOKEN or --token-file FILE.",
            found.token_origin()
        )),
        (_, "session_busy", Some(sandbox), _) => {
            failure.next(format!("Its live sandbox is {sandbox}: `atoll send {sandbox} …`, or stop that one first."))
        }
        (_, "sandbox_ending" | "sandbox_ended", _, Some(session)) => {
            failure.next(format!("Send to its session: `atoll send {session} …`."))
        }
        _ => failure,
    }
}
