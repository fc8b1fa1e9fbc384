//! Protected paths: nothing in the sandbox can change them, and results that change them are rejected.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};

/// Creates a repository with committed files to protect.
fn create_repository() -> SampleRepository {
    let repository = SampleRepository::create();
    let root = std::path::Path::new(repository.path_str()).to_path_buf();
    std::fs::create_dir_all(root.join("infra/prod/deep")).unwrap();
    std::fs::create_dir_all(root.join(".github/workflows")).unwrap();
    for (file, text) in [
        ("Cargo.lock", "locked"),
        ("infra/prod/deep/main.tf", "production"),
        ("infra/test.tf", "test"),
        (".github/workflows/ci.yml", "on: push"),
    ] {
        std::fs::write(root.join(file), format!("{text}\n")).unwrap();
    }
    repository.run_git(&["add", "-A"]);
    repository.run_git(&["commit", "-qm", "files to protect"]);
    repository
}

fn protected_paths() -> Value {
    json!([".github/", "Cargo.lock", "infra/prod"])
}

/// Attempts of an agent. Each line succeeds only if it changes a protected path.
const ATTEMPTS: [&str; 16] = [
    "echo x >> Cargo.lock",
    "rm -f Cargo.lock",
    "mv Cargo.lock elsewhere",
    "ln Cargo.lock alias && echo x >> alias",
    "chmod 777 Cargo.lock",
    "echo x > other && mv -f other Cargo.lock",
    "touch .github/workflows/new.yml",
    "rm -f .github/workflows/ci.yml",
    "rm -rf .github && ! test -e .github",
    "mv .github hidden",
    "mv infra moved",
    "mv infra/prod infra/old",
    "echo x >> infra/prod/deep/main.tf",
    "mkdir infra/prod/more",
    "cp -a infra copy && rm -rf infra && ! test -e infra",
    "umount Cargo.lock || mount -o remount,rw Cargo.lock",
];

async fn assert_unchanged(server: &LocalServer, id: &str) {
    let inspect = "cat Cargo.lock infra/prod/deep/main.tf .github/workflows/ci.yml; ls .github/workflows infra/prod";
    let output = server.run_shell(id, inspect).await.expect_success();
    assert_eq!(output, "locked\nproduction\non: push\n.github/workflows:\nci.yml\n\ninfra/prod:\ndeep\n");
}

