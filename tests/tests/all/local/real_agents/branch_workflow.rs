//! The branch workflow with a real agent, from a ticket to a merged pull request. The base moves meanwhile, and the agent
//! resolves the conflict.

use super::agent_fixture::AgentFixture;
use crate::local::branch_workflow::workshop::{Hosts, NAME};
use atoll_tests::git_server::git;
use atoll_tests::local::event_data;
use serde_json::json;

const SCRIPTS: &str = r#"
scripts:
  - name: work
    steps:
      - run: echo branch=$BRANCH_NAME && git status --short --branch && git log --format=%s -1
      - expect: {text: "branch=feature/ATL-1-add-numbers", new: true}
      - write: {file: sum.txt, content: "1 + 1 = 2\n"}
      - run: git add -A && git commit -q -m "Add the sum" && git log --format=%an -1
      - write: {file: shared.txt, content: "mine\n"}
      - say: The sum is done.
  - name: resolve
    steps:
      - run: cat shared.txt
      - expect: {text: "<<<<<<<", new: true}
      - run: printf 'both\n' > shared.txt && git add -A && git commit -q -m "Keep both sides"
      - say: The conflict is resolved.
"#;

/// A line of the base that the agent's message quotes. It selects the script that resolves the conflict.
const THEIRS: &str = "theirs #script:resolve\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claude_works_on_a_ticket_until_its_pull_request_is_merged() {
    let hosts = Hosts::start().await;
    let (config, environment) = (hosts.config(), Hosts::environment());
    let started = AgentFixture::start_with_environment("claude", "the branch workflow", SCRIPTS, &config, &environment);
    let Some(fixture) = started.await else { return };
    let AgentFixture { server, model, .. } = fixture;
    let workshop = hosts.with_server(server);
    let ticket =
        workshop.create_ticket(json!({ "title": "Add numbers", "description": "add them #script:work" })).await;
    let request = json!({ "agent": "claude", "ticket_id": ticket["id"], "repo": workshop.repo(), "approvals": "full",
        "network": { "policy": "none" }, "git": { "publish": "pull_request", "merge": true } });
    let id = workshop.server.create_sandbox(request).await;
    workshop.git.commit(NAME, "main", "shared.txt", THEIRS);
    let row = workshop.server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let session = &row["session_id"];
    workshop.wait_until_done(session).await;

    let problems: Vec<_> = model.requests().iter().filter_map(|request| request.problem.clone()).collect();
    assert!(problems.is_empty(), "{problems:?}");
    let branch = "feature/ATL-1-add-numbers";
    assert_eq!(workshop.git.branch(NAME, branch), None, "the merged branch is gone");
    assert_eq!(workshop.forge.pull_requests(NAME), [(1, "merged".to_owned())]);
    assert!(workshop.main_subjects().starts_with("[ATL-1] Add numbers (#1)\n"), "{}", workshop.main_subjects());
    let bare = workshop.git.path(NAME);
    assert_eq!(git(&bare, ["show", "main:sum.txt"]), "1 + 1 = 2");
    assert_eq!(git(&bare, ["show", "main:shared.txt"]), "both");
    let events = workshop.events_of(session).await;
    for event_type in ["git.conflict", "git.pr_created", "git.merge_completed", "git.branch_removed"] {
        assert_eq!(event_data(&events, event_type).len(), 1, "{event_type}: {events:#?}");
    }
    assert_eq!(workshop.sandboxes_of(session).await.len(), 2, "the session continued once");
    // The agent continues its own conversation.
    let last = format!("{:?}", model.requests().last().unwrap().body);
    assert!(last.contains("The sum is done.") && last.contains("Keep both sides"), "the agent remembers its work");
    assert_eq!(workshop.read_ticket(&ticket).await["status"], "done");
    workshop.assert_token_is_nowhere(&events).await;
    workshop.server.stop_and_check().await;
}
