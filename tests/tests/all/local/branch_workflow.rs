//! The branch workflow with a real git server and the double of a forge: from a ticket to a merged pull request, with
//! conflicts, refusals, outages, and a server that is killed at each step.

mod server_kills;
pub mod workshop;

use atoll_tests::forge_double::Fault;
use atoll_tests::git_server::git;
use atoll_tests::local::host_state::files_with;
use atoll_tests::local::{event_data, report_skipped};
use atoll_tests::process::program_command;
use serde_json::{Value, json};
use workshop::{NAME, TOKEN, Workshop};

/// Resolves a conflict of the test: the demo agent runs the line when it reads the conflict.
const RESOLVE: &str = "run printf 'both\\n' > shared.txt && git add -A && git commit -q -m 'Resolve the conflict'";

/// The whole workflow, and a search for the token in everything that it left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_becomes_a_merged_pull_request() {
    let workshop = Workshop::start_with(&[("ATOLL_LOG_LEVEL", "trace")]).await;
    let Workshop { git: git_server, forge, server, .. } = &workshop;
    git_server.record_processes();
    let ticket = workshop.create_ticket(json!({ "title": "Add numbers" })).await;
    let started = json!({ "ticket_id": ticket["id"], "repo": workshop.repo() });
    let started = server.admin.post("/branch-workflow/start", started).await.expect_status(201);
    let branch = "feature/ATL-1-add-numbers";
    assert_eq!((started["branch"].as_str(), &started["progress"]), (Some(branch), &Value::Null), "{started}");
    assert_eq!(git_server.branch(NAME, branch), None, "the branch is pushed with its first commit");
    forge.delay_mergeability(NAME, 1);

    let visible = "cat /proc/*/environ /proc/*/cmdline .git/config ~/.git-credentials 2>/dev/null | tr '\\0' '\\n'";
    let ci = "run mkdir -p .github/workflows && echo 'on: push' > .github/workflows/ci.yml";
    let prompt = format!("{ci}\nrun {visible}; true");
    let git_settings = json!({ "publish": "pull_request", "merge": true });
    let request = json!({ "ticket_id": ticket["id"], "repo": workshop.repo(), "prompt": prompt, "git": git_settings });
    let id = server.create_sandbox(request).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["outcome"].as_str(), row["branch"].as_str()), (Some("succeeded"), Some(branch)), "{row}");
    let session = &row["session_id"];
    let progress = workshop.wait_until_done(session).await;
    assert_eq!((&progress["step"], &progress["goal"]), (&json!("update_dependants"), &json!("merge")), "{progress}");
    assert_eq!(progress["flagged"], json!([".github/workflows/ci.yml"]));

    assert_eq!(forge.pull_requests(NAME), [(1, "merged".to_owned())]);
    assert_eq!(git_server.branch(NAME, branch), None, "the merged branch is gone");
    assert!(workshop.main_subjects().starts_with("[ATL-1] Add numbers (#1)\n"), "{}", workshop.main_subjects());
    let done = workshop.read_ticket(&ticket).await;
    assert_eq!((done["status"].as_str(), done["pr"]["state"].as_str()), (Some("done"), Some("merged")), "{done}");
    let events = workshop.events_of(session).await;
    for (event_type, count) in [
        ("git.push_flagged", 1),
        ("git.pushed", 1),
        ("git.pr_created", 1),
        ("git.merge_completed", 1),
        ("git.branch_removed", 1),
    ] {
        assert_eq!(event_data(&events, event_type).len(), count, "{event_type}: {events:#?}");
    }
    let types: Vec<&str> = events.iter().map(|event| event["type"].as_str().unwrap()).collect();
    let place = |name: &str| types.iter().position(|found| *found == name).unwrap();
    assert!(place("git.push_flagged") < place("git.pushed") && place("git.pr_created") < place("sandbox.completed"));
    let shown = server.admin.get(&format!("/pull-requests/{}", session.as_str().unwrap())).await.expect_status(200);
    assert_eq!((shown["number"].as_u64(), shown["ticket"].as_str()), (Some(1), Some("ATL-1")), "{shown}");
    let listed = server.admin.get("/pull-requests?state=merged").await.expect_status(200);
    assert_eq!(listed["items"][0]["title"], "[ATL-1] Add numbers", "{listed}");
    for named in ["ATL-1", "1"] {
        let mut command = program_command("atoll");
        command.args(["pr", "show", named, "--json", "--server", &server.process.url]);
        command.arg("--token-file").arg(server.data_dir().join("admin-token"));
        let output = command.output().unwrap();
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        assert_eq!((&printed["number"], &printed["state"]), (&json!(1), &json!("merged")), "{printed}");
    }
    let processes = git_server.recorded_processes();
    for known in ["push --porcelain", " fetch ", "git-remote-http"] {
        assert!(processes.contains(known), "the search must find the processes of git: {known}");
    }
    // Both hosts reject the token.
    git_server.require_login("x-access-token", "another token");
    forge.revoke_token(TOKEN);
    let fetch = json!({ "provider": "local", "agent": "demo", "approvals": "full",
        "repo": { "url": workshop.url, "base": "a-branch-that-needs-a-fetch" } });
    let problem = server.admin.post("/sandboxes/preview", fetch).await.expect_problem(422, "clone_failed");
    assert!(problem["cause"] == "remote_auth" && !problem.to_string().contains(TOKEN), "{problem}");
    workshop.assert_token_is_nowhere(&events).await;
    workshop.server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_resolves_a_conflict_with_a_base_that_moved() {
    let workshop = Workshop::start().await;
    let Workshop { git: git_server, forge, server, .. } = &workshop;
    let prompt = "edit shared.txt mine";
    let settings = json!({ "publish": "pull_request", "merge": true });
    let id = server.create_sandbox(json!({ "repo": workshop.repo(), "prompt": prompt, "git": settings })).await;
    // The base of the sandbox is resolved already.
    git_server.commit(NAME, "main", "shared.txt", &format!("{RESOLVE}\n"));
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let session = &row["session_id"];
    workshop.wait_until_done(session).await;
    assert_eq!(workshop.sandboxes_of(session).await.len(), 2, "the session continued once");
    let events = workshop.events_of(session).await;
    let conflicts = event_data(&events, "git.conflict");
    assert_eq!((conflicts.len(), &conflicts[0]["paths"]), (1, &json!(["shared.txt"])), "{conflicts:?}");
    let asked = event_data(&events, "message.queued").into_iter().find(|data| data["type"] == "system").unwrap();
    let text = asked["content"].as_str().unwrap();
    assert!(text.contains("<<<<<<<") && text.contains("mine") && text.contains("shared.txt, line 1"), "{text}");
    assert_eq!(forge.pull_requests(NAME), [(1, "merged".to_owned())]);
    assert_eq!(git(&git_server.path(NAME), ["show", "main:shared.txt"]), "both");
    assert_eq!(workshop.forge_changes("POST", "/pulls"), 1);
    workshop.server.stop_and_check().await;
}

