//! The web page in a real browser: the end-to-end tests of `web/e2e` against a real server with real sandboxes.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, create_temp_dir, report_skipped};
use atoll_tests::node::find_node;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_work_with_agents_in_a_browser() {
    let Some(mut tests) = browser_tests() else { return };
    let (mut server, repository, scratch) =
        (LocalServer::start(), SampleRepository::create(), create_temp_dir("atoll-page-"));
    let (restart, request) = (scratch.path().join("restart"), scratch.path().join("request"));
    std::fs::write(&restart, RESTART_PROGRAM).unwrap();
    std::fs::set_permissions(&restart, PermissionsExt::from_mode(0o755)).unwrap();
    tests.envs([("HOME", scratch.path()), ("TMPDIR", scratch.path()), ("E2E_REPO", repository.path())]);
    tests.envs([("E2E_URL", server.process.url.as_str()), ("E2E_TOKEN", &server.process.admin_token())]);
    tests.env("E2E_RESTART", &restart).env("E2E_PREVIEWS", "1").env("NO_COLOR", "1");
    let exit = block_in_place(|| {
        let mut child = tests.spawn().unwrap();
        loop {
            if let Some(exit) = child.try_wait().unwrap() {
                return exit;
            }
            if request.exists() {
                server.process.restart();
                std::fs::remove_file(&request).unwrap();
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    });
    assert!(exit.success(), "{exit}: see above");
    for sandbox in server.admin.list_all("/sandboxes", 200).await {
        server.track_sandbox(sandbox["id"].as_str().unwrap());
    }
    server.stop_and_check().await;
}
