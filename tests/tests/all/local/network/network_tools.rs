//! The tools that agents use, with the public registries that this host can reach.

use super::{allow_policy, wait_for_refusal};
use atoll_tests::local::{LocalServer, create_temp_dir, report_skipped};
use atoll_tests::process::is_in_path;
use serde_json::{Map, Value, json};
use std::net::ToSocketAddrs;
use std::process::{Child, Command, Stdio};

/// Returns true if the host itself can reach the URL.
pub fn is_reachable(url: &str) -> bool {
    let status = Command::new("curl").args(["-s", "-o", "/dev/null", "--max-time", "10", url]).status();
    status.is_ok_and(|status| status.success())
}

/// Configuration that allows the registries' addresses even if they are private, as an administrator would.
pub fn config_for(hosts: &[&str]) -> String {
    let addresses = hosts.iter().filter_map(|host| (*host, 443).to_socket_addrs().ok()).flatten();
    let mut private: Vec<String> = addresses.map(|address| address.ip().to_string()).collect();
    private.sort();
    private.dedup();
    format!("network: {{allow_private: {}}}\n", json!(private))
}

pub fn start_server_for(hosts: &[&str]) -> LocalServer {
    LocalServer::start_with_config(&config_for(hosts))
}

/// Extra CA certificates of this host, if its environment names some.
pub fn certificate_env() -> Value {
    const NAMES: [&str; 4] = ["NODE_EXTRA_CA_CERTS", "PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"];
    let variables = NAMES.iter().filter_map(|name| Some(((*name).to_owned(), Value::from(std::env::var(name).ok()?))));
    let variables = variables.filter(|(_, path)| path.as_str().is_some_and(|path| path.starts_with("/etc/ssl/")));
    Value::Object(variables.collect::<Map<_, _>>())
}

struct Tool {
    name: &'static str,
    hosts: &'static [&'static str],
    script: &'static str,
    expected_output: &'static str,
}