async fn assert_attempts_fail(server: &LocalServer, id: &str) {
    for attempt in ATTEMPTS {
        let ran = server.run_shell(id, attempt).await;
        assert_ne!(ran.exit_code(), Some(0), "the attempt succeeded: {attempt}: {ran:?}");
        assert_unchanged(server, id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_command_in_the_sandbox_changes_a_protected_path() {
    let (server, repository) = (LocalServer::start(), create_repository());
    let id = server
        .create_idle_sandbox(json!({ "repo": { "path": repository.path_str() }, "protected": protected_paths() }))
        .await;
    assert_eq!(server.get_sandbox(&id).await["settings"]["protected"], json!([".github", "Cargo.lock", "infra/prod"]));
    assert_attempts_fail(&server, &id).await;
    let free = "git checkout -q -- infra && echo y > infra/more.tf && echo y >> infra/test.tf && rm infra/more.tf && \
                echo y > Cargo.toml && mv Cargo.toml infra/ && rm infra/Cargo.toml";
    server.run_shell(&id, free).await.expect_success();

    // git cannot write there either.
    let checkout = "git rm -q --cached Cargo.lock && git commit -qm gone && git checkout -q HEAD~ -- Cargo.lock; \
                    git checkout -q --orphan empty && git rm -rfq . ; cat Cargo.lock";
    assert!(server.run_shell(&id, checkout).await.stdout.ends_with("locked\n"));
    assert_unchanged(&server, &id).await;
    let upload = server.admin.request(reqwest::Method::PUT, &format!("/sandboxes/{id}/files/Cargo.lock"));
    assert!(!upload.body("x").send().await.unwrap().status().is_success());
    assert_unchanged(&server, &id).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protected_paths_apply_to_projects_and_forks() {
    let (server, repository) =
        (LocalServer::start_with_config("sandbox: {protected: [infra/prod]}\n"), create_repository());
    let defaults = json!({ "protected": [".github/"] });
    let project = server.admin.post("/projects", json!({ "name": "careful", "defaults": defaults }));
    let project = project.await.expect_status(201)["id"].clone();
    let settings = json!({ "project_id": project, "repo": { "path": repository.path_str() }, "protected": ["Cargo.lock", "later"] });
    let id = server.create_idle_sandbox(settings).await;
    let events = server.admin.all_events(&id).await;
    let notices = event_data(&events, "sandbox.notice");
    let names_missing_path =
        |notice: &&&Value| notice["text"].as_str().unwrap().starts_with("missing, so not read-only inside: later;");
    assert_eq!(notices.iter().filter(names_missing_path).count(), 1, "{notices:?}");
    server.run_shell(&id, "echo mine > infra/mine.tf").await.expect_success();
    let created = server.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.expect_status(201);
    let fork = created["id"].as_str().unwrap().to_owned();
    server.track_sandbox(&fork);
    server.wait_until(&fork, |row| row["state"] == "running" && row["activity"] != "starting").await;
    for sandbox in [&id, &fork] {
        assert_eq!(
            server.run_shell(sandbox, "cat infra/mine.tf; echo more >> infra/mine.tf").await.expect_success(),
            "mine\n"
        );
        assert_attempts_fail(&server, sandbox).await;
    }

    // The launcher does not follow a symbolic link at a protected path: it refuses the fork, and the parent continues.
    server.run_shell(&id, "ln -s infra later").await.expect_success();
    let response = server.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await;
    assert!(response.body["detail"].as_str().unwrap().contains("symbolic link"), "{}", response.body);
    server.run_shell(&id, "rm later && echo still >> infra/mine.tf").await.expect_success();
    assert_unchanged(&server, &id).await;
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_change_a_protected_path_are_rejected() {
    let (server, repository) = (LocalServer::start(), create_repository());
    let request = |prompt: &str| json!({ "prompt": prompt, "repo": { "path": repository.path_str() }, "protected": protected_paths() });
    let id =
        server.create_sandbox(request("edit infra/test.tf changed\nrun rm -f Cargo.lock\nedit .github/x no")).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["state"], "completed", "{row}");
    let events = server.admin.all_events(&id).await;
    let branch = event_data(&events, "git.branch_created")[0];
    let files: Vec<&str> =
        branch["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(files, ["infra/test.tf"], "{branch}");

    // The index alone can change a protected file in a commit. The export restores contents, but not modes that git ignores.
    let plumbing = "run git config core.fileMode false && git update-index --chmod=+x Cargo.lock && git commit -qm evil\n\
                    edit harmless.txt x";
    let before = repository.run_git(&["for-each-ref"]);
    let id = server.create_sandbox(request(plumbing)).await;
    let row = server.wait_until(&id, |row| row["state"] == "failed").await;
    assert_eq!(row["reason"]["code"], "results_protected", "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("Cargo.lock"), "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "guardian.protected_path")[0]["paths"], json!(["Cargo.lock"]), "{events:#?}");
    assert_eq!(repository.run_git(&["for-each-ref"]), before, "no branch may be created");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_that_cannot_be_protected_is_rejected() {
    let (server, repository) = (LocalServer::start(), create_repository());
    for path in ["/etc/passwd", "../x", "src/*.rs", ".git/hooks", ""] {
        let body = LocalServer::sandbox_request(json!({ "protected": [path] }));
        server.admin.post("/sandboxes", body).await.expect_problem(422, "invalid");
        let body = json!({ "name": "x", "defaults": { "protected": [path] } });
        server.admin.post("/projects", body).await.expect_problem(422, "invalid");
    }
    std::os::unix::fs::symlink("infra", std::path::Path::new(repository.path_str()).join("link")).unwrap();
    repository.run_git(&["add", "-A"]);
    repository.run_git(&["commit", "-qm", "a link"]);
    for path in ["link", "link/prod"] {
        let id = server.create_sandbox(json!({ "repo": { "path": repository.path_str() }, "protected": [path] })).await;
        let row = server.wait_until(&id, |row| row["state"] == "failed").await;
        assert!(row["reason"]["detail"].as_str().unwrap().contains("symbolic link"), "{row}");
    }
    let created =
        server.admin.post("/sandboxes", json!({ "provider": "fake", "protected": ["a"] })).await.expect_status(201);
    let row = server.wait_until(created["id"].as_str().unwrap(), |row| row["state"] == "failed").await;
    assert_eq!(row["reason"]["code"], "provider_unsupported", "{row}");
    server.stop_and_check().await;
}
