//! An HTTP client with one principal's credentials: an admin, a member, a worker or none.

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::OnceLock;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

pub type ClientWebSocket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// Builds a client without a proxy. The first call installs the process-wide TLS provider.
pub fn build_http_client() -> Client {
    static CLIENT: OnceLock<()> = OnceLock::new();
    CLIENT.get_or_init(|| drop(rustls::crypto::ring::default_provider().install_default()));
    Client::builder().no_proxy().build().unwrap()
}

#[derive(Debug, Clone)]
pub struct Actor {
    pub url: String,
    pub token: Option<String>,
    client: Client,
}

/// A response with its body read and parsed.
#[derive(Debug, Clone)]
pub struct ApiResponse {
    pub status: StatusCode,
    pub body: Value,
    pub content_type: String,
    pub retry_after: Option<String>,
}

impl ApiResponse {
    pub async fn from_response(response: Response) -> Self {
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (content_type, retry_after) = (header("content-type").unwrap_or_default(), header("retry-after"));
        let text = response.text().await.unwrap_or_default();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, body, content_type, retry_after }
    }

    #[track_caller]
    pub fn expect_status(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }

    /// Checks the status, the media type and the code of a problem response.
    #[track_caller]
    pub fn expect_problem(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status.as_u16(), self.body["code"].as_str()), (status, Some(code)), "{}", self.body);
        assert_eq!(self.content_type, "application/problem+json");
        assert_eq!(self.body["status"], status);
        self.body
    }
}

impl Actor {
    pub fn new(url: &str, token: Option<&str>) -> Self {
        Self { url: url.to_owned(), token: token.map(str::to_owned), client: build_http_client() }
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Starts a request. Paths that begin with `/api`, `/healthz` … stay as they are, others get the prefix `/api/v1`.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let at_root = ["/api/", "/healthz", "/readyz", "/metrics", "/docs"].iter().any(|root| path.starts_with(root));
        let prefix = if at_root { "" } else { "/api/v1" };
        let request = self.client.request(method, format!("{}{prefix}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn send(&self, request: RequestBuilder) -> ApiResponse {
        ApiResponse::from_response(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> ApiResponse {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> ApiResponse {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> ApiResponse {
        self.send(self.request(Method::PATCH, path).json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> ApiResponse {
        self.send(self.request(Method::PUT, path).json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> ApiResponse {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// Opens a WebSocket under `/api/v1`, as this actor.
    pub async fn try_open_web_socket(&self, path: &str) -> Result<ClientWebSocket, tungstenite::Error> {
        let url = format!("{}/api/v1{path}", self.url.replace("http://", "ws://"));
        let mut request = url.into_client_request()?;
        if let Some(token) = &self.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(tokio_tungstenite::connect_async(request).await?.0)
    }

    pub async fn open_web_socket(&self, path: &str) -> ClientWebSocket {
        self.try_open_web_socket(path).await.unwrap()
    }

    /// Creates an external sandbox and returns its id, its session and its worker's token.
    pub async fn create_external_sandbox(&self, settings: Value) -> ExternalSandbox {
        let mut body = json!({ "provider": "external" });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let created = self.post("/sandboxes", body).await.expect_status(201);
        ExternalSandbox {
            id: created["id"].as_str().unwrap().to_owned(),
            session: created["session_id"].as_str().unwrap().to_owned(),
            token: created["worker"]["token"].as_str().unwrap().to_owned(),
        }
    }

    /// Reads every event of a sandbox, page by page.
    pub async fn all_events(&self, sandbox: &str) -> Vec<Value> {
        self.list_all(&format!("/sandboxes/{sandbox}/events"), 500).await
    }

    /// Reads every item of a list, page by page.
    pub async fn list_all(&self, path: &str, limit: usize) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("{path}?limit={limit}{cursor}")).await.expect_status(200);
            items.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }
}

#[derive(Debug, Clone)]
pub struct ExternalSandbox {
    pub id: String,
    pub session: String,
    pub token: String,
}
