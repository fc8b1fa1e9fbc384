//! Servers outside of the sandbox.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

#[derive(Default)]
struct Heard {
    requests: usize,
    text: String,
}

/// Answers plain HTTP: `/size/N` with so many bytes, all else with the request as it came. On request it changes to
/// another protocol and sends back what it gets.
pub struct Site {
    pub port: u16,
    heard: Arc<Mutex<Heard>>,
    serving: JoinHandle<()>,
}

impl Site {
    pub async fn start() -> Self {
        Self::start_on("127.0.0.1:0").await.unwrap()
    }

    pub async fn start_on(address: &str) -> std::io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let heard = Arc::<Mutex<Heard>>::default();
        let noted = Arc::clone(&heard);
        let serving = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(answer(stream, Arc::clone(&noted)));
            }
        });
        Ok(Self { port: address.port(), heard, serving })
    }

    pub fn requests(&self) -> usize {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).requests
    }

    /// All heads of requests, one after the other.
    pub fn heard(&self) -> String {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).text.clone()
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn answer(mut stream: TcpStream, heard: Arc<Mutex<Heard>>) {
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
            let mut heard = heard.lock().unwrap_or_else(PoisonError::into_inner);
            heard.requests += 1;
            heard.text.push_str(&head);
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
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if stream.write_all(answer.as_bytes()).await.is_err() || stream.write_all(&body).await.is_err() {
            return;
        }
    }
}

/// Sends back what it gets, after a greeting if it is one that speaks first.
pub async fn echo(greeting: &'static [u8]) -> (u16, JoinHandle<()>) {
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

/// `openssl s_server` with a certificate of its own.
pub struct TlsSite {
    pub port: u16,
    child: Child,
}

impl TlsSite {
    pub async fn start(dir: &Path, host: &str, port: u16) -> Self {
        let (key, certificate) = (dir.join("key.pem"), dir.join("certificate.pem"));
        if !key.exists() {
            let made = Command::new("openssl")
                .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"])
                .args(["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
                .args(["-addext", "basicConstraints=critical,CA:FALSE"])
                .arg("-keyout")
                .arg(&key)
                .arg("-out")
                .arg(&certificate)
                .output()
                .unwrap();
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
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
        super::until("openssl listens", || std::net::TcpStream::connect((host, port)).is_ok()).await;
        site
    }
}

impl Drop for TlsSite {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// A proxy that takes every tunnel to one port of this machine, and tells what it was asked.
pub async fn forwarder(to: u16) -> (u16, Arc<Mutex<String>>, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::<Mutex<String>>::default();
    let noted = Arc::clone(&asked);
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let noted = Arc::clone(&noted);
            tokio::spawn(async move {
                let mut head = Vec::new();
                while !head.ends_with(b"\r\n\r\n") {
                    match stream.read_buf(&mut head).await {
                        Ok(0) | Err(_) => return,
                        Ok(_) => {}
                    }
                }
                let text = String::from_utf8_lossy(&head).into_owned();
                noted.lock().unwrap_or_else(PoisonError::into_inner).push_str(&text);
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
    (port, asked, serving)
}
