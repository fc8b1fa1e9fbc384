//! A small package registry on the loopback interface that demands a token, in the forms of npm, pip, cargo, Go and Maven.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

/// The path of the npm registry at its host.
pub const NPM_PATH: &str = "/repository/npm";
/// The user of basic authentication.
pub const USER: &str = "ci";
pub const VERSION: &str = "1.0.0";

const JSON: &str = "application/json";
const BINARY: &str = "application/octet-stream";

/// Content types and bodies by path.
type Files = BTreeMap<String, (&'static str, Vec<u8>)>;

/// It serves one version of each package in each form, with a thread per connection.
pub struct PackageRegistry {
    pub address: SocketAddr,
    requests: Arc<Mutex<Vec<String>>>,
}

impl PackageRegistry {
    /// Starts with these packages. The content of each contains its name.
    pub fn start(token: &str, packages: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let mut files = Files::new();
        for name in packages {
            add_npm_package(&mut files, address, name);
            add_python_package(&mut files, address, name);
            add_crate(&mut files, address, name);
            add_go_module(&mut files, name);
            add_maven_parent(&mut files, name);
        }
        let files = Arc::new(files);
        let (requests, token) = (Arc::<Mutex<Vec<String>>>::default(), token.to_owned());
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (files, seen, token) = (Arc::clone(&files), Arc::clone(&seen), token.clone());
                std::thread::spawn(move || serve_connection(stream, &files, &seen, &token));
            }
        });
        Self { address, requests }
    }

    /// The URL of the registry in one form, such as `npm`.
    pub fn url(&self, kind: &str) -> String {
        format!("http://{}/repository/{kind}", self.address)
    }

    /// Each request: its method, path and status.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The text that the package contains.
pub fn package_text(name: &str) -> String {
    format!("{name} from the registry")
}

fn add_npm_package(files: &mut Files, address: SocketAddr, name: &str) {
    let tarball_path = format!("{NPM_PATH}/{name}/-/{name}-{VERSION}.tgz");
    let version =
        json!({ "name": name, "version": VERSION, "dist": { "tarball": format!("http://{address}{tarball_path}") } });
    let document = json!({ "name": name, "dist-tags": { "latest": VERSION }, "versions": { VERSION: version } });
    let manifest = json!({ "name": name, "version": VERSION, "main": "index.js" }).to_string();
    let module = format!("module.exports = '{}'", package_text(name));
    let tarball = build_tarball(&[("package/package.json", &manifest), ("package/index.js", &module)]);
    files.insert(format!("{NPM_PATH}/{name}"), (JSON, document.to_string().into_bytes()));
    files.insert(tarball_path, (BINARY, tarball));
}

fn add_python_package(files: &mut Files, address: SocketAddr, name: &str) {
    let module = name.replace('-', "_");
    let wheel_path = format!("/repository/pip/files/{module}-{VERSION}-py3-none-any.whl");
    let info = format!("{module}-{VERSION}.dist-info");
    let wheel = build_zip(&[
        (&format!("{module}.py"), &format!("TEXT = '{}'\n", package_text(name))),
        (&format!("{info}/METADATA"), &format!("Metadata-Version: 2.1\nName: {name}\nVersion: {VERSION}\n")),
        (&format!("{info}/WHEEL"), "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"),
        (&format!("{info}/RECORD"), &format!("{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")),
    ]);
    let link = format!("http://{address}{wheel_path}#sha256={}", sha256_hex(&wheel));
    let index =
        format!("<!DOCTYPE html><html><body><a href=\"{link}\">{module}-{VERSION}-py3-none-any.whl</a></body></html>");
    files.insert(format!("/repository/pip/{name}/"), ("text/html", index.into_bytes()));
    files.insert(wheel_path, (BINARY, wheel));
}

