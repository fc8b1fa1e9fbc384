//! `atoll agents install`, from a registry that this test serves.

use atoll_tests::local::{directory, skipped};
use atoll_tests::process::command;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use sha2::{Digest, Sha512};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Output;
use std::sync::{Arc, Mutex};

type Pages = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// As much of a registry as is asked for. It ends with the process.
struct Registry {
    url: String,
    pages: Pages,
}

impl Registry {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let pages = Pages::default();
        let served = Arc::clone(&pages);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                drop(answer(stream, &served));
            }
        });
        Self { url, pages }
    }

    fn put(&self, path: &str, body: Vec<u8>) {
        self.pages.lock().unwrap().insert(path.to_owned(), body);
    }

    /// A version of Claude Code's package, with a checksum that need not be its own.
    fn publish(&self, version: &str, archive: &[u8], integrity: &str) {
        let tarball = format!("{}/x/{version}.tgz", self.url);
        let description = json!({ "dist": { "tarball": tarball, "integrity": integrity } });
        self.put(&format!("/@anthropic-ai%2fclaude-code-linux-x64/{version}"), description.to_string().into_bytes());
        self.put(&format!("/x/{version}.tgz"), archive.to_vec());
    }
}

fn answer(mut stream: TcpStream, pages: &Pages) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut piece = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut piece)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    let request = String::from_utf8_lossy(&request);
    let path = request.split(' ').nth(1).unwrap_or_default();
    let (status, body) = match pages.lock().unwrap().get(path) {
        Some(body) => ("200 OK", body.clone()),
        None => ("404 Not Found", b"{}".to_vec()),
    };
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

fn archive(program: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(program.len() as u64);
    tar.append_data(&mut header, "package/claude", program.as_bytes()).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&tar.into_inner().unwrap()).unwrap();
    packed.finish().unwrap()
}

fn sum(bytes: &[u8]) -> String {
    format!("sha512-{}", STANDARD.encode(Sha512::digest(bytes)))
}

fn agents(data: &Path, registry: &str, arguments: &[&str]) -> Output {
    let mut command = command("atoll");
    command.arg("agents").args(arguments).arg("--data-dir").arg(data).arg("--json");
    command.env("NPM_CONFIG_REGISTRY", registry).env("PATH", "/usr/bin:/bin").env_remove("npm_config_registry");
    command.env("no_proxy", "127.0.0.1").output().unwrap()
}

fn objects(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn refusal(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn an_agent_is_installed_whole_and_checked_or_not_at_all() {
    if !cfg!(target_arch = "x86_64") {
        return skipped("agents from a registry", "the packages are named for x86_64");
    }
    let (registry, dir) = (Registry::start(), directory("atoll-registry-"));
    let data = dir.path().join("data");
    let good = archive("#!/bin/sh\necho 7.7.7\n");
    registry.publish("7.7.7", &good, &sum(&good));
    let install = |version: &str| agents(&data, &registry.url, &["install", "claude", "--version", version]);

    let done = objects(&install("7.7.7")).remove(0);
    assert_eq!((&done["new"], &done["tested"]), (&json!(true), &json!(false)), "{done}");
    let program = data.join("agents/claude/7.7.7/package/claude");
    assert_eq!(done["directory"], json!(data.join("agents/claude/7.7.7")));
    assert!(program.is_file());
    assert_eq!(objects(&install("7.7.7"))[0]["new"], false, "again is no harm");
    let listed = objects(&agents(&data, &registry.url, &[]));
    let claude = listed.iter().find(|item| item["name"] == "claude").unwrap();
    assert_eq!((&claude["path"], &claude["version"]), (&json!(program), &json!("7.7.7")));
    assert_eq!((&claude["origin"], &claude["tested"]), (&json!("installed"), &json!(false)));

    // Another archive than the checksum's, one that breaks off, one without the program; and no version at all.
    registry.publish("7.7.8", &good, &sum(b"other"));
    assert_eq!(refusal(&install("7.7.8"))["code"], "checksum");
    let cut = &good[..good.len() / 2];
    registry.publish("7.7.9", cut, &sum(cut));
    assert_eq!(refusal(&install("7.7.9"))["code"], "agents");
    registry.publish("7.8.0", &good, "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=");
    assert_eq!(refusal(&install("7.8.0"))["code"], "agents", "nothing that can be checked");
    assert_eq!(refusal(&install("1.0.0"))["code"], "no_package");
    assert_eq!(refusal(&install("../../x"))["code"], "bad_input");
    // Of the version that was tried the checksum is known, whatever a registry says.
    registry.publish("2.1.325", &good, &sum(&good));
    assert_eq!(refusal(&agents(&data, &registry.url, &["install", "claude"]))["code"], "checksum");
    let unreachable = refusal(&agents(&data, "http://127.0.0.1:9", &["install", "claude"]));
    assert_eq!(unreachable["code"], "registry");
    assert!(unreachable["detail"].as_str().unwrap().contains("can't be reached"), "{unreachable}");
    let names: Vec<_> = std::fs::read_dir(data.join("agents/claude")).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "only what is whole has a name: {names:?}");
    assert_eq!(std::fs::read_dir(data.join("agents")).unwrap().count(), 1, "and nothing is left beside it");

    assert_eq!(objects(&agents(&data, &registry.url, &["remove", "claude"]))[0]["removed"], json!(["7.7.7"]));
    assert!(!program.exists());
    assert_eq!(objects(&agents(&data, &registry.url, &["remove", "claude"]))[0]["removed"], json!([]));
}

#[test]
fn a_run_without_an_agent_says_how_to_get_one() {
    let dir = directory("atoll-nobody-");
    let mut command = command("atoll");
    command.args(["run", "say hello", "--provider", "local", "--json", "--data-dir"]).arg(dir.path().join("data"));
    command.env("PATH", "/usr/bin:/bin").env("HOME", dir.path());
    for key in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"] {
        command.env_remove(key);
    }
    let output = command.output().unwrap();
    let refused = refusal(&output);
    assert_eq!(refused["code"], "no_agent", "{output:?}");
    assert!(refused["detail"].as_str().unwrap().contains("atoll agents install claude"), "{refused}");
    assert!(refused["next"].as_str().unwrap().contains("--agent demo"), "{refused}");
}
