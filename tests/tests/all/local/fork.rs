//! Forks and snapshots: the files as they were, apart from then on.

use atoll_tests::actor::Actor;
use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, said, told};
use serde_json::{Value, json};

async fn fork(ground: &Ground, id: &str, body: Value) -> String {
    let made = ground.admin.post(&format!("/sandboxes/{id}/fork"), body).await.expect(201);
    let fork = made["id"].as_str().unwrap().to_owned();
    ground.remember(&fork);
    ground.until(&fork, |row| row["state"] == "running" && row["activity"] != "starting").await;
    fork
}

async fn is_empty(admin: &Actor, list: &str) -> bool {
    admin.get(list).await.expect(200)["items"].as_array().unwrap().is_empty()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_that_is_asked_for_twice_is_made_once() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    let ask = || {
        let asked = ground.admin.request(reqwest::Method::POST, &format!("/sandboxes/{id}/fork"));
        ground.admin.send(asked.header("idempotency-key", "one").json(&json!({})))
    };
    let made = ask().await.expect(201)["id"].clone();
    ground.remember(made.as_str().unwrap());
    ground.shell(&id, "sleep 54321 >/dev/null 2>&1 &").await.well();
    assert_eq!(ask().await.expect(201)["id"], made);
    let runs = ground.shell(&id, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '").await.well();
    assert!(runs.contains("sleep 54321"), "nothing was ended for what is known already: {runs}");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fork_has_the_files_and_both_go_their_own_ways() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let id = ground.kept(json!({ "repo": { "path": repository.text() } })).await;
    ground.shell(&id, "echo before > shared.txt; mkdir -p ~/.agent; echo memory > ~/.agent/session").await.well();
    let fork = fork(&ground, &id, json!({ "title": "another way" })).await;
    let row = ground.row(&fork).await;
    assert_eq!(row["settings"]["forked_from"], *id, "{row}");
    let (parents, forks) = (ground.row(&id).await["session_id"].clone(), row["session_id"].clone());
    assert_ne!(parents, forks);
    let session = ground.admin.get(&format!("/sessions/{}", forks.as_str().unwrap())).await.expect(200);
    assert_eq!((&session["forked_from"], session["title"].as_str()), (&parents, Some("another way")), "{session}");

    let look = "cat shared.txt ~/.agent/session; git log --oneline | wc -l; stat -c %U shared.txt";
    assert_eq!(ground.shell(&fork, look).await.well(), ground.shell(&id, look).await.well());
    ground.shell(&fork, "echo fork >> shared.txt; rm README.md; echo only > fork.txt").await.well();
    ground.shell(&id, "echo parent >> shared.txt; echo only > parent.txt").await.well();
    assert_eq!(ground.shell(&id, "cat shared.txt; ls fork.txt README.md").await.stdout, "before\nparent\nREADME.md\n");
    assert_eq!(ground.shell(&fork, "cat shared.txt; ls parent.txt README.md").await.stdout, "before\nfork\n");

    // Both agents work on; what each changed comes out of each.
    for (sandbox, text) in [(&id, "parent"), (&fork, "fork")] {
        ground.send(sandbox, json!({ "content": format!("say {text}\nedit {text}-agent.txt {text}") })).await;
        ground.event(sandbox, |event| event["data"]["text"] == text).await;
        ground.until(sandbox, |row| row["activity"] == "waiting_message").await;
        let diff = ground.admin.get(&format!("/sandboxes/{sandbox}/diff")).await.expect(200);
        let paths: Vec<&str> =
            diff["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
        assert!(paths.contains(&format!("{text}-agent.txt").as_str()) && paths.contains(&"shared.txt"), "{diff}");
    }
    let events = ground.admin.all_events(&id).await;
    assert_eq!(said(&events), ["ready", "parent"], "a fork is no interruption");
    assert_eq!(told(&events, "agent.failed"), Vec::<&Value>::new());
    assert_eq!(told(&events, "session.forked").len(), 1);

    // A fork of a fork, which outlives both.
    let grandchild = self::fork(&ground, &fork, json!({ "prompt": "say hello\nrun cat shared.txt" })).await;
    for sandbox in [&id, &fork] {
        ground.admin.delete(&format!("/sandboxes/{sandbox}?force=true")).await.expect(200);
        ground.gone(sandbox).await;
    }
    ground.event(&grandchild, |event| event["data"]["text"] == "hello").await;
    assert_eq!(ground.shell(&grandchild, "cat shared.txt fork-agent.txt").await.well(), "before\nfork\nfork\n");
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_in_the_middle_of_a_turn_is_not_cut_off() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "say one\nwait 3\nsay two", "end": "keep" })).await;
    ground.event(&id, |event| event["data"]["text"] == "one").await;
    for (what, body) in [("fork", json!({})), ("snapshot", json!({ "name": "early" }))] {
        ground.admin.post(&format!("/sandboxes/{id}/{what}"), body).await.refused(409, "sandbox_busy");
    }
    assert!(is_empty(&ground.admin, "/snapshots").await);
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    assert_eq!(said(&ground.admin.all_events(&id).await), ["one", "two"]);
    fork(&ground, &id, json!({})).await;
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_ran_in_the_parent_ends_and_commands_that_wait_come_through() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    ground.shell(&id, "setsid sh -c 'while :; do date >> /workspace/log; sleep 0.01; done' >/dev/null 2>&1 &").await;
    let fork = fork(&ground, &id, json!({})).await;
    let size = || ground.shell(&id, "pgrep -f 'whil[e] :' | wc -l; stat -c %s log");
    let (first, second) = (size().await.well(), size().await.well());
    assert!(first.starts_with("0\n") && first == second, "{first} {second}");
    assert_eq!(ground.shell(&fork, "stat -c %s log").await.well(), first.trim_start_matches("0\n"));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_begins_others_and_outlives_its_sandbox() {
    let ground = Ground::start();
    let id = ground.kept(json!({})).await;
    ground.shell(&id, "echo kept > a.txt; echo mine > ~/b.txt").await.well();
    let path = format!("/sandboxes/{id}/snapshot");
    let made = ground.admin.post(&path, json!({ "name": "base-1" })).await.expect(201);
    assert_eq!(made["name"], "base-1", "{made}");
    for bad in ["", "../up", "A", ".hidden", "-x"] {
        ground.admin.post(&path, json!({ "name": bad })).await.refused(422, "invalid");
    }
    let again = ground.admin.post(&path, json!({ "name": "base-1" })).await;
    assert_eq!(again.status, 409, "{}", again.body);
    ground.shell(&id, "echo later > a.txt").await.well();
    ground.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect(200);
    ground.gone(&id).await;

    // Another project has none of that name, and sees none.
    let project = ground.admin.post("/projects", json!({ "name": "elsewhere" })).await.expect(201);
    let foreign = ground.make(json!({ "snapshot": "base-1", "project_id": project["id"], "prompt": "say hi" })).await;
    assert_eq!(ground.ended(&foreign).await["state"], "failed");
    ground
        .admin
        .delete(&format!("/snapshots/base-1?project_id={}", project["id"].as_str().unwrap()))
        .await
        .refused(404, "not_found");

    let next = ground.kept(json!({ "snapshot": "base-1" })).await;
    let forked = fork(&ground, &next, json!({})).await;
    assert_eq!(
        ground.shell(&forked, "cat a.txt").await.well(),
        "kept\n",
        "what began with a snapshot is forked like any"
    );
    assert_eq!(ground.shell(&next, "cat a.txt ~/b.txt; stat -c %U a.txt").await.well(), "kept\nmine\nagent\n");
    let list = ground.admin.get("/snapshots").await.expect(200);
    assert_eq!((list["items"].as_array().unwrap().len(), &list["items"][0]["name"]), (1, &json!("base-1")), "{list}");
    ground.admin.delete("/snapshots/base-1").await.expect(200);
    ground.admin.delete("/snapshots/base-1").await.refused(404, "not_found");
    assert_eq!(ground.shell(&next, "cat a.txt").await.well(), "kept\n", "who began with it keeps it");
    let unknown = ground.make(json!({ "snapshot": "base-1", "prompt": "say hi" })).await;
    let row = ground.ended(&unknown).await;
    assert!(row["reason"]["detail"].as_str().unwrap().contains("base-1"), "{row}");
    ground.leave().await;
}
