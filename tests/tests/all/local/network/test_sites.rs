//! Test servers outside the sandbox.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Default)]
struct SiteRecord {
    requests: usize,
    text: String,
}

/// A plain HTTP server: `/size/N` returns N bytes, other paths echo the request. Accepts a web socket upgrade and then
/// echoes bytes.
pub struct HttpSite {
    pub port: u16,
    record: Arc<Mutex<SiteRecord>>,
    serving: JoinHandle<()>,
}

impl HttpSite {
    pub async fn start() -> Self {
        Self::start_on("127.0.0.1:0").await.unwrap()
    }

    pub async fn start_on(address: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let record = Arc::<Mutex<SiteRecord>>::default();
        let shared = Arc::clone(&record);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve_connection(stream, Arc::clone(&shared)));
            }
        });
        Ok(Self { port: address.port(), record, serving })
    }

    pub fn request_count(&self) -> usize {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).requests
    }

    /// The heads of all requests, concatenated.
    pub fn request_heads(&self) -> String {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).text.clone()
    }
}

impl Drop for HttpSite {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve_connection(mut stream: TcpStream, record: Arc<Mutex<SiteRecord>>) {
    let mut bytes = Vec::new();
    loop {
        let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
            match stream.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => continue,
            }
        };
        let rest = bytes.split_off(end + 4);
        let head = String::from_utf8_lossy(&bytes).into_owned();
        bytes = rest;
        let lower = head.to_ascii_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
        while bytes.len() < length.unwrap_or(0) {
            match stream.read_buf(&mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        bytes.drain(..length.unwrap_or(0));
        if lower.contains("transfer-encoding: chunked") {
            while !bytes.ends_with(b"0\r\n\r\n") {
                match stream.read_buf(&mut bytes).await {
                    Ok(0) | Err(_) => return,
                    Ok(_) => {}
                }
            }
            bytes.clear();
        }
        {
            let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
            record.requests += 1;
            record.text.push_str(&head);
        }
        if lower.contains("\r\nupgrade: websocket\r\n") {
            let switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nhere ";
            drop(stream.write_all(switched.as_bytes()).await);
            let (mut read, mut write) = stream.split();
            drop(tokio::io::copy(&mut read, &mut write).await);
            return;
        }
        let path = head.split(' ').nth(1).unwrap_or_default();
        let body = match path.strip_prefix("/size/").and_then(|size| size.parse().ok()) {
            Some(size) => vec![b'x'; size],
            None => head.clone().into_bytes(),
        };
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all(head.as_bytes()).await.is_err() || stream.write_all(&body).await.is_err() {
            return;
        }
    }
}

/// An echo server that first sends a greeting.
pub async fn start_echo(greeting: &'static [u8]) -> (u16, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                drop(stream.write_all(greeting).await);
                let (mut read, mut write) = stream.split();
                drop(tokio::io::copy(&mut read, &mut write).await);
                drop(write.shutdown().await);
            });
        }
    });
    (port, serving)
}

/// `openssl s_server` with a self-signed certificate.
pub struct TlsSite {
    pub port: u16,
    child: Child,
}

impl TlsSite {
    pub async fn start(dir: &Path, host: &str, port: u16) -> Self {
        let (key, certificate) = (dir.join("key.pem"), dir.join("certificate.pem"));
        if !key.exists() {
            let created = Command::new("openssl")
                .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
                .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
                .args(["-addext", "basicConstraints=critical,CA:FALSE"])
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&certificate)
                .output()
                .unwrap();
            assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
        }
        let child = Command::new("openssl")
            .args(["s_server", "-quiet", "-www", "-accept", &format!("{host}:{port}")])
            .arg("-key")
            .arg(&key)
            .arg("-cert")
            .arg(&certificate)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let site = Self { port, child };
        let is_served = async || TcpStream::connect((host, port)).await.is_ok();
        atoll_test_wait::poll_until("openssl to listen", is_served).await;
        site
    }
}

impl Drop for TlsSite {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A proxy that connects every request to one local port and records the request heads.
pub async fn start_proxy(to: u16) -> (u16, Arc<Mutex<String>>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let requests = Arc::<Mutex<String>>::default();
    let shared = Arc::clone(&requests);
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_buf(&mut head).await {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
                let text = String::from_utf8_lossy(&head).into_owned();
                shared.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
                let mut server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                if text.starts_with("CONNECT ") {
                    stream.write_all(b"HTTP/1.1 200 Here\r\n\r\n").await.unwrap();
                } else {
                    server.write_all(&head).await.unwrap();
                }
                drop(tokio::io::copy_bidirectional(&mut stream, &mut server).await);
            });
        }
    });
    (port, requests, serving)
}
