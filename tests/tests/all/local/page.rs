//! The web page in a real browser: the end-to-end tests of `web/e2e` against a real server with real sandboxes.

use crate::local::real_agents::AgentFixture;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, create_temp_dir, report_skipped};
use atoll_tests::node::find_node;
use std::fmt::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tokio::task::block_in_place;

/// Requests a restart of the server from this test, and waits until the server listens again.
const RESTART_PROGRAM: &str = "#!/bin/sh\nrequest=${0%/*}/request\n: >\"$request\"\n\
                               while [ -e \"$request\" ]; do sleep 0.05; done\n";

/// The command that runs the tests, unless a program is missing.
fn browser_tests() -> Option<Command> {
    let web = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("web");
    let (runner, chromium) = (web.join("node_modules/vitest/vitest.mjs"), PathBuf::from("/usr/bin/chromium"));
    for (file, remedy) in [(&runner, "run `make page`"), (&chromium, "install the package chromium")] {
        if !file.exists() {
            assert!(std::env::var_os("CI").is_none(), "{} is missing: {remedy}", file.display());
            report_skipped("the web page in a browser", remedy);
            return None;
        }
    }
    let mut command = Command::new(find_node());
    command.arg(runner).args(["run", "--config", "e2e/vitest.config.ts"]).current_dir(web).env("CHROMIUM", chromium);
    Some(command)
}

/// Pieces of the text that never ends: five come each second.
const PIECES: usize = 1000;

/// What the model of `real-agent.e2e.ts` says.
fn model_scripts() -> String {
    let mut scripts = "scripts:\n  - name: work\n    steps:\n      - run: echo approved > approved.txt\n      \
                       - expect: {text: Mind the gap., new: true}\n      - say: I minded it.\n  \
                       - name: stream\n    steps:\n      - slow:\n          pause: 0.2\n          pieces:\n            \
                       - \"**A long story** <img src=x onerror=alert(1)>\"\n"
        .to_owned();
    for number in 0..PIECES {
        writeln!(scripts, "            - \" piece {number}\"").unwrap();
    }
    scripts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_work_with_agents_in_a_browser() {
    let Some(mut tests) = browser_tests() else { return };
    let fixture = AgentFixture::start("claude", "the web page", &model_scripts()).await;
    let (server, _model) = match fixture {
        Some(fixture) => {
            tests.env("E2E_CLAUDE", "1");
            (fixture.server, Some(fixture.model))
        }
        None => (LocalServer::start(), None),
    };
    // One test restarts its server, beside the others.
    let (mut restarted, repository, scratch) =
        (LocalServer::start(), SampleRepository::create(), create_temp_dir("atoll-page-"));
    let (restart, request) = (scratch.path().join("restart"), scratch.path().join("request"));
    std::fs::write(&restart, RESTART_PROGRAM).unwrap();
    std::fs::set_permissions(&restart, PermissionsExt::from_mode(0o755)).unwrap();
    tests.envs([("HOME", scratch.path()), ("TMPDIR", scratch.path()), ("E2E_REPO", repository.path())]);
    tests.envs([("E2E_URL", server.process.url.as_str()), ("E2E_TOKEN", &server.process.admin_token())]);
    tests.envs([("E2E_RESTART_URL", &restarted.process.url), ("E2E_RESTART_TOKEN", &restarted.process.admin_token())]);
    tests.env("E2E_RESTART", &restart).env("E2E_PREVIEWS", "1").env("NO_COLOR", "1");
    let exit = block_in_place(|| {
        let mut child = tests.spawn().unwrap();
        loop {
            if let Some(exit) = child.try_wait().unwrap() {
                return exit;
            }
            if request.exists() {
                restarted.process.restart();
                std::fs::remove_file(&request).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    assert!(exit.success(), "{exit}: see above");
    for server in [server, restarted] {
        for sandbox in server.admin.list_all("/sandboxes", 200).await {
            server.track_sandbox(sandbox["id"].as_str().unwrap());
        }
        server.stop_and_check().await;
    }
}
