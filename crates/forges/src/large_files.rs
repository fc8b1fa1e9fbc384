//! Downloads from the large-file storage (LFS) of a git host: its batch API with the transfer `basic`.

use crate::error::{Error, Result};
use crate::github::is_loopback;
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use reqwest::{Response, StatusCode, Url};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

const MEDIA_TYPE: &str = "application/vnd.git-lfs+json";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(20);
/// Time without any byte of a response.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RESPONSE_BYTES: usize = 8 << 20;
/// Files of one batch request.
pub const MAX_BATCH: usize = 100;
const MAX_DETAIL_CHARS: usize = 200;

/// The large-file storage of one repository.
pub struct LargeFileServer {
    http: reqwest::Client,
    url: Url,
    login: Option<(String, SecretString)>,
    /// Headers of requests to the storage.
    headers: HeaderMap,
}

/// Where a file can be downloaded.
pub struct Download {
    pub oid: String,
    url: Url,
    headers: HeaderMap,
}

/// The content of a file.
pub struct ContentStream(Response);

#[derive(Deserialize)]
struct BatchResponse {
    #[serde(default)]
    objects: Vec<ObjectPayload>,
}

#[derive(Deserialize)]
struct ObjectPayload {
    oid: String,
    #[serde(default)]
    actions: HashMap<String, ActionPayload>,
    error: Option<ErrorPayload>,
}

#[derive(Deserialize)]
struct ActionPayload {
    href: String,
    #[serde(default)]
    header: HashMap<String, String>,
}

#[derive(Deserialize)]
struct ErrorPayload {
    #[serde(default)]
    message: String,
}

impl LargeFileServer {
    /// The storage of the repository at this URL, for a user name and a token.
    pub fn new(repository_url: &str, login: Option<(String, SecretString)>) -> Result<Self> {
        let plain = repository_url.trim_end_matches('/');
        let end = if plain.ends_with(".git") { "" } else { ".git" };
        Self::connect(&format!("{plain}{end}/info/lfs"), login, HeaderMap::new())
    }

    /// The storage at this URL, which the repository's server named together with the headers for it.
    pub fn with_headers(url: &str, headers: &BTreeMap<String, SecretString>) -> Result<Self> {
        let mut checked = HeaderMap::new();
        for (name, value) in headers {
            let (name, mut value) = parse_header(name, value.expose_secret())?;
            value.set_sensitive(true);
            checked.insert(name, value);
        }
        Self::connect(url.trim_end_matches('/'), None, checked)
    }