/// The remote is git behind a real sshd.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_is_merged_over_ssh() {
    let Some((workshop, ssh)) = Workshop::start_over_ssh().await else {
        return report_skipped("the branch workflow over ssh", "there is no sshd; scripts/sshd unpacks it");
    };
    let Workshop { git: git_server, forge, server, .. } = &workshop;
    let ticket = workshop.create_ticket(json!({ "title": "Add numbers" })).await;
    let settings = json!({ "publish": "pull_request", "merge": true });
    let request = json!({ "ticket_id": ticket["id"], "repo": workshop.repo(), "prompt": "edit shared.txt mine", "git": settings });
    let id = server.create_sandbox(request).await;
    git_server.commit(NAME, "main", "shared.txt", &format!("{RESOLVE}\n"));
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let session = &row["session_id"];
    workshop.wait_until_done(session).await;
    assert_eq!(workshop.sandboxes_of(session).await.len(), 2, "the session continued once");
    assert_eq!(forge.pull_requests(NAME), [(1, "merged".to_owned())]);
    assert_eq!(git(&git_server.path(NAME), ["show", "main:shared.txt"]), "both");
    assert_eq!(git_server.branch(NAME, "feature/ATL-1-add-numbers"), None, "the merged branch is gone");
    assert_eq!(git_server.requests(), [] as [&str; 0], "git uses ssh only");
    assert_eq!(workshop.read_ticket(&ticket).await["status"], "done");
    let events = workshop.events_of(session).await;
    workshop.assert_token_is_nowhere(&events).await;
    let key = std::fs::read_to_string(ssh.key()).unwrap();
    let line = key.lines().nth(1).unwrap();
    assert_eq!(files_with(&server.data_dir(), line), [] as [&str; 0]);
    workshop.server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_push_shows_the_remotes_words_and_continues_on_request() {
    let workshop = Workshop::start().await;
    let Workshop { git: git_server, forge, server, .. } = &workshop;
    git_server.write_hook(
        NAME,
        "pre-receive",
        "#!/bin/sh\necho 'commits need a sign-off' f0rge-token-that-stays-outside >&2\nexit 1\n",
    );
    let body = json!({ "repo": workshop.repo(), "prompt": "edit a.txt a", "git": { "publish": "pull_request" } });
    let id = server.create_sandbox(body).await;
    let failed = server.wait_until_ended(&id).await;
    assert_eq!(failed["reason"]["code"], "results_unpublished", "{failed}");
    assert!(failed["reason"]["detail"].as_str().unwrap().contains("commits need a sign-off"), "{failed}");
    let session = &failed["session_id"];
    let events = workshop.events_of(session).await;
    let refused = event_data(&events, "git.push_failed");
    assert_eq!((refused.len(), refused[0]["code"].as_str()), (1, Some("push_declined")), "{refused:?}");
    assert!(!failed.to_string().contains(TOKEN), "{failed}");
    workshop.assert_token_is_nowhere(&events).await;
    assert!(server.sandbox_dir(&id).exists(), "the files stay");
    assert_eq!(forge.pull_requests(NAME), []);

    std::fs::remove_file(git_server.path(NAME).join("hooks/pre-receive")).unwrap();
    server.admin.post(&format!("/sandboxes/{id}/results"), json!({})).await.expect_status(200);
    let progress = workshop.wait_until_done(session).await;
    assert_eq!(progress["pull_request"]["state"], "open", "{progress}");
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    // A person merges, but a review requests changes.
    forge.add_review(NAME, 1, "ann", "CHANGES_REQUESTED");
    let merge = json!({ "session_id": session });
    server.admin.post("/branch-workflow/merge", merge.clone()).await.expect_status(200);
    let stopped = workshop.wait_for_progress(session, |progress| progress["state"] == "failed").await;
    assert_eq!(stopped["reason"]["code"], "merge_refused", "{stopped}");
    forge.add_review(NAME, 1, "ann", "APPROVED");
    server.admin.post("/branch-workflow/merge", merge).await.expect_status(200);
    workshop.wait_until_done(session).await;
    assert_eq!(forge.pull_requests(NAME), [(1, "merged".to_owned())]);
    workshop.server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_forge_that_is_down_delays_the_pull_request() {
    let workshop = Workshop::start().await;
    let Workshop { forge, server, .. } = &workshop;
    forge.inject_fault(Fault::Down);
    let body = json!({ "repo": workshop.repo(), "prompt": "edit a.txt a", "git": { "publish": "pull_request" } });
    let id = server.create_sandbox(body).await;
    let failed = server.wait_for_event(&id, |event| event["type"] == "git.pr_failed").await;
    assert_eq!(failed["data"]["code"], "forge_unavailable", "{failed}");
    assert!(failed["data"]["retry_s"].is_u64(), "{failed}");
    assert_eq!(server.get_sandbox(&id).await["state"], "completing", "the sandbox waits");
    forge.clear_faults();
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    assert_eq!(forge.pull_requests(NAME), [(1, "open".to_owned())]);
    assert_eq!(event_data(&workshop.events_of(&row["session_id"]).await, "git.pr_created").len(), 1);
    workshop.server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_of_dependent_tickets_follow_a_merge() {
    let workshop = Workshop::start().await;
    let git_server = &workshop.git;
    let first = workshop.create_ticket(json!({ "title": "First" })).await;
    let second = workshop.create_ticket(json!({ "title": "Second", "depends_on": ["ATL-1"] })).await;
    let dependant = workshop.publish_ticket(&second, "edit second.txt text", false).await;
    let before = git_server.branch(NAME, "feature/ATL-2-second").unwrap();
    let merged = workshop.publish_ticket(&first, "edit first.txt text", true).await;
    workshop.wait_until_done(&merged).await;
    let moved = |progress: &Value| progress["state"] == "done" && progress["pushed_commit"] != *before;
    let progress = workshop.wait_for_progress(&dependant, moved).await;
    assert_eq!(git_server.branch(NAME, "feature/ATL-2-second").as_deref(), progress["pushed_commit"].as_str());
    let subjects = git(&git_server.path(NAME), ["log", "--format=%s", "main..feature/ATL-2-second"]);
    assert_eq!(subjects, "Second", "only its own commit, on top of the new base");
    let events = workshop.events_of(&dependant).await;
    assert_eq!(event_data(&events, "git.branch_updated").len(), 1, "{events:#?}");
    assert_eq!((event_data(&events, "git.pushed").len(), event_data(&events, "git.pr_created").len()), (2, 1));
    workshop.server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuous_work_ends_when_its_pull_request_is_open() {
    let workshop = Workshop::start().await;
    let Workshop { forge, server, .. } = &workshop;
    let continuous = json!({ "require": ["clean", "pushed", "pull_request"] });
    let prompt = "run echo a > a.txt && git add -A && git commit -q -m 'Add a'";
    let id =
        server.create_sandbox(json!({ "repo": workshop.repo(), "prompt": prompt, "continuous": continuous })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = workshop.events_of(&row["session_id"]).await;
    assert_eq!(event_data(&events, "continuous.passed").len(), 1, "{events:#?}");
    assert_eq!((event_data(&events, "git.pushed").len(), event_data(&events, "git.pr_created").len()), (1, 1));
    assert_eq!(forge.pull_requests(NAME), [(1, "open".to_owned())]);
    workshop.server.stop_and_check().await;
}
