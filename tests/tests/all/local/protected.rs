//! Protected paths: nobody inside changes them, and what changes them all the same is not delivered.

use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, told};
use serde_json::{Value, json};

/// A repository with files worth protecting, committed.
fn repository() -> Repository {
    let repository = Repository::sample();
    let root = std::path::Path::new(repository.text()).to_path_buf();
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
    repository.git(&["add", "-A"]);
    repository.git(&["commit", "-qm", "what is to be protected"]);
    repository
}

fn protected() -> Value {
    json!([".github/", "Cargo.lock", "infra/prod"])
}

/// All that an agent may try. Each line ends well only if it could change something.
const TRIES: [&str; 16] = [
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

async fn is_unchanged(ground: &Ground, id: &str) {
    let look = "cat Cargo.lock infra/prod/deep/main.tf .github/workflows/ci.yml; ls .github/workflows infra/prod";
    let seen = ground.shell(id, look).await.well();
    assert_eq!(seen, "locked\nproduction\non: push\n.github/workflows:\nci.yml\n\ninfra/prod:\ndeep\n");
}

async fn all_tries_fail(ground: &Ground, id: &str) {
    for attempt in TRIES {
        let ran = ground.shell(id, attempt).await;
        assert_ne!(ran.code(), Some(0), "it went well: {attempt}: {ran:?}");
        is_unchanged(ground, id).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_inside_changes_a_protected_path() {
    let (ground, repository) = (Ground::start(), repository());
    let id = ground.kept(json!({ "repo": { "path": repository.text() }, "protected": protected() })).await;
    assert_eq!(ground.row(&id).await["settings"]["protected"], json!([".github", "Cargo.lock", "infra/prod"]));
    all_tries_fail(&ground, &id).await;
    let free = "git checkout -q -- infra && echo y > infra/more.tf && echo y >> infra/test.tf && rm infra/more.tf && \
                echo y > Cargo.toml && mv Cargo.toml infra/ && rm infra/Cargo.toml";
    ground.shell(&id, free).await.well();

    // What git writes there is refused too, and it says so.
    let checkout = "git rm -q --cached Cargo.lock && git commit -qm gone && git checkout -q HEAD~ -- Cargo.lock; \
                    git checkout -q --orphan empty && git rm -rfq . ; cat Cargo.lock";
    assert!(ground.shell(&id, checkout).await.stdout.ends_with("locked\n"));
    is_unchanged(&ground, &id).await;
    let upload = ground.admin.request(reqwest::Method::PUT, &format!("/sandboxes/{id}/files/Cargo.lock"));
    assert!(!upload.body("x").send().await.unwrap().status().is_success());
    is_unchanged(&ground, &id).await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_its_parent_and_a_project_have_them_too() {
    let (ground, repository) = (Ground::start_with("sandbox: {protected: [infra/prod]}\n"), repository());
    let defaults = json!({ "protected": [".github/"] });
    let project = ground.admin.post("/projects", json!({ "name": "careful", "defaults": defaults }));
    let project = project.await.expect(201)["id"].clone();
    let settings =
        json!({ "project_id": project, "repo": { "path": repository.text() }, "protected": ["Cargo.lock", "later"] });
    let id = ground.kept(settings).await;
    let events = ground.admin.all_events(&id).await;
    let notices = told(&events, "sandbox.notice");
    let named =
        |notice: &&&Value| notice["text"].as_str().unwrap().starts_with("not there, so not read-only inside: later;");
    assert_eq!(notices.iter().filter(named).count(), 1, "{notices:?}");
    ground.shell(&id, "echo mine > infra/mine.tf").await.well();
    let made = ground.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await.expect(201);
    let fork = made["id"].as_str().unwrap().to_owned();
    ground.remember(&fork);
    ground.until(&fork, |row| row["state"] == "running" && row["activity"] != "starting").await;
    for sandbox in [&id, &fork] {
        assert_eq!(ground.shell(sandbox, "cat infra/mine.tf; echo more >> infra/mine.tf").await.well(), "mine\n");
        all_tries_fail(&ground, sandbox).await;
    }

    // A link where a protected path should be is followed by nobody: the next fork is refused, and the parent goes on.
    ground.shell(&id, "ln -s infra later").await.well();
    let answer = ground.admin.post(&format!("/sandboxes/{id}/fork"), json!({})).await;
    assert!(answer.body["detail"].as_str().unwrap().contains("symbolic link"), "{}", answer.body);
    ground.shell(&id, "rm later && echo still >> infra/mine.tf").await.well();
    is_unchanged(&ground, &id).await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_that_leaves_them_alone_is_delivered_and_other_work_is_not() {
    let (ground, repository) = (Ground::start(), repository());
    let request =
        |prompt: &str| json!({ "prompt": prompt, "repo": { "path": repository.text() }, "protected": protected() });
    let id = ground.make(request("edit infra/test.tf changed\nrun rm -f Cargo.lock\nedit .github/x no")).await;
    let row = ground.ended(&id).await;
    assert_eq!(row["state"], "completed", "{row}");
    let events = ground.admin.all_events(&id).await;
    let branch = told(&events, "git.branch_created")[0];
    let files: Vec<&str> =
        branch["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(files, ["infra/test.tf"], "{branch}");

    // A commit needs no file: the index alone can change what is protected.
    let plumbing = "run git update-index --cacheinfo 100644,$(echo evil | git hash-object -w --stdin),Cargo.lock && \
                    git commit -qm evil && git update-index --skip-worktree Cargo.lock\n\
                    edit harmless.txt x";
    let before = repository.git(&["for-each-ref"]);
    let id = ground.make(request(plumbing)).await;
    let row = ground.until(&id, |row| row["state"] == "failed").await;
    assert_eq!(row["reason"]["code"], "results_protected", "{row}");
    assert!(row["reason"]["detail"].as_str().unwrap().contains("Cargo.lock"), "{row}");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(told(&events, "guardian.protected_path")[0]["paths"], json!(["Cargo.lock"]), "{events:#?}");
    assert_eq!(repository.git(&["for-each-ref"]), before, "no branch was made");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cant_be_protected_is_refused() {
    let (ground, repository) = (Ground::start(), repository());
    for path in ["/etc/passwd", "../x", "src/*.rs", ".git/hooks", ""] {
        let body = Ground::request(json!({ "protected": [path] }));
        ground.admin.post("/sandboxes", body).await.refused(422, "invalid");
        let body = json!({ "name": "x", "defaults": { "protected": [path] } });
        ground.admin.post("/projects", body).await.refused(422, "invalid");
    }
    std::os::unix::fs::symlink("infra", std::path::Path::new(repository.text()).join("link")).unwrap();
    repository.git(&["add", "-A"]);
    repository.git(&["commit", "-qm", "a link"]);
    for path in ["link", "link/prod"] {
        let id = ground.make(json!({ "repo": { "path": repository.text() }, "protected": [path] })).await;
        let row = ground.until(&id, |row| row["state"] == "failed").await;
        assert!(row["reason"]["detail"].as_str().unwrap().contains("symbolic link"), "{row}");
    }
    let made = ground.admin.post("/sandboxes", json!({ "provider": "fake", "protected": ["a"] })).await.expect(201);
    let row = ground.until(made["id"].as_str().unwrap(), |row| row["state"] == "failed").await;
    assert_eq!(row["reason"]["code"], "provider_unsupported", "{row}");
    ground.leave().await;
}
