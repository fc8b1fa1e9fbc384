//! Submodules, large files and sparse checkouts.

use atoll_tests::git_server::{GitServer, git};
use atoll_tests::local::host_state::files_with;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, event_data, report_skipped};
use atoll_tests::process::program_command;
use atoll_tests::ssh_server::SshServer;
use base64::Engine;
use serde_json::{Value, json};
use std::path::Path;

const TOKEN: &str = "g1t-token-that-stays-outside";

fn start(git_server: &GitServer) -> LocalServer {
    git_server.require_login("ann", TOKEN);
    let config = format!(
        "git:\n  mirror_age: 10m\n  credentials:\n    - {{host: \"{}\", user: ann, token_env: TEST_GIT_TOKEN}}\n",
        git_server.address
    );
    LocalServer::start_with_env(&config, &[("TEST_GIT_TOKEN".to_owned(), TOKEN.to_owned())])
}

fn notices(events: &[Value]) -> String {
    event_data(events, "sandbox.notice").iter().map(|data| format!("{}\n", data["text"])).collect()
}

async fn count_layers(server: &LocalServer) -> usize {
    let listed = server.admin.get("/caches").await.expect_status(200);
    let items = listed["items"].as_array().unwrap().iter();
    items.filter(|cache| cache["name"].as_str().unwrap().starts_with("co")).count()
}

async fn refuse(server: &LocalServer, repo: Value, code: &str, cause: &str) -> String {
    let body = LocalServer::sandbox_request(json!({ "repo": repo }));
    let problem = server.admin.post("/sandboxes", body).await.expect_problem(422, code);
    assert_eq!(problem["cause"], cause, "{problem}");
    problem["detail"].as_str().unwrap().to_owned()
}