const TOOLS: &[Tool] = &[
    Tool {
        name: "curl",
        hosts: &["pypi.org"],
        script: "curl -sSf https://pypi.org/simple/six/ | head -c 300",
        expected_output: "html",
    },
    Tool {
        name: "pip",
        hosts: &["pypi.org", "files.pythonhosted.org"],
        script: "pip3 download --no-cache-dir --no-deps --index-url https://pypi.org/simple -d /tmp/wheels six 2>&1; ls /tmp/wheels",
        expected_output: "six-",
    },
    Tool {
        name: "npm",
        hosts: &["registry.npmjs.org"],
        script: "cd /tmp && npm pack left-pad 2>&1",
        expected_output: "left-pad-",
    },
    Tool {
        name: "cargo",
        hosts: &["index.crates.io", "static.crates.io"],
        script: "export CARGO_HOME=/tmp/cargo && cargo init --quiet --lib /tmp/tried 2>&1 && cd /tmp/tried && \
                 cargo add --quiet itoa 2>&1 && cargo fetch 2>&1; ls /tmp/cargo/registry/cache/*/",
        expected_output: "itoa-",
    },
    // Either git's own error or "no such repository" proves that the host was asked.
    Tool {
        name: "git",
        hosts: &["pypi.org"],
        script: "git ls-remote https://pypi.org/none.git 2>&1",
        expected_output: "not found",
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn common_tools_work_through_the_proxy() {
    for tool in TOOLS {
        let host = tool.hosts[0];
        if !is_reachable(&format!("https://{host}/")) {
            report_skipped(tool.name, &format!("{host} cannot be reached from this machine"));
            continue;
        }
        let server = start_server_for(tool.hosts);
        let mut settings = allow_policy(tool.hosts);
        settings["env"] = certificate_env();
        let id = server.create_idle_sandbox(settings).await;
        let found = server.run_shell(&id, &format!("command -v {}", tool.script.split(' ').next().unwrap())).await;
        if found.exit_code() != Some(0) && !tool.script.starts_with("cd ") && !tool.script.starts_with("export ") {
            report_skipped(tool.name, "it is not installed where sandboxes see it");
            server.stop_and_check().await;
            continue;
        }
        let ran = server.run_exec(&id, json!({ "shell": tool.script, "timeout_s": 300 })).await;
        assert!(ran.stdout.contains(tool.expected_output), "{}: {ran:?}", tool.name);
        let view = super::get_network(&server, &id).await;
        assert!(view["hosts"][0]["received"].as_u64().unwrap() > 100, "{}: {view}", tool.name);
        // Without permission each tool shows the proxy's error, or at least the status 403.
        server.admin.put(&format!("/sandboxes/{id}/network"), json!({ "policy": "none" })).await.expect_status(200);
        let script = format!("rm -rf /tmp/wheels /tmp/cargo /tmp/tried /tmp/*.tgz; {}", tool.script);
        let ran = server.run_exec(&id, json!({ "shell": script, "timeout_s": 300 })).await;
        assert!(ran.stdout.contains("403") || ran.stderr.contains("403"), "{}: {ran:?}", tool.name);
        wait_for_refusal(&server, &id, "policy").await;
        server.stop_and_check().await;
    }
}

/// The policy `packages` needs no list of hosts, and permits the registries only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packages_reaches_the_registries_and_no_other_host() {
    if !is_reachable("https://pypi.org/") {
        return report_skipped("packages", "pypi.org cannot be reached from this machine");
    }
    let server = start_server_for(&["pypi.org"]);
    let settings = json!({ "network": { "policy": "packages" }, "env": certificate_env() });
    let id = server.create_idle_sandbox(settings).await;
    let reached = server.run_shell(&id, "curl -sSf https://pypi.org/simple/six/ | head -c 300").await.expect_success();
    assert!(reached.contains("html"), "{reached}");
    let refused = super::run_curl(&server, &id, "https://example.org/").await;
    assert!(refused.contains("403"), "{refused}");
    wait_for_refusal(&server, &id, "policy").await;
    server.stop_and_check().await;
}

/// npm repeats refused requests without end if more of them wait than it has sockets.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn npm_ends_when_the_network_is_closed() {
    if !is_in_path("npm") {
        return report_skipped("npm in a closed network", "npm is missing");
    }
    let names: Vec<String> = (0..40).map(|number| format!("package-{number}")).collect();
    let dependencies: Map<String, Value> = names.iter().map(|name| (name.clone(), json!("1.0.0"))).collect();
    let mut packages = Map::from_iter([(String::new(), json!({ "dependencies": dependencies }))]);
    packages.extend(names.iter().map(|name| {
        let resolved = format!("https://registry.npmjs.org/{name}/-/{name}-1.0.0.tgz");
        (format!("node_modules/{name}"), json!({ "version": "1.0.0", "resolved": resolved }))
    }));
    let lock = json!({ "name": "app", "version": "1.0.0", "lockfileVersion": 3, "packages": packages });
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({})).await;
    for (file, content) in [("package-lock.json", lock), ("package.json", json!({ "dependencies": dependencies }))] {
        let script = format!("cat > /workspace/{file} <<'END'\n{content}\nEND");
        server.run_shell(&id, &script).await.expect_success();
    }
    let ran = server.run_exec(&id, json!({ "shell": "cd /workspace && npm ci 2>&1", "timeout_s": 120 })).await;
    assert_eq!(ran.exit_code(), Some(1), "{ran:?}");
    assert!(ran.stdout.contains("403"), "{ran:?}");
    server.stop_and_check().await;
}

/// Clones a repository that a local HTTP server serves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_clones_through_the_proxy() {
    let dir = create_temp_dir("atoll-git-");
    let created = Command::new("sh")
        .args(["-c", "git init -q work && cd work && echo hello > file && git add file && git -c user.name=a -c user.email=a@b commit -qm one && git clone -q --bare . ../site.git && cd ../site.git && git update-server-info"])
        .current_dir(dir.path())
        .status()
        .unwrap();
    assert!(created.success());
    // Programs bypass the proxy for 127.0.0.1, so use another loopback address.
    let host = "127.7.7.7";
    let port = std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap().port();
    let serving = Command::new("/usr/bin/python3")
        .args(["-m", "http.server", "--bind", host, &port.to_string()])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let _serving = KillOnDrop(serving);
    let is_served = async || tokio::net::TcpStream::connect((host, port)).await.is_ok();
    atoll_test_wait::poll_until("the repository's server", is_served).await;
    let address = format!("{host}:{port}");
    let server = super::start_server(std::slice::from_ref(&address));
    let id = server.create_idle_sandbox(allow_policy(&[&address])).await;
    let script = format!("cd /tmp && git clone -q http://{address}/site.git cloned && cat cloned/file");
    assert_eq!(server.run_shell(&id, &script).await.expect_success(), "hello\n");
    let refused = server.run_shell(&id, &format!("git ls-remote http://{host}:1/site.git")).await;
    assert!(refused.stderr.contains("403"), "{refused:?}");
    server.stop_and_check().await;
}

struct KillOnDrop(Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
