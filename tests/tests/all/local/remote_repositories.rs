//! Repositories behind a URL, and checkout layers: the second sandbox of a repository starts from the first one's checkout.

use atoll_tests::git_server::{Answer, GitServer};
use atoll_tests::local::host_state::files_with;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};
use std::path::Path;

const TOKEN: &str = "g1t-token-that-stays-outside";

/// Renames a directory of the checkout, as programs do: without a copy.
const RENAME_DIRECTORY: &str =
    "python3 -c 'import os; os.rename(\"src\", \"renamed\"); os.rename(\"renamed\", \"src\")'";

/// Changes a file's content but neither its size nor its time. Git notices only if it reads the file.
const CHANGE_IN_SECRET: &str =
    "touch -r src/code.rs /tmp/time && printf 'fn niam() {}\\n' > src/code.rs && touch -r /tmp/time src/code.rs";

fn config(server: &GitServer) -> String {
    format!(
        "git:\n  mirror_age: 10m\n  credentials:\n    - {{host: \"{}\", user: ann, token_env: TEST_GIT_TOKEN}}\n",
        server.address
    )
}

fn start(git_server: &GitServer) -> LocalServer {
    LocalServer::start_with_env(&config(git_server), &[("TEST_GIT_TOKEN".to_owned(), TOKEN.to_owned())])
}