async fn assert_no_sandboxes(server: &LocalServer) {
    let listed = server.admin.get("/sandboxes").await.expect_status(200);
    assert_eq!(listed["items"], json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_has_its_submodules_and_the_second_one_needs_no_network() {
    let git_server = GitServer::start();
    for name in ["a", "lib", "deep"] {
        git_server.create_repository(name);
    }
    let deep = git_server.branch("deep", "main").unwrap();
    let lib = git_server.commit_submodule("lib", "deep", "../deep.git", &deep);
    let main = git_server.commit_submodule("a", "lib", "../lib.git", &lib);
    let server = start(&git_server);
    let repo = json!({ "repo": { "url": git_server.url("a"), "submodules": true } });
    let first = server.create_idle_sandbox(repo.clone()).await;
    let state = "cat lib/README.md lib/deep/README.md; git status --porcelain; git rev-parse HEAD; \
                 git -C lib rev-parse HEAD; git -C lib/deep rev-parse HEAD; git submodule status | cut -c1";
    let expected = format!("first\nfirst\n{main}\n{lib}\n{deep}\n \n");
    assert_eq!(server.run_shell(&first, state).await.expect_success(), expected);
    let events = server.admin.all_events(&first).await;
    let cloned = event_data(&events, "git.cloned")[0];
    assert_eq!((&cloned["filled_submodules"], cloned.get("submodules")), (&json!(["lib", "lib/deep"]), None));
    assert!(notices(&events).contains("changes in submodules (lib, lib/deep)"), "{}", notices(&events));
    let visible = "cat .git/config .git/modules/lib/config .git/modules/lib/modules/deep/config /proc/*/environ; true";
    assert!(!server.run_shell(&first, visible).await.stdout.contains(TOKEN));
    server.run_shell(&first, "echo changed > lib/README.md").await.expect_success();

    let requests = git_server.requests().len();
    let second = server.create_idle_sandbox(repo.clone()).await;
    assert_eq!(git_server.requests().len(), requests, "the mirrors are fresh");
    assert_eq!(count_layers(&server).await, 1);
    assert_eq!(server.run_shell(&second, state).await.expect_success(), expected);
    let rename = "python3 -c 'import os; os.rename(\"lib\", \"renamed\"); os.rename(\"renamed\", \"lib\")'";
    server.run_shell(&second, rename).await.expect_success();

    // Without the setting, the directory is empty, and the layer is another one.
    let empty = server.create_idle_sandbox(json!({ "repo": { "url": git_server.url("a") } })).await;
    assert_eq!(server.run_shell(&empty, "ls lib; git status --porcelain").await.expect_success(), "");
    assert_eq!(count_layers(&server).await, 2);

    // A published commit of the submodule is part of the results; other work is not, and the run says so.
    let newer = git_server.commit("lib", "main", "newer", "newer\n");
    git_server.commit_submodule("a", "lib", "../lib.git", &newer);
    let run = |prompt: &str| json!({ "prompt": prompt, "repo": { "url": git_server.url("a"), "base": main, "submodules": true } });
    let id = server.create_sandbox(run("run git -C lib checkout -q HEAD~1 && git -C lib clean -qffdx")).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let id = server.create_sandbox(run("edit lib/new.txt x\nedit saved.txt x")).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["reason"]["code"]), (&json!("failed"), &json!("results_incomplete")), "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("submodule lib"), "{row}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn submodules_of_a_directory_come_from_its_own_repositories() {
    let (server, repository, git_server) = (LocalServer::start(), SampleRepository::create(), GitServer::start());
    git_server.create_repository("lib");
    let local = "protocol.file.allow=always";
    repository.run_git(&["-c", local, "submodule", "add", "-q", &git_server.file_url("lib"), "lib"]);
    repository.run_git(&["commit", "-qm", "submodule"]);
    let repo = json!({ "path": repository.path_str(), "submodules": true });
    let id = server.create_idle_sandbox(json!({ "repo": repo, "setup": { "enabled": false } })).await;
    assert_eq!(server.run_shell(&id, "cat lib/README.md; git status --porcelain").await.expect_success(), "first\n");
    server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
    std::fs::remove_dir_all(repository.path().join(".git/modules/lib")).unwrap();
    let detail = refuse(&server, repo, "not_a_repository", "submodule_missing").await;
    assert!(detail.contains("submodule lib") && detail.contains("git submodule update --init"), "{detail}");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_submodule_that_cannot_be_fetched_leaves_no_sandbox() {
    let (git_server, elsewhere) = (GitServer::start(), GitServer::start());
    for name in ["a", "lib"] {
        git_server.create_repository(name);
    }
    elsewhere.create_repository("private");
    let lib = git_server.branch("lib", "main").unwrap();
    let private = elsewhere.branch("private", "main").unwrap();
    let server = LocalServer::start_with_config("git: {mirror_age: 0s}\n");
    let trap = server.data_dir().join("trap");
    for (url, commit, cause) in [
        (elsewhere.file_url("private"), &private, "submodule_url_refused"),
        (elsewhere.url("private"), &private, "submodule_url_refused"),
        (format!("ext::sh -c touch% {}", trap.display()), &lib, "submodule_url_refused"),
        (format!("--upload-pack=touch {}", trap.display()), &lib, "submodule_url_refused"),
        ("ssh://-oProxyCommand=touch/x".to_owned(), &lib, "submodule_url_refused"),
        ("https://user:pass@example.org/x".to_owned(), &lib, "submodule_url_refused"),
        ("../missing.git".to_owned(), &lib, "remote_not_found"),
        ("../lib.git".to_owned(), &"1".repeat(40), "base_missing"),
    ] {
        git_server.commit_submodule("a", "lib", &url, commit);
        let repo = json!({ "url": git_server.url("a"), "submodules": true });
        let detail = refuse(&server, repo, "clone_failed", cause).await;
        assert!(
            detail.starts_with("submodule lib: ") && detail.contains("; ") && !detail.contains("pass@"),
            "{detail}"
        );
    }
    assert!(!trap.exists());
    assert_no_sandboxes(&server).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_files_are_complete_and_changed_ones_are_reported() {
    let git_server = GitServer::start();
    git_server.create_repository("a");
    git_server.commit("a", "main", ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    let content = vec![b'x'; 300_000];
    let pointer = git_server.add_large_file(&content);
    git_server.commit("a", "main", "data/large.bin", &pointer);
    let server = start(&git_server);
    let repo = json!({ "repo": { "url": git_server.url("a"), "lfs": true } });
    let state = "wc -c < data/large.bin; git status --porcelain; git cat-file blob HEAD:data/large.bin | head -1";
    let expected = "300000\nversion https://git-lfs.github.com/spec/v1\n";
    let first = server.create_idle_sandbox(repo.clone()).await;
    assert_eq!(server.run_shell(&first, state).await.expect_success(), expected);
    assert!(notices(&server.admin.all_events(&first).await).contains("large files (LFS)"));
    let requests = git_server.requests();
    assert!(requests.iter().any(|request| request.contains("/a.git/info/lfs/objects/batch 200")), "{requests:?}");
    let second = server.create_idle_sandbox(repo.clone()).await;
    assert_eq!(git_server.requests(), requests, "the files are on this machine");
    assert_eq!(server.run_shell(&second, state).await.expect_success(), expected);
    // The agent's git writes pointers and contents as git-lfs does.
    let work = "touch data/large.bin; git status --porcelain; echo new > data/new.bin; git add -A; \
                git diff --cached --name-only; git cat-file blob :data/new.bin | tail -1; git reset -q --hard; \
                rm data/large.bin; git checkout -q -- .; wc -c < data/large.bin";
    assert_eq!(server.run_shell(&second, work).await.expect_success(), "data/new.bin\nsize 4\n300000\n");

    let run = |prompt: &str| json!({ "prompt": prompt, "repo": repo["repo"] });
    let id = server.create_sandbox(run("edit other.txt x")).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let created = event_data(&server.admin.all_events(&id).await, "git.branch_created")[0].clone();
    assert_eq!(created["files"].as_array().unwrap().len(), 1, "{created}");
    let id = server.create_sandbox(run("edit data/large.bin changed\nedit saved.txt x")).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["reason"]["code"], "results_incomplete", "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("large file data/large.bin"), "{row}");

    // Without the setting, the file is its pointer.
    let plain = server.create_idle_sandbox(json!({ "repo": { "url": git_server.url("a") } })).await;
    assert_eq!(server.run_shell(&plain, "cat data/large.bin").await.expect_success(), pointer);

    git_server.remove_large_files();
    git_server.create_repository("b");
    git_server.commit("b", "main", "large.bin", &pointer);
    let detail =
        refuse(&server, json!({ "url": git_server.url("b"), "lfs": true }), "clone_failed", "large_file_missing").await;
    assert!(detail.contains("git lfs push"), "{detail}");
    assert!(!server.process.stderr_text().contains(TOKEN));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_of_an_ssh_repository_names_the_storage_of_its_large_files() {
    let git_server = GitServer::start();
    let Some(ssh) = SshServer::start_below(git_server.root()) else {
        return report_skipped("large files over ssh", "there is no sshd; scripts/sshd unpacks it");
    };
    git_server.create_repository("a");
    git_server.commit("a", "main", ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    let pointer = git_server.add_large_file(&vec![b'x'; 300_000]);
    git_server.commit("a", "main", "large.bin", &pointer);
    git_server.require_login("lfs", TOKEN);
    let config = format!(
        "git: {{credentials: [{{host: \"127.0.0.1\", ssh_key: {}, known_hosts: {}}}]}}\n",
        ssh.key().display(),
        ssh.known_hosts().display()
    );
    let server = LocalServer::start_with_config(&config);
    let repo = json!({ "url": ssh.url(Path::new("/a.git")), "lfs": true });
    let detail = refuse(&server, repo.clone(), "clone_failed", "large_files_unsupported").await;
    assert!(detail.contains("over ssh") && detail.contains("use the repository's https URL"), "{detail}");
    assert_no_sandboxes(&server).await;

    let login = base64::engine::general_purpose::STANDARD.encode(format!("lfs:{TOKEN}"));
    let href = format!("{}/info/lfs", git_server.url("a"));
    let access = json!({ "href": href, "header": { "Authorization": format!("Basic {login}") }, "expires_in": 60 });
    std::fs::write(git_server.root().join("large-file-access"), access.to_string()).unwrap();
    let id = server.create_idle_sandbox(json!({ "repo": repo })).await;
    let state = "wc -c < large.bin; git status --porcelain";
    assert_eq!(server.run_shell(&id, state).await.expect_success(), "300000\n");
    assert_eq!(files_with(&server.data_dir(), &login), [] as [&str; 0]);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sparse_checkout_has_only_its_directories() {
    let git_server = GitServer::start();
    git_server.create_repository("a");
    git_server.commit("a", "main", "docs/guide/page.md", "page\n");
    git_server.commit("a", "main", "docs/other/page.md", "page\n");
    let server = start(&git_server);
    let repo = json!({ "url": git_server.url("a"), "sparse": ["docs/guide/"] });
    let state =
        "git ls-files -t | grep -c '^S'; find . -path ./.git -prune -o -type f -print | sort; git status --porcelain";
    let expected = "2\n./README.md\n./docs/guide/page.md\n";
    for _ in 0..2 {
        let id = server.create_idle_sandbox(json!({ "repo": repo })).await;
        assert_eq!(server.run_shell(&id, state).await.expect_success(), expected);
    }
    assert_eq!(count_layers(&server).await, 1);
    // A layer at an earlier commit keeps its directories.
    git_server.commit("a", "main", "docs/guide/second.md", "x\n");
    let newer = git_server.commit("a", "main", "docs/other/second.md", "x\n");
    let id = server
        .create_idle_sandbox(json!({ "repo": { "url": git_server.url("a"), "sparse": ["docs/guide"], "base": newer } }))
        .await;
    let seen = server.run_shell(&id, state).await.expect_success();
    assert_eq!(seen, "3\n./README.md\n./docs/guide/page.md\n./docs/guide/second.md\n");
    let id = server
        .create_sandbox(json!({ "prompt": "edit docs/guide/new.md x\nedit docs/third/new.md x", "repo": repo }))
        .await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let created = event_data(&server.admin.all_events(&id).await, "git.branch_created")[0].clone();
    let changed =
        created["files"].as_array().unwrap().iter().map(|file| (file["path"].as_str(), file["change"].as_str()));
    let expected = ["docs/guide/new.md", "docs/third/new.md"].map(|path| (Some(path), Some("added")));
    assert_eq!(changed.collect::<Vec<_>>(), expected, "nothing outside is deleted");

    let detail = refuse(
        &server,
        json!({ "url": git_server.url("a"), "sparse": ["missing"] }),
        "not_a_repository",
        "sparse_directory_missing",
    )
    .await;
    assert!(detail.contains("missing"), "{detail}");
    for dirs in [json!(["../x"]), json!(["/etc"]), json!([".git"]), json!(["a*"]), json!([""])] {
        let body = LocalServer::sandbox_request(json!({ "repo": { "url": git_server.url("a"), "sparse": dirs } }));
        server.admin.post("/sandboxes", body).await.expect_problem(422, "invalid");
    }
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_diff_shows_every_kind_of_change_in_pages() {
    let git_server = GitServer::start();
    for name in ["a", "lib"] {
        git_server.create_repository(name);
    }
    let lib = git_server.branch("lib", "main").unwrap();
    git_server.commit("a", "main", "tool", "#!/bin/sh\necho tool\n");
    git_server.commit("a", "main", "picture", "\0binary\0");
    git_server.commit_submodule("a", "lib", "../lib.git", &lib);
    let server = start(&git_server);
    let id = server.create_idle_sandbox(json!({ "repo": { "url": git_server.url("a"), "submodules": true } })).await;
    let change = "git mv src/code.rs src/moved.rs; chmod +x tool; printf '\\0other\\0' > picture; \
                  git -C lib checkout -q HEAD~1; rm README.md; echo new > ' spaced'";
    server.run_shell(&id, change).await.expect_success();
    let path = format!("/sandboxes/{id}/diff");
    let (mut files, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = server.admin.get(&format!("{path}?limit=2{cursor}")).await.expect_status(200);
        let found = page["files"].as_array().unwrap();
        assert!(found.len() <= 2, "{page}");
        files.extend(found.iter().cloned());
        let Some(next) = page["next_cursor"].as_str() else { break };
        cursor = format!("&cursor={next}");
    }
    let find =
        |name: &str| files.iter().find(|file| file["path"] == name).unwrap_or_else(|| panic!("{name} in {files:?}"));
    assert_eq!(files.len(), 6, "{files:?}");
    assert_eq!(
        (&find("src/moved.rs")["change"], &find("src/moved.rs")["old_path"]),
        (&json!("renamed"), &json!("src/code.rs"))
    );
    assert_eq!(find("tool")["modes"], json!(["100644", "100755"]));
    assert_eq!((&find("picture")["binary"], &find("lib")["submodule"]), (&json!(true), &json!(true)));
    assert_eq!((&find("README.md")["change"], &find(" spaced")["change"]), (&json!("deleted"), &json!("added")));

    let diff = |more: &[&str]| {
        let mut command = program_command("atoll");
        command.args(["sandbox", "diff", &id]).args(more).env("ATOLL_DATA_DIR", server.data_dir());
        let output = command.output().unwrap();
        assert!(output.status.success(), "{more:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let whole = diff(&[]);
    let earlier = git(&git_server.path("lib"), ["rev-parse", "main~1"]);
    for part in [
        "rename from src/code.rs",
        "new mode 100755",
        "Binary files",
        &format!("-Subproject commit {lib}"),
        &format!("+Subproject commit {earlier}"),
        "deleted file mode",
    ] {
        assert!(whole.contains(part), "{part} in {whole}");
    }
    let one = diff(&["tool"]);
    assert!(one.contains("new mode 100755") && !one.contains("picture"), "{one}");
    let stat = diff(&["--stat"]);
    for name in ["src/moved.rs", "tool", "picture", "lib", "README.md"] {
        assert!(stat.contains(name), "{name} in {stat}");
    }
    server.stop_and_check().await;
}
