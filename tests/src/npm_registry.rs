//! A small npm registry on the loopback interface that demands a token.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The path of the registry at its host.
pub const BASE_PATH: &str = "/repository/npm";

/// It serves version 1.0.0 of one package, with a thread per connection.
pub struct NpmRegistry {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl NpmRegistry {
    /// Starts with the package `name`, whose module is the text `module`.
    pub fn start(token: &str, name: &str, module: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let tarball = build_tarball(name, module);
        let tarball_path = format!("{BASE_PATH}/{name}/-/{name}-1.0.0.tgz");
        let version = serde_json::json!({
            "name": name, "version": "1.0.0", "dist": { "tarball": format!("http://{address}{tarball_path}") },
        });
        let document = serde_json::json!({
            "name": name, "dist-tags": { "latest": "1.0.0" }, "versions": { "1.0.0": version },
        });
        let files: BTreeMap<String, (&'static str, Vec<u8>)> = [
            (format!("{BASE_PATH}/{name}"), ("application/json", document.to_string().into_bytes())),
            (tarball_path, ("application/octet-stream", tarball)),
        ]
        .into();
        let (requests, expected) = (Arc::<Mutex<Vec<String>>>::default(), format!("Bearer {token}"));
        let (files, seen) = (Arc::new(files), Arc::clone(&requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, seen, expected) = (Arc::clone(&files), Arc::clone(&seen), expected.clone());
                std::thread::spawn(move || serve_connection(stream, &files, &seen, &expected));
            }
        });
        Self { address, requests }
    }

    pub fn url(&self) -> String {
        format!("http://{}{BASE_PATH}", self.address)
    }

    /// Each request: its method, path and status.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn build_tarball(name: &str, module: &str) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let package = dir.path().join("package");
    std::fs::create_dir(&package).unwrap();
    let manifest = serde_json::json!({ "name": name, "version": "1.0.0", "main": "index.js" });
    std::fs::write(package.join("package.json"), manifest.to_string()).unwrap();
    std::fs::write(package.join("index.js"), module).unwrap();
    let archive = dir.path().join("package.tgz");
    let packed = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(dir.path()).arg("package").status();
    assert!(packed.unwrap().success());
    std::fs::read(Path::new(&archive)).unwrap()
}

/// Answers requests until the client closes the connection.
fn serve_connection(
    stream: TcpStream,
    files: &BTreeMap<String, (&'static str, Vec<u8>)>,
    seen: &Mutex<Vec<String>>,
    expected: &str,
) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let (mut head, mut is_authorized) = (String::new(), false);
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                break;
            }
            let (header, value) = line.split_once(':').unwrap_or_default();
            is_authorized |= header.eq_ignore_ascii_case("authorization") && value.trim() == expected;
        }
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (status, kind, body) = match files.get(path) {
            _ if !is_authorized => ("401 Unauthorized", "text/plain", b"no token".to_vec()),
            Some((kind, body)) => ("200 OK", *kind, body.clone()),
            None => ("404 Not Found", "text/plain", Vec::new()),
        };
        seen.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method} {path} {}", &status[..3]));
        let head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n", body.len());
        if writer.write_all(head.as_bytes()).and_then(|()| writer.write_all(&body)).is_err() {
            return;
        }
    }
}