async fn checkout_layers(server: &LocalServer) -> Vec<String> {
    let listed = server.admin.get("/caches").await.expect_status(200);
    let names = listed["items"].as_array().unwrap().iter().map(|cache| cache["name"].as_str().unwrap().to_owned());
    names.filter(|name| name.starts_with("co")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_second_sandbox_of_a_url_needs_no_network_and_no_import() {
    let git_server = GitServer::start();
    git_server.create_repository("a");
    git_server.require_login("ann", TOKEN);
    let (server, url) = (start(&git_server), git_server.url("a"));
    let repo = json!({ "repo": { "url": url } });
    let first = server.create_idle_sandbox(repo.clone()).await;
    let main = git_server.branch("a", "main").unwrap();
    assert_eq!(
        server.run_shell(&first, "git rev-parse HEAD; cat README.md").await.expect_success(),
        format!("{main}\nfirst\n")
    );
    let cloned = event_data(&server.admin.all_events(&first).await, "git.cloned")[0].clone();
    assert_eq!((cloned["repo"].as_str(), cloned["commit"].as_str()), (Some(&*url), Some(&*main)), "{cloned}");
    let requests = git_server.requests().len();
    let layers = checkout_layers(&server).await;
    assert_eq!(layers.len(), 1, "the first checkout is a layer");
    server.run_shell(&first, "echo changed > README.md; git config user.name x; sleep 1").await.expect_success();

    let second = server.create_idle_sandbox(repo.clone()).await;
    assert_eq!(git_server.requests().len(), requests, "the mirror is fresh");
    assert_eq!(checkout_layers(&server).await, layers);
    let state = "cat README.md; git status --porcelain; git log --oneline | wc -l; git branch --format='%(refname:short)'; git config user.name";
    let seen = server.run_shell(&second, state).await.expect_success();
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!((lines[0], lines[1].trim()), ("first", "2"), "{seen}");
    assert!(lines.len() == 4 && lines[2].starts_with("atoll/") && lines[3] != "x", "{seen}");
    server.run_shell(&second, RENAME_DIRECTORY).await.expect_success();
    let status = server.run_shell(&second, &format!("{CHANGE_IN_SECRET} && git status --porcelain")).await;
    assert_eq!(status.expect_success(), "", "git must not read unchanged files again");

    let visible =
        "env; cat /proc/*/environ /proc/*/cmdline ~/.git-credentials .git/config 2>/dev/null | tr '\\0' '\\n'";
    let visible = server.run_shell(&second, visible).await.stdout;
    assert!(!visible.contains(TOKEN), "the token is in the sandbox");
    assert_eq!(files_with(&server.data_dir(), TOKEN), [] as [&str; 0]);
    assert!(!server.process.stderr_text().contains(TOKEN));
    for id in [&first, &second] {
        assert!(!json!(server.admin.all_events(id).await).to_string().contains(TOKEN));
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_continues_its_branch_of_a_url() {
    let git_server = GitServer::start();
    git_server.create_repository("a");
    let server = LocalServer::start();
    let body = json!({ "repo": { "url": git_server.url("a"), "branch": "work" }, "prompt": "run echo one > new-file" });
    let id = server.create_sandbox(body).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let created = event_data(&server.admin.all_events(&id).await, "git.branch_created")[0].clone();
    assert_eq!((created["branch"].as_str(), created["repo"].as_str()), (Some("work"), Some(&*git_server.url("a"))));
    assert_eq!(git_server.branch("a", "work"), None, "nothing is pushed here");

    let next = json!({ "session_id": row["session_id"], "prompt": "run cat new-file; echo two > second-file" });
    let id = server.create_sandbox(next).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    let continued = event_data(&events, "git.branch_created")[0];
    assert_eq!((&continued["branch"], &continued["previous"]), (&created["branch"], &created["commit"]), "{continued}");
    let layers = checkout_layers(&server).await;
    let base: String = git_server.branch("a", "main").unwrap().chars().take(18).collect();
    assert!(layers.len() == 1 && layers[0].ends_with(&base), "an agent's commit is in no layer: {layers:?}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_clone_names_its_reason_and_leaves_no_sandbox() {
    let git_server = GitServer::start();
    git_server.create_repository("a");
    git_server.require_login("ann", TOKEN);
    let server = LocalServer::start();
    let refused = async |repo: Value, cause: &str| {
        let body = LocalServer::sandbox_request(json!({ "repo": repo }));
        let problem = server.admin.post("/sandboxes", body).await.expect_problem(422, "clone_failed");
        assert_eq!(problem["cause"], cause, "{problem}");
        assert!(problem["detail"].as_str().unwrap().contains("; "), "no remedy: {problem}");
    };
    refused(json!({ "url": git_server.url("a") }), "remote_auth").await;
    refused(json!({ "url": "file:///nowhere/at/all" }), "remote_not_found").await;
    refused(json!({ "url": git_server.file_url("a"), "base": "missing" }), "base_missing").await;
    git_server.answer_with(Some(Answer::status(403)));
    refused(json!({ "url": git_server.url("a") }), "remote_forbidden").await;
    for url in ["git://example.org/x", "https://u:p@example.org/x", "ext::sh", "-x"] {
        let body = LocalServer::sandbox_request(json!({ "repo": { "url": url } }));
        server.admin.post("/sandboxes", body).await.expect_problem(422, "invalid");
    }
    let listed = server.admin.get("/sandboxes").await.expect_status(200);
    assert_eq!(listed["items"], json!([]));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_later_commit_of_a_directory_changes_only_its_files() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let repo = json!({ "repo": { "path": repository.path_str() }, "setup": { "enabled": false } });
    let first = server.create_idle_sandbox(repo.clone()).await;
    let layers = checkout_layers(&server).await;
    assert_eq!(layers.len(), 1);
    repository.write("new-file", "new\n");
    repository.write("README.md", "changed\n");
    std::fs::remove_file(Path::new(repository.path_str()).join("old.txt")).unwrap();
    repository.run_git(&["add", "-A"]);
    repository.run_git(&["commit", "-q", "-m", "Change"]);
    let second = server.create_idle_sandbox(repo).await;
    assert_eq!(checkout_layers(&server).await, layers, "one layer per repository");
    let script =
        "git rev-parse HEAD; git status --porcelain; cat new-file README.md; ls old.txt; git fsck --strict 2>&1";
    let seen = server.run_shell(&second, script).await;
    assert_eq!(seen.stdout, format!("{}\nnew\nchanged\n", repository.head_commit()), "{seen:?}");
    let workspace = server.workspace_dir(&second);
    assert!(!workspace.join("calc.py").exists(), "the layer has the unchanged files");
    assert!(workspace.join("README.md").exists());
    assert_eq!(server.run_shell(&first, "cat README.md").await.expect_success(), "# calc\n\nAdds numbers.\n");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_depth_limits_the_history_of_the_sandbox() {
    let git_server = GitServer::start();
    git_server.create_repository("a");
    let server = LocalServer::start();
    let id = server.create_idle_sandbox(json!({ "repo": { "url": git_server.file_url("a"), "depth": 1 } })).await;
    assert_eq!(server.run_shell(&id, "git rev-list --count HEAD; cat README.md").await.expect_success(), "1\nfirst\n");
    assert_eq!(checkout_layers(&server).await, [] as [&str; 0]);
    let body = LocalServer::sandbox_request(json!({ "repo": { "path": "/", "depth": 1 } }));
    server.admin.post("/sandboxes", body).await.expect_problem(422, "invalid");
    server.stop_and_check().await;
}
