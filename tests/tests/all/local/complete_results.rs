//! Results are complete and true: of a running sandbox, of a resumed session, and when the workspace's repository is unusual.

use atoll_test_wait::poll_until;
use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{LocalServer, event_data};
use serde_json::{Value, json};

/// Exports the results and returns the branch with its commit.
async fn take_results(server: &LocalServer, id: &str) -> (String, String) {
    let exported = server.admin.post(&format!("/sandboxes/{id}/results"), json!({})).await.expect_status(200);
    let taken = exported["taken"].as_array().unwrap();
    assert_eq!(taken.len(), 1, "{exported}");
    let text = |field: &str| taken[0][field].as_str().unwrap().to_owned();
    (text("branch"), text("commit"))
}

async fn newest_branch_event(server: &LocalServer, id: &str) -> Value {
    let events = server.admin.all_events(id).await;
    (*event_data(&events, "git.branch_created").last().unwrap_or_else(|| panic!("no branch: {events:#?}"))).clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_keeps_its_own_branch() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let before = repository.checkout_state();
    let settings = json!({
        "prompt": "edit one.txt 1\nrun echo half > slow.txt; sleep 1; echo whole > slow.txt\nwait 600",
        "repo": { "path": repository.path_str() }, "end": "keep",
    });
    let id = server.create_sandbox(settings).await;
    server.wait_for_event(&id, |event| event["type"] == "agent.tool_use" && event["data"]["tool"] == "Bash").await;
    // The export waits for the end of the command and changes neither state nor turn.
    let (branch, first) = take_results(&server, &id).await;
    assert_eq!(repository.run_git(&["rev-parse", &branch]).trim(), first);
    assert_eq!(repository.file_at(&branch, "one.txt").as_deref(), Some("1\n"));
    assert_eq!(repository.file_at(&branch, "slow.txt").as_deref(), Some("whole\n"));
    let row = server.get_sandbox(&id).await;
    assert_eq!(
        (&row["state"], &row["activity"], &row["results"]),
        (&json!("running"), &json!("working"), &json!("pending"))
    );
    let ran = server.run_shell(&id, "git status --porcelain; git log --format=%H -1").await.expect_success();
    assert_eq!(ran.trim(), first, "the work is committed in the sandbox too");

    // The agent continues, and the next export fast-forwards the branch.
    server.send_message(&id, json!({ "content": "edit two.txt 2" })).await;
    server.wait_for_event(&id, |event| event["data"]["file_path"] == "two.txt").await;
    let (again, second) = take_results(&server, &id).await;
    assert_eq!((&again, newest_branch_event(&server, &id).await["previous"].as_str()), (&branch, Some(&*first)));
    assert_eq!(repository.run_git(&["rev-parse", &format!("{branch}~1"), &branch]), format!("{first}\n{second}\n"));
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "take" })).await.expect_status(200);
    let ended = server.wait_until_ended(&id).await;
    assert_eq!((&ended["state"], &ended["results"]), (&json!("completed"), &json!("taken")), "{ended}");
    assert_eq!(repository.run_git(&["rev-parse", &branch]).trim(), second);

    // The session's next sandbox starts at the branch and moves it.
    let session = &ended["session_id"];
    let resume = |prompt: &str| json!({ "session_id": session, "prompt": prompt });
    let next = server.create_sandbox(resume("edit three.txt 3")).await;
    assert_eq!(server.wait_until_ended(&next).await["outcome"], "succeeded");
    let events = server.admin.all_events(&next).await;
    let cloned = event_data(&events, "git.cloned")[0];
    assert_eq!((&cloned["commit"], &cloned["branch"]), (&json!(second), &json!(branch)));
    let created = newest_branch_event(&server, &next).await;
    assert_eq!((&created["branch"], &created["previous"]), (&json!(branch), &json!(second)), "{created}");
    assert_eq!(repository.file_at(&branch, "three.txt").as_deref(), Some("3\n"));

    // A branch that the user moved elsewhere keeps its commit.
    let last = server.create_sandbox(resume("edit four.txt 4\nwait 600")).await;
    server.wait_for_event(&last, |event| event["type"] == "agent.file_edited").await;
    repository.run_git(&["branch", "-f", &branch, "HEAD"]);
    let moved = repository.run_git(&["commit-tree", "-p", "HEAD", "-m", "mine", "HEAD^{tree}"]);
    repository.run_git(&["branch", "-f", &branch, moved.trim()]);
    server.admin.post(&format!("/sandboxes/{last}/stop"), json!({ "results": "take" })).await.expect_status(200);
    server.wait_until_ended(&last).await;
    let created = newest_branch_event(&server, &last).await;
    assert_eq!(
        (&created["branch"], &created["notes"][0]["note"]),
        (&json!(format!("{branch}-2")), &json!("branch_moved"))
    );
    assert_eq!(repository.run_git(&["rev-parse", &branch]), moved);
    assert_eq!(repository.checkout_state().head, before.head);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_announced_branch_is_the_created_one() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    repository.run_git(&["branch", "atoll/edit-a-txt-x"]);
    let settings = json!({ "prompt": "edit a.txt x\nrun env", "repo": { "path": repository.path_str() } });
    let ids = [server.create_sandbox(settings.clone()).await, server.create_sandbox(settings).await];
    let mut branches = Vec::new();
    for id in &ids {
        assert_eq!(server.wait_until_ended(id).await["outcome"], "succeeded");
        let events = server.admin.all_events(id).await;
        let announced = event_data(&events, "git.cloned")[0]["branch"].clone();
        assert_eq!(announced, newest_branch_event(&server, id).await["branch"]);
        let ran = event_data(&events, "agent.tool_completed");
        let environment = ran.last().unwrap()["output"].as_str().unwrap();
        let branch = format!("BRANCH_NAME={}", announced.as_str().unwrap());
        for variable in [
            &*branch,
            &*format!("SANDBOX_ID={id}"),
            "PROJECT_ID=prj_",
            "CALLBACK_URL=http://",
            "TASK_DATA_BASE64=",
            "TASK_DESCRIPTION=edit a.txt x",
        ] {
            assert!(environment.lines().any(|line| line.starts_with(variable)), "{variable} is not in {environment}");
        }
        branches.push(announced);
    }
    assert_eq!(branches, ["atoll/edit-a-txt-x-2", "atoll/edit-a-txt-x-3"]);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_stay_pending_while_their_files_exist() {
    let server = LocalServer::start_with_config("sandbox: {drain_for: 0s, keep_failed_for: 1h}\n");
    let repository = SampleRepository::create();
    let base = repository.head_commit();
    // The agent also removes its repository: the results compare the files with the start.
    let prompt = "edit kept.txt hello\nrun rm -rf .git old.txt\ncrash";
    let id = server.create_sandbox(json!({ "prompt": prompt, "repo": { "path": repository.path_str() } })).await;
    assert_eq!(server.wait_until_ended(&id).await["reason"]["code"], "agent_crashed");
    poll_until("the end of the drain time", async || {
        let metrics =
            server.admin.request(reqwest::Method::GET, "/metrics").send().await.unwrap().text().await.unwrap();
        metrics.lines().any(|line| line.starts_with("atoll_jobs_done_total") && line.contains("end_drain"))
    })
    .await;
    assert_eq!(server.get_sandbox(&id).await["results"], "pending");
    let (branch, _) = take_results(&server, &id).await;
    let changed = repository.run_git(&["diff", "--name-status", &base, &branch]);
    assert_eq!(changed, "A\tkept.txt\nD\told.txt\n");
    assert_eq!(repository.run_git(&["rev-parse", &format!("{branch}~1")]).trim(), base);
    assert_eq!(server.get_sandbox(&id).await["results"], "taken");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_in_a_submodule_fail_the_results() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let entry = format!("160000,{},lib/dep", repository.head_commit());
    repository.run_git(&["update-index", "--add", "--cacheinfo", &entry]);
    repository.run_git(&["commit", "-q", "-m", "submodule"]);
    let settings = |prompt: &str| json!({ "prompt": prompt, "repo": { "path": repository.path_str() } });
    let id = server.create_sandbox(settings("edit lib/dep/new.txt x\nedit saved.txt x")).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((&row["state"], &row["results"]), (&json!("failed"), &json!("pending")), "{row}");
    assert_eq!(row["reason"]["code"], "results_incomplete", "{row}");
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "git.cloned")[0]["submodules"], json!(["lib/dep"]));
    let notice = event_data(&events, "sandbox.notice").iter().any(|data| data["text"].to_string().contains("lib/dep"));
    assert!(notice, "the missing support must be reported at the start: {events:#?}");
    let branch = newest_branch_event(&server, &id).await["branch"].as_str().unwrap().to_owned();
    assert_eq!(repository.file_at(&branch, "saved.txt").as_deref(), Some("x\n"), "the rest must be saved");

    // Work outside of the submodule is done as usual.
    let other = server.create_sandbox(settings("edit other.txt x")).await;
    assert_eq!(server.wait_until_ended(&other).await["outcome"], "succeeded");
    server.admin.delete(&format!("/sandboxes/{id}?force=true")).await.expect_status(200);
    server.wait_until_removed(&id).await;
    assert_eq!(server.get_sandbox(&id).await["results"], "lost");
    server.stop_and_check().await;
}