    fn connect(url: &str, login: Option<(String, SecretString)>, headers: HeaderMap) -> Result<Self> {
        drop(rustls::crypto::ring::default_provider().install_default());
        let invalid = |detail: String| Error::Configuration { detail };
        let url: Url = url.parse().map_err(|error| invalid(format!("the URL: {error}")))?;
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("atoll/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none());
        if is_loopback(&url) {
            builder = builder.no_proxy();
        }
        let http = builder.build().map_err(|error| invalid(error.to_string()))?;
        Ok(Self { http, url, login, headers })
    }

    /// Asks where at most [`MAX_BATCH`] files can be downloaded, by their hashes and sizes.
    pub async fn find_downloads(&self, files: &BTreeMap<String, u64>) -> Result<Vec<Download>> {
        let objects: Vec<_> = files.iter().map(|(oid, size)| json!({ "oid": oid, "size": size })).collect();
        let body =
            json!({ "operation": "download", "transfers": ["basic"], "objects": objects, "hash_algo": "sha256" });
        let mut request = self.http.post(format!("{}/objects/batch", self.url)).json(&body);
        request = request.header(ACCEPT, MEDIA_TYPE).header(CONTENT_TYPE, MEDIA_TYPE).headers(self.headers.clone());
        if let Some((user, token)) = &self.login {
            request = request.basic_auth(user, Some(token.expose_secret()));
        }
        let response = check_status(request.send().await.map_err(unavailable)?, "large-file storage (LFS)")?;
        let response: BatchResponse = serde_json::from_slice(&read_bounded(response).await?)
            .map_err(|_| unexpected("the answer is no list of large files"))?;
        let mut found = Vec::new();
        for object in response.objects.into_iter().filter(|object| files.contains_key(&object.oid)) {
            if let Some(error) = object.error {
                let message: String = error.message.chars().take(MAX_DETAIL_CHARS).collect();
                return Err(Error::Refused { detail: format!("large file {}: {message}", object.oid) });
            }
            let Some(action) = object.actions.get("download") else { continue };
            found.push(self.check_download(object.oid, action)?);
        }
        if found.len() < files.len() {
            return Err(Error::NotFound { what: "large file" });
        }
        Ok(found)
    }

    /// The server names any address. It must be encrypted, and this machine only if the repository is on it.
    fn check_download(&self, oid: String, action: &ActionPayload) -> Result<Download> {
        let url: Url = action.href.parse().map_err(|_| unexpected("the address of a large file is no URL"))?;
        let is_own = url.origin() == self.url.origin();
        if !is_own && (url.scheme() != "https" || is_loopback(&url)) {
            return Err(unexpected("the address of a large file is not allowed: it must be https, on another machine"));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &action.header {
            let (name, value) = parse_header(name, value)?;
            headers.insert(name, value);
        }
        Ok(Download { oid, url, headers })
    }

    pub async fn open(&self, download: &Download) -> Result<ContentStream> {
        let mut request = self.http.get(download.url.clone());
        let is_own = download.url.origin() == self.url.origin() && !download.headers.contains_key(AUTHORIZATION);
        if let Some((user, token)) = self.login.as_ref().filter(|_| is_own) {
            request = request.basic_auth(user, Some(token.expose_secret()));
        }
        if is_own {
            request = request.headers(self.headers.clone());
        }
        let request = request.headers(download.headers.clone());
        check_status(request.send().await.map_err(unavailable)?, "large file").map(ContentStream)
    }
}

impl ContentStream {
    /// The next bytes; `None` at the end.
    pub async fn next_chunk(&mut self) -> Result<Option<impl AsRef<[u8]> + use<>>> {
        self.0.chunk().await.map_err(unavailable)
    }
}

fn parse_header(name: &str, value: &str) -> Result<(HeaderName, HeaderValue)> {
    match (HeaderName::try_from(name), HeaderValue::try_from(value)) {
        (Ok(name), Ok(value)) => Ok((name, value)),
        _ => Err(unexpected("a header for large files is malformed")),
    }
}

fn check_status(response: Response, what: &'static str) -> Result<Response> {
    let detail = |status: StatusCode| status.to_string();
    match response.status() {
        status if status.is_success() => Ok(response),
        status @ StatusCode::UNAUTHORIZED => Err(Error::Unauthorized { detail: detail(status) }),
        status @ StatusCode::FORBIDDEN => Err(Error::Forbidden { detail: detail(status) }),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(Error::NotFound { what }),
        StatusCode::TOO_MANY_REQUESTS => Err(Error::RateLimited { retry_after: Duration::from_secs(60) }),
        status if status.is_server_error() => Err(Error::Unavailable { detail: detail(status) }),
        status => Err(Error::UnexpectedResponse { detail: detail(status) }),
    }
}

async fn read_bounded(mut response: Response) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(unavailable)? {
        if bytes.len() + chunk.len() > MAX_RESPONSE_BYTES {
            return Err(unexpected("the answer is too long"));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

fn unavailable(error: reqwest::Error) -> Error {
    Error::Unavailable { detail: error.without_url().to_string() }
}

fn unexpected(detail: &str) -> Error {
    Error::UnexpectedResponse { detail: detail.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_download_is_encrypted_or_of_the_repositorys_server() {
        let check = |repository: &str, href: &str| {
            let action = ActionPayload { href: href.to_owned(), header: HashMap::new() };
            LargeFileServer::new(repository, None).unwrap().check_download("1".to_owned(), &action).is_ok()
        };
        let public = "https://git.example.org/a/b";
        for allowed in ["https://cdn.example.net/x?signature=1", "https://git.example.org/x"] {
            assert!(check(public, allowed), "{allowed}");
        }
        for refused in [
            "http://cdn.example.net/x",
            "http://git.example.org/x",
            "https://127.0.0.1/x",
            "https://localhost/x",
            "file:///etc/passwd",
            "x",
        ] {
            assert!(!check(public, refused), "{refused}");
        }
        assert!(check("http://127.0.0.1:8080/a", "http://127.0.0.1:8080/x"));
        assert!(!check("http://127.0.0.1:8080/a", "http://127.0.0.1:9090/x"));
    }

    #[test]
    fn the_storage_is_below_the_repository() {
        for url in ["https://h/a/b", "https://h/a/b.git", "https://h/a/b/"] {
            assert_eq!(LargeFileServer::new(url, None).unwrap().url.as_str(), "https://h/a/b.git/info/lfs", "{url}");
        }
    }
}