/// Cargo's sparse index. `auth-required` is the setting of registries that demand a token.
fn add_crate(files: &mut Files, address: SocketAddr, name: &str) {
    let index = "/repository/cargo";
    let manifest = format!("[package]\nname = \"{name}\"\nversion = \"{VERSION}\"\nedition = \"2021\"\n");
    let library = format!("pub const TEXT: &str = \"{}\";\n", package_text(name));
    let directory = format!("{name}-{VERSION}");
    let archive = build_tarball(&[
        (&format!("{directory}/Cargo.toml"), &manifest),
        (&format!("{directory}/src/lib.rs"), &library),
    ]);
    let row = json!({ "name": name, "vers": VERSION, "deps": [], "cksum": sha256_hex(&archive), "features": {},
        "yanked": false });
    let config = json!({ "dl": format!("http://{address}{index}/crates"), "auth-required": true });
    files.insert(format!("{index}/config.json"), (JSON, config.to_string().into_bytes()));
    let row_path = format!("{index}/{}/{}/{name}", &name[..2], &name[2..4]);
    files.insert(row_path, ("text/plain", format!("{row}\n").into_bytes()));
    files.insert(format!("{index}/crates/{name}/{VERSION}/download"), (BINARY, archive));
}

/// The module `modules.example/NAME`.
fn add_go_module(files: &mut Files, name: &str) {
    let module = format!("modules.example/{name}");
    let base = format!("/repository/go/{module}/@v");
    let go_mod = format!("module {module}\n");
    let directory = format!("{module}@v{VERSION}");
    let source = format!("package text\n\nconst Text = \"{}\"\n", package_text(name));
    let archive = build_zip(&[(&format!("{directory}/go.mod"), &go_mod), (&format!("{directory}/text.go"), &source)]);
    let info = json!({ "Version": format!("v{VERSION}"), "Time": "2024-01-01T00:00:00Z" });
    files.insert(format!("{base}/list"), ("text/plain", format!("v{VERSION}\n").into_bytes()));
    files.insert(format!("{base}/v{VERSION}.info"), (JSON, info.to_string().into_bytes()));
    files.insert(format!("{base}/v{VERSION}.mod"), ("text/plain", go_mod.into_bytes()));
    files.insert(format!("{base}/v{VERSION}.zip"), ("application/zip", archive));
}

/// The parent project `example:NAME`.
fn add_maven_parent(files: &mut Files, name: &str) {
    let pom = format!(
        "<project><modelVersion>4.0.0</modelVersion><groupId>example</groupId><artifactId>{name}</artifactId>\
         <version>{VERSION}</version><packaging>pom</packaging><name>{}</name></project>",
        package_text(name)
    );
    files.insert(
        format!("/repository/maven/example/{name}/{VERSION}/{name}-{VERSION}.pom"),
        ("text/xml", pom.into_bytes()),
    );
}

fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

const ZIP_SCRIPT: &str = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as archive:
    for path in sys.argv[2:]:
        archive.write(path)";

fn build_tarball(content: &[(&str, &str)]) -> Vec<u8> {
    build_archive(content, Command::new("tar").arg("-czf"))
}

/// Builds an archive without entries of directories, which Go refuses.
fn build_zip(content: &[(&str, &str)]) -> Vec<u8> {
    build_archive(content, Command::new("python3").args(["-c", ZIP_SCRIPT]))
}

/// Packs files with a program, whose last arguments are the archive and the files.
fn build_archive(content: &[(&str, &str)], program: &mut Command) -> Vec<u8> {
    let dir = tempfile::tempdir().unwrap();
    let (archive, root) = (dir.path().join("archive"), dir.path().join("content"));
    for (path, text) in content {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    program.arg(&archive).args(content.iter().map(|(path, _)| path)).current_dir(&root);
    assert!(program.status().unwrap().success());
    std::fs::read(archive).unwrap()
}

/// Answers requests until the client closes the connection.
fn serve_connection(stream: TcpStream, files: &Files, seen: &Mutex<Vec<String>>, token: &str) {
    let basic = format!("Basic {}", STANDARD.encode(format!("{USER}:{token}")));
    let bearer = format!("Bearer {token}");
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut writer = stream;
    loop {
        let (mut head, mut authorization) = (String::new(), String::new());
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 || line.trim().is_empty() {
                break;
            }
            let (header, value) = line.split_once(':').unwrap_or_default();
            if header.eq_ignore_ascii_case("authorization") {
                authorization = value.trim().to_owned();
            }
        }
        let mut words = head.split_whitespace();
        let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        // Cargo sends its token as it is.
        let is_authorized = authorization == basic
            || if path.starts_with("/repository/cargo/") { authorization == token } else { authorization == bearer };
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
