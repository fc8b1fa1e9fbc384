//! Work on a ticket: its branch exists before the sandbox, and its sandboxes continue on that branch.

use atoll_tests::local::LocalServer;
use atoll_tests::local::event_data;
use atoll_tests::local::repository::SampleRepository;
use serde_json::{Value, json};

async fn read_ticket(server: &LocalServer, ticket: &Value) -> Value {
    server.admin.get(&format!("/tickets/{}", ticket["id"].as_str().unwrap())).await.expect_status(200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_owns_the_branch_of_its_sandboxes() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let base = repository.head_commit();
    let description = "edit first.txt by the agent\nrun echo $BRANCH_NAME > name.txt";
    let new = json!({ "title": "Subtract numbers", "type": "bug", "description": description });
    let ticket = server.admin.post("/tickets", new).await.expect_status(201);
    let branch = "fix/ATL-1-subtract-numbers";
    let repo = json!({ "path": repository.path_str() });
    let request = json!({ "ticket_id": ticket["id"], "repo": repo });
    let id = server.create_sandbox(request.clone()).await;
    let started = read_ticket(&server, &ticket).await;
    assert!(["building", "building-done"].contains(&started["status"].as_str().unwrap()), "{started}");
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["outcome"].as_str(), row["branch"].as_str()), (Some("succeeded"), Some(branch)), "{row}");
    assert_eq!(row["title"], "Subtract numbers");
    let events = server.admin.all_events(&id).await;
    // The branch existed already: the export fast-forwarded it from the base.
    let created = event_data(&events, "git.branch_created")[0];
    assert_eq!((created["previous"].as_str(), created["branch"].as_str()), (Some(&*base), Some(branch)), "{created}");
    assert_eq!(repository.run_git(&["show", &format!("{branch}:name.txt")]).trim(), branch);
    let done = read_ticket(&server, &ticket).await;
    assert_eq!((done["status"].as_str(), done["branch"].as_str()), (Some("building-done"), Some(branch)), "{done}");
    assert_eq!(done["session_id"], row["session_id"]);

    // The next sandbox continues the session on the same branch.
    let next = json!({ "ticket_id": ticket["id"], "repo": repo, "prompt": "edit second.txt by the agent" });
    let id = server.create_sandbox(next).await;
    let second = server.wait_until_ended(&id).await;
    assert_eq!((&second["session_id"], second["branch"].as_str()), (&row["session_id"], Some(branch)), "{second}");
    let files = repository.run_git(&["ls-tree", "--name-only", branch]);
    assert!(files.contains("first.txt") && files.contains("second.txt"), "{files}");
    assert_eq!(repository.run_git(&["for-each-ref", "--format=%(refname)", "refs/heads/fix/"]).lines().count(), 1);

    let path = format!("/tickets/{}", ticket["id"].as_str().unwrap());
    server.admin.patch(&path, json!({ "blocked": true })).await.expect_status(200);
    server.admin.post("/sandboxes", request).await.expect_problem(409, "ticket_blocked");
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_taken_name_gets_a_number() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    repository.run_git(&["branch", "feature/ATL-1-add"]);
    let ticket = server.admin.post("/tickets", json!({ "title": "Add" })).await.expect_status(201);
    let prompt = "edit first.txt by the agent";
    let request = json!({ "ticket_id": ticket["id"], "prompt": prompt, "repo": { "path": repository.path_str() } });
    let id = server.create_sandbox(request).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(
        (row["outcome"].as_str(), row["branch"].as_str()),
        (Some("succeeded"), Some("feature/ATL-1-add-2")),
        "{row}"
    );
    assert_eq!(read_ticket(&server, &ticket).await["branch"], "feature/ATL-1-add-2");
    assert_eq!(repository.run_git(&["rev-parse", "feature/ATL-1-add"]).trim(), repository.head_commit());
    server.stop_and_check().await;
}
