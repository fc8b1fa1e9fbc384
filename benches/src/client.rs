//! A minimal HTTP client with one keep-alive connection.

use anyhow::{Context, Result, bail};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Method, Request, Uri};
use hyper_util::rt::TokioIo;
use serde::de::DeserializeOwned;
use std::net::SocketAddr;
use tokio::net::TcpStream;

pub struct HttpClient {
    connection: SendRequest<Full<Bytes>>,
    host: HeaderValue,
    authorization: HeaderValue,
}

pub async fn connect_tcp(address: SocketAddr) -> Result<TcpStream> {
    let stream = TcpStream::connect(address).await.with_context(|| format!("cannot reach {address}"))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

impl HttpClient {
    pub async fn connect(address: SocketAddr, token: &str) -> Result<Self> {
        let (sender, connection) = handshake(TokioIo::new(connect_tcp(address).await?)).await?;
        tokio::spawn(connection);
        Ok(Self {
            connection: sender,
            host: HeaderValue::from_str(&address.to_string())?,
            authorization: HeaderValue::from_str(&format!("Bearer {token}"))?,
        })
    }

    pub async fn post(&mut self, path: &Uri, body: Bytes) -> Result<Bytes> {
        self.send_request(Method::POST, path, body).await
    }

    pub async fn delete(&mut self, path: &Uri) -> Result<Bytes> {
        self.send_request(Method::DELETE, path, Bytes::new()).await
    }

    pub async fn get(&mut self, path: &Uri) -> Result<Bytes> {
        self.send_request(Method::GET, path, Bytes::new()).await
    }

    pub async fn get_json<T: DeserializeOwned>(&mut self, path: &Uri) -> Result<T> {
        let response = self.get(path).await?;
        serde_json::from_slice(&response).with_context(|| format!("unexpected response to {path}"))
    }

    async fn send_request(&mut self, method: Method, path: &Uri, body: Bytes) -> Result<Bytes> {
        let request = Request::builder()
            .method(method)
            .uri(path.clone())
            .header(HOST, self.host.clone())
            .header(AUTHORIZATION, self.authorization.clone())
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        self.connection.ready().await?;
        let response = self.connection.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !status.is_success() {
            bail!("{path} returned {status}: {}", String::from_utf8_lossy(&body));
        }
        Ok(body)
    }
}
