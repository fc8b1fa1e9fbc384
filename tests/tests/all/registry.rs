//! `atoll agents install` from a fake npm registry.

use atoll_tests::local::{create_temp_dir, report_skipped};
use atoll_tests::process::program_command;
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

type RegistryPages = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// A minimal npm registry. It lives until the test process ends.
struct FakeRegistry {
    url: String,
    pages: RegistryPages,
}

impl FakeRegistry {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let pages = RegistryPages::default();
        let served = Arc::clone(&pages);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                drop(serve_request(stream, &served));
            }
        });
        Self { url, pages }
    }

    fn put(&self, path: &str, body: Vec<u8>) {
        self.pages.lock().unwrap().insert(path.to_owned(), body);
    }

    /// Publishes a version of Claude Code's package, with a checksum that may be wrong.
    fn publish(&self, version: &str, archive: &[u8], integrity: &str) {
        let tarball = format!("{}/x/{version}.tgz", self.url);
        let description = json!({ "dist": { "tarball": tarball, "integrity": integrity } });
        self.put(&format!("/@anthropic-ai%2fclaude-code-linux-x64/{version}"), description.to_string().into_bytes());
        self.put(&format!("/x/{version}.tgz"), archive.to_vec());
    }
}

fn serve_request(mut stream: TcpStream, pages: &RegistryPages) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buffer = [0; 1024];
    while !request.ends_with(b"\r\n\r\n") {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            count => request.extend_from_slice(&buffer[..count]),
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

fn build_archive(program: &str) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_mode(0o755);
    header.set_size(program.len() as u64);
    tar.append_data(&mut header, "package/claude", program.as_bytes()).unwrap();
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&tar.into_inner().unwrap()).unwrap();
    packed.finish().unwrap()
}

fn integrity_of(bytes: &[u8]) -> String {
    format!("sha512-{}", STANDARD.encode(Sha512::digest(bytes)))
}

fn run_agents_command(data: &Path, registry: &str, arguments: &[&str]) -> Output {
    let mut command = program_command("atoll");
    command.arg("agents").args(arguments).arg("--data-dir").arg(data).arg("--json");
    command.env("NPM_CONFIG_REGISTRY", registry).env("PATH", "/usr/bin:/bin").env_remove("npm_config_registry");
    command.env("no_proxy", "127.0.0.1").output().unwrap()
}

fn parse_json_lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn parse_error(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    serde_json::from_str(text.lines().last().unwrap()).unwrap()
}

#[test]
fn an_agent_is_installed_only_complete_and_verified() {
    if !cfg!(target_arch = "x86_64") {
        return report_skipped("agents from a registry", "the packages are named for x86_64");
    }
    let (registry, dir) = (FakeRegistry::start(), create_temp_dir("atoll-registry-"));
    let data = dir.path().join("data");
    let good = build_archive("#!/bin/sh\necho 7.7.7\n");
    registry.publish("7.7.7", &good, &integrity_of(&good));
    let install =
        |version: &str| run_agents_command(&data, &registry.url, &["install", "claude", "--version", version]);

    let done = parse_json_lines(&install("7.7.7")).remove(0);
    assert_eq!((&done["new"], &done["tested"]), (&json!(true), &json!(false)), "{done}");
    let program = data.join("agents/claude/7.7.7/package/claude");
    assert_eq!(done["directory"], json!(data.join("agents/claude/7.7.7")));
    assert!(program.is_file());
    assert_eq!(parse_json_lines(&install("7.7.7"))[0]["new"], false, "a second install must change nothing");
    let listed = parse_json_lines(&run_agents_command(&data, &registry.url, &[]));
    let claude = listed.iter().find(|item| item["name"] == "claude").unwrap();
    assert_eq!((&claude["path"], &claude["version"]), (&json!(program), &json!("7.7.7")));
    assert_eq!((&claude["origin"], &claude["tested"]), (&json!("installed"), &json!(false)));

    // A wrong checksum, a truncated archive, a weak checksum, an unknown version and an invalid version.
    registry.publish("7.7.8", &good, &integrity_of(b"other"));
    assert_eq!(parse_error(&install("7.7.8"))["code"], "checksum");
    let truncated = &good[..good.len() / 2];
    registry.publish("7.7.9", truncated, &integrity_of(truncated));
    assert_eq!(parse_error(&install("7.7.9"))["code"], "agents");
    registry.publish("7.8.0", &good, "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=");
    assert_eq!(parse_error(&install("7.8.0"))["code"], "agents", "SHA-1 is not a usable checksum");
    assert_eq!(parse_error(&install("1.0.0"))["code"], "no_package");
    assert_eq!(parse_error(&install("../../x"))["code"], "bad_input");
    // Atoll pins the checksum of the tested version and ignores the registry's.
    registry.publish("2.1.325", &good, &integrity_of(&good));
    assert_eq!(parse_error(&run_agents_command(&data, &registry.url, &["install", "claude"]))["code"], "checksum");
    let unreachable = parse_error(&run_agents_command(&data, "http://127.0.0.1:9", &["install", "claude"]));
    assert_eq!(unreachable["code"], "registry");
    assert!(unreachable["detail"].as_str().unwrap().contains("cannot reach"), "{unreachable}");
    let names: Vec<_> = std::fs::read_dir(data.join("agents/claude")).unwrap().flatten().collect();
    assert_eq!(names.len(), 1, "a failed install left a version: {names:?}");
    assert_eq!(std::fs::read_dir(data.join("agents")).unwrap().count(), 1, "a failed install left files");

    assert_eq!(
        parse_json_lines(&run_agents_command(&data, &registry.url, &["remove", "claude"]))[0]["removed"],
        json!(["7.7.7"])
    );
    assert!(!program.exists());
    assert_eq!(
        parse_json_lines(&run_agents_command(&data, &registry.url, &["remove", "claude"]))[0]["removed"],
        json!([])
    );
}

#[test]
fn a_run_without_an_agent_explains_how_to_install_one() {
    let dir = create_temp_dir("atoll-no-agent-");
    let mut command = program_command("atoll");
    command.args(["run", "say hello", "--provider", "local", "--json", "--data-dir"]).arg(dir.path().join("data"));
    command.env("PATH", "/usr/bin:/bin").env("HOME", dir.path());
    for key in ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "GEMINI_API_KEY"] {
        command.env_remove(key);
    }
    let output = command.output().unwrap();
    let refused = parse_error(&output);
    assert_eq!(refused["code"], "no_agent", "{output:?}");
    assert!(refused["detail"].as_str().unwrap().contains("atoll agents install claude"), "{refused}");
    assert!(refused["next"].as_str().unwrap().contains("--agent demo"), "{refused}");
}
