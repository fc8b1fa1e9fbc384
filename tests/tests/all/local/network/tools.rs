//! The tools that agents use, against the registries that this machine reaches.

use super::{allow, refusal};
use atoll_tests::local::{Ground, directory, skipped};
use serde_json::{Map, Value, json};
use std::net::ToSocketAddrs;
use std::process::{Child, Command, Stdio};

/// Whether a host answers, seen from the host itself.
fn reaches(url: &str) -> bool {
    let asked = Command::new("curl").args(["-s", "-o", "/dev/null", "--max-time", "10", url]).status();
    asked.is_ok_and(|status| status.success())
}

/// A machine may reach registries at addresses that are not public: its administrator says so.
fn ground_for(hosts: &[&str]) -> Ground {
    let addresses = hosts.iter().filter_map(|host| (*host, 443).to_socket_addrs().ok()).flatten();
    let mut private: Vec<String> = addresses.map(|address| address.ip().to_string()).collect();
    private.sort();
    private.dedup();
    Ground::start_with(&format!("network: {{allow_private: {}}}\n", json!(private)))
}

/// Certificates that this machine trusts beside the usual ones, where it says so.
fn certificates() -> Value {
    const NAMES: [&str; 4] = ["NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"];
    let set = NAMES.iter().filter_map(|name| Some(((*name).to_owned(), Value::from(std::env::var(name).ok()?))));
    let set = set.filter(|(_, path)| path.as_str().is_some_and(|path| path.starts_with("/etc/ssl/")));
    Value::Object(set.collect::<Map<_, _>>())
}

struct Tool {
    name: &'static str,
    hosts: &'static [&'static str],
    script: &'static str,
    says: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "curl",
        hosts: &["pypi.org"],
        script: "curl -sSf https://pypi.org/simple/six/ | head -c 300",
        says: "html",
    },
    Tool {
        name: "pip",
        hosts: &["pypi.org", "files.pythonhosted.org"],
        script: "pip3 download --no-cache-dir --no-deps --index-url https://pypi.org/simple -d /tmp/wheels six 2>&1; ls /tmp/wheels",
        says: "six-",
    },
    Tool {
        name: "npm",
        hosts: &["registry.npmjs.org"],
        script: "cd /tmp && npm pack left-pad 2>&1",
        says: "left-pad-",
    },
    Tool {
        name: "cargo",
        hosts: &["index.crates.io", "static.crates.io"],
        script: "export CARGO_HOME=/tmp/cargo && cargo init --quiet --lib /tmp/tried 2>&1 && cd /tmp/tried && \
                 cargo add --quiet itoa 2>&1 && cargo fetch 2>&1; ls /tmp/cargo/registry/cache/*/",
        says: "itoa-",
    },
    // Answers git's own request, or says that there is no such repository: either way it was asked.
    Tool {
        name: "git",
        hosts: &["pypi.org"],
        script: "git ls-remote https://pypi.org/none.git 2>&1",
        says: "not found",
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_usual_tools_work_through_it() {
    for tool in TOOLS {
        let host = tool.hosts[0];
        if !reaches(&format!("https://{host}/")) {
            skipped(tool.name, &format!("{host} can't be reached from this machine"));
            continue;
        }
        let ground = ground_for(tool.hosts);
        let mut settings = allow(tool.hosts);
        settings["env"] = certificates();
        let id = ground.kept(settings).await;
        let found = ground.shell(&id, &format!("command -v {}", tool.script.split(' ').next().unwrap())).await;
        if found.code() != Some(0) && !tool.script.starts_with("cd ") && !tool.script.starts_with("export ") {
            skipped(tool.name, "it is not installed where sandboxes see it");
            ground.leave().await;
            continue;
        }
        let ran = ground.exec(&id, json!({ "shell": tool.script, "timeout_s": 300 })).await;
        assert!(ran.stdout.contains(tool.says), "{}: {ran:?}", tool.name);
        let view = super::network_of(&ground, &id).await;
        assert!(view["hosts"][0]["received"].as_u64().unwrap() > 100, "{}: {view}", tool.name);
        // And without the permission each says what the proxy said, or at least that it was refused.
        ground.admin.put(&format!("/sandboxes/{id}/network"), json!({ "policy": "none" })).await.expect(200);
        let script = format!("rm -rf /tmp/wheels /tmp/cargo /tmp/tried /tmp/*.tgz; {}", tool.script);
        let ran = ground.exec(&id, json!({ "shell": script, "timeout_s": 300 })).await;
        assert!(ran.stdout.contains("403") || ran.stderr.contains("403"), "{}: {ran:?}", tool.name);
        refusal(&ground, &id, "policy").await;
        ground.leave().await;
    }
}

/// A repository, served by a program of its own, cloned and fetched from inside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_clones_through_it() {
    let dir = directory("atoll-git-");
    let made = Command::new("sh")
        .args(["-c", "git init -q work && cd work && echo hello > file && git add file && git -c user.name=a -c user.email=a@b commit -qm one && git clone -q --bare . ../site.git && cd ../site.git && git update-server-info"])
        .current_dir(dir.path())
        .status()
        .unwrap();
    assert!(made.success());
    // Not the one loopback address that programs never take to a proxy.
    let host = "127.7.7.7";
    let port = std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port();
    let serving = Command::new("/usr/bin/python3")
        .args(["-m", "http.server", "--bind", host, &port.to_string()])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _serving = Ends(serving);
    super::until("the repository is served", || std::net::TcpStream::connect((host, port)).is_ok()).await;
    let place = format!("{host}:{port}");
    let ground = super::ground(std::slice::from_ref(&place));
    let id = ground.kept(allow(&[&place])).await;
    let script = format!("cd /tmp && git clone -q http://{place}/site.git cloned && cat cloned/file");
    assert_eq!(ground.shell(&id, &script).await.well(), "hello\n");
    let refused = ground.shell(&id, &format!("git ls-remote http://{host}:1/site.git")).await;
    assert!(refused.stderr.contains("403"), "{refused:?}");
    ground.leave().await;
}

struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
