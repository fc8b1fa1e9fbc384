//! Somebody who talks to a server: an admin, a member, a worker, nobody in particular.

use reqwest::{Client, Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use std::sync::OnceLock;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::{self, client::IntoClientRequest};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

pub type Socket = WebSocketStream<MaybeTlsStream<TcpStream>>;

/// One TLS provider for the whole process.
pub fn client() -> Client {
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

/// What came back.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
    pub content_type: String,
    pub retry_after: Option<String>,
}

impl Answer {
    pub async fn of(response: Response) -> Self {
        let status = response.status();
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let (content_type, retry_after) = (header("content-type").unwrap_or_default(), header("retry-after"));
        let text = response.text().await.unwrap_or_default();
        let body = serde_json::from_str(&text).unwrap_or(Value::String(text));
        Self { status, body, content_type, retry_after }
    }

    #[track_caller]
    pub fn expect(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", self.body);
        self.body
    }

    /// A refusal: the right status, a problem document, the right code.
    #[track_caller]
    pub fn refused(self, status: u16, code: &str) -> Value {
        assert_eq!((self.status.as_u16(), self.body["code"].as_str()), (status, Some(code)), "{}", self.body);
        assert_eq!(self.content_type, "application/problem+json");
        assert_eq!(self.body["status"], status);
        self.body
    }
}

impl Actor {
    pub fn new(url: &str, token: Option<&str>) -> Self {
        Self { url: url.to_owned(), token: token.map(str::to_owned), client: client() }
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { token: Some(token.to_owned()), ..self.clone() }
    }

    /// Paths that begin with `/api`, `/healthz` … are taken as they are, others are under `/api/v1`.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let at_root = ["/api/", "/healthz", "/readyz", "/metrics", "/docs"].iter().any(|root| path.starts_with(root));
        let prefix = if at_root { "" } else { "/api/v1" };
        let request = self.client.request(method, format!("{}{prefix}{path}", self.url));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    pub async fn send(&self, request: RequestBuilder) -> Answer {
        Answer::of(request.send().await.unwrap()).await
    }

    pub async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path).json(&body)).await
    }

    pub async fn patch(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PATCH, path).json(&body)).await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::PUT, path).json(&body)).await
    }

    pub async fn delete(&self, path: &str) -> Answer {
        self.send(self.request(Method::DELETE, path)).await
    }

    /// A WebSocket under `/api/v1`, as this actor.
    pub async fn try_web_socket(&self, path: &str) -> Result<Socket, tungstenite::Error> {
        let url = format!("{}/api/v1{path}", self.url.replace("http://", "ws://"));
        let mut request = url.into_client_request()?;
        if let Some(token) = &self.token {
            request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        }
        Ok(tokio_tungstenite::connect_async(request).await?.0)
    }

    pub async fn web_socket(&self, path: &str) -> Socket {
        self.try_web_socket(path).await.unwrap()
    }

    /// A new external sandbox: its id, its session and its worker.
    pub async fn external(&self, settings: Value) -> External {
        let mut body = json!({ "provider": "external" });
        body.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
        let made = self.post("/sandboxes", body).await.expect(201);
        External {
            id: made["id"].as_str().unwrap().to_owned(),
            session: made["session_id"].as_str().unwrap().to_owned(),
            token: made["worker"]["token"].as_str().unwrap().to_owned(),
        }
    }

    /// Every event of a sandbox, page by page.
    pub async fn all_events(&self, sandbox: &str) -> Vec<Value> {
        self.everything(&format!("/sandboxes/{sandbox}/events"), 500).await
    }

    /// Every item of a list, page by page.
    pub async fn everything(&self, path: &str, limit: usize) -> Vec<Value> {
        let mut items = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = self.get(&format!("{path}?limit={limit}{cursor}")).await.expect(200);
            items.extend(page["items"].as_array().unwrap().iter().cloned());
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return items,
            }
        }
    }
}

#[derive(Debug, Clone)]
pub struct External {
    pub id: String,
    pub session: String,
    pub token: String,
}
