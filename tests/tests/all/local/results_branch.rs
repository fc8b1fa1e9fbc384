//! The agent starts from the last commit, its work becomes a branch, and the user's checkout stays unchanged.

use atoll_tests::local::repository::SampleRepository;
use atoll_tests::local::{
    LocalServer, agent_messages, assert_log_is_complete, assert_tool_calls_are_paired, event_data,
};
use serde_json::{Value, json};

fn position_of_event(events: &[Value], event_type: &str) -> usize {
    let found = events.iter().position(|event| event["type"] == event_type);
    found.unwrap_or_else(|| panic!("no {event_type} in {events:#?}"))
}

/// Returns the data of the only `git.branch_created` event.
fn created_branch(events: &[Value]) -> Value {
    let created = event_data(events, "git.branch_created");
    assert_eq!(created.len(), 1, "{events:#?}");
    created[0].clone()
}

fn file_edits(events: &[Value]) -> Vec<(String, String)> {
    let text = |data: &Value, field: &str| data[field].as_str().unwrap().to_owned();
    event_data(events, "agent.file_edited")
        .iter()
        .map(|data| (text(data, "change_type"), text(data, "file_path")))
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_produces_a_branch() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let (before, base) = (repository.checkout_state(), repository.head_commit());
    let prompt = "Add a function that subtracts, and test it";
    let id = server.create_sandbox(json!({ "prompt": prompt, "repo": { "path": repository.path_str() } })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");

    let events = server.admin.all_events(&id).await;
    assert_log_is_complete(&events);
    assert_tool_calls_are_paired(&events);
    let steps = [
        "sandbox.pending",
        "sandbox.creating",
        "sandbox.running",
        "agent.started",
        "agent.tool_use",
        "agent.file_edited",
        "agent.completed",
        "sandbox.completing",
        "git.branch_created",
        "sandbox.completed",
    ];
    let positions: Vec<usize> = steps.iter().map(|step| position_of_event(&events, step)).collect();
    assert!(positions.is_sorted(), "{steps:?} are at {positions:?}");
    assert!(
        position_of_event(&events, "git.cloned") < position_of_event(&events, "agent.started"),
        "the clone must precede the agent"
    );
    let cloned = event_data(&events, "git.cloned")[0];
    assert_eq!((cloned["commit"].as_str(), cloned["uncommitted"].as_i64()), (Some(&*base), Some(0)), "{cloned}");
    let ran = event_data(&events, "agent.tool_completed");
    assert!(
        ran.iter().any(|data| data["tool"] == "Bash" && data["is_error"] == false),
        "a command must succeed: {ran:?}"
    );
    assert!(!agent_messages(&events).is_empty(), "the agent must describe its work");

    let created = created_branch(&events);
    let (branch, commit) = (created["branch"].as_str().unwrap(), created["commit"].as_str().unwrap());
    assert!(branch.starts_with("atoll/"), "{created}");
    assert_eq!(repository.run_git(&["rev-parse", branch]).trim(), commit);
    assert_eq!(created["base"], base);
    let count = repository.run_git(&["rev-list", "--count", &format!("{base}..{branch}")]);
    assert_eq!(created["commits"].to_string(), count.trim());
    assert_eq!(repository.run_git(&["merge-base", &base, branch]).trim(), base);
    repository.assert_edits_produce(&base, &event_data(&events, "agent.file_edited"), commit);
    assert!(!repository.run_git(&["diff", "--name-only", &base, branch]).is_empty());
    repository.assert_untouched(&before, branch);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_edits_by_any_program_are_reported() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let base = repository.head_commit();
    let prompt = "\
edit written.txt by the agent
run printf 'one\\ntwo\\n' > shell.txt && sed -i 's/Adds/Sums/' README.md
run mv calc.py sums.py
run rm old.txt
run mkdir -p build node_modules/x deep/er && echo x > build/out && echo x > node_modules/x/y && echo z > deep/er/z
run printf 'one\\n2\\n' > shell.txt";
    let id = server.create_sandbox(json!({ "prompt": prompt, "repo": { "path": repository.path_str() } })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    let edits = file_edits(&events);
    let has_edit = |kind: &str, path: &str| edits.iter().any(|edit| edit.0 == kind && edit.1 == path);
    assert!(has_edit("created", "written.txt"), "{edits:?}");
    assert!(has_edit("created", "shell.txt") && has_edit("modified", "shell.txt"), "{edits:?}");
    assert!(has_edit("modified", "README.md"), "{edits:?}");
    assert!(has_edit("renamed", "sums.py"), "{edits:?}");
    assert!(has_edit("deleted", "old.txt"), "{edits:?}");
    assert!(has_edit("created", "deep/er/z"), "{edits:?}");
    let is_ignored =
        |path: &str| path.starts_with("build") || path.starts_with("node_modules") || path.starts_with(".git");
    assert!(!edits.iter().any(|edit| is_ignored(&edit.1)), "ignored files must not be reported: {edits:?}");

    let data = event_data(&events, "agent.file_edited");
    let renamed = data.iter().find(|data| data["change_type"] == "renamed").unwrap();
    assert_eq!(renamed["old_path"], "calc.py");
    let readme = data.iter().find(|data| data["file_path"] == "README.md").unwrap();
    assert_eq!((readme["lines_added"].as_i64(), readme["lines_removed"].as_i64()), (Some(1), Some(1)), "{readme}");
    let diff = readme["full_diff"].as_str().unwrap();
    assert!(diff.contains("\n-Adds numbers.\n+Sums numbers."), "{diff}");
    assert!(data.iter().all(|data| data["turn"] == 1), "{data:?}");
    let commit = created_branch(&events)["commit"].as_str().unwrap().to_owned();
    repository.assert_edits_produce(&base, &data, &commit);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncommitted_changes_are_reported_and_left_out() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    repository.write("README.md", "# not committed\n");
    repository.write("untracked.txt", "mine\n");
    repository.write("staged.txt", "staged\n");
    repository.run_git(&["add", "staged.txt"]);
    let before = repository.checkout_state();
    let prompt = "run ls; cat README.md\nedit done.txt yes";
    let id = server.create_sandbox(json!({ "prompt": prompt, "repo": { "path": repository.path_str() } })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = server.admin.all_events(&id).await;
    let cloned = event_data(&events, "git.cloned")[0];
    assert_eq!(cloned["uncommitted"], 3, "the event must count them: {cloned}");
    let output = event_data(&events, "agent.tool_completed")[0]["output"].as_str().unwrap().to_owned();
    assert!(output.contains("calc.py") && output.contains("Adds numbers"), "{output}");
    assert!(!["untracked", "staged", "not committed"].iter().any(|word| output.contains(word)), "{output}");
    let created = created_branch(&events);
    let branch = created["branch"].as_str().unwrap();
    assert_eq!(repository.file_at(branch, "done.txt").as_deref(), Some("yes\n"));
    assert_eq!(repository.file_at(branch, "staged.txt"), None);
    repository.assert_untouched(&before, branch);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_path_without_a_repository_is_rejected_before_creation() {
    let server = LocalServer::start();
    let empty = atoll_tests::local::create_temp_dir("atoll-empty-");
    let path = empty.path().to_str().unwrap();
    let request = LocalServer::sandbox_request(json!({ "prompt": "say hi", "repo": { "path": path } }));
    let problem = server.admin.post("/sandboxes", request).await.expect_problem(422, "not_a_repository");
    assert!(problem["detail"].as_str().unwrap().contains("git init"), "the detail must name the remedy: {problem}");
    let missing =
        LocalServer::sandbox_request(json!({ "prompt": "say hi", "repo": { "path": format!("{path}/nowhere") } }));
    let refused = server.admin.post("/sandboxes", missing).await;
    assert_eq!(refused.status.as_u16(), 422, "{}", refused.body);

    // A repository without a commit.
    atoll_tests::local::repository::run_git(empty.path(), &["init", "-q"]);
    let unborn = LocalServer::sandbox_request(json!({ "prompt": "say hi", "repo": { "path": path } }));
    let refused = server.admin.post("/sandboxes", unborn).await;
    assert!(refused.status.is_client_error(), "{}", refused.body);
    assert!(refused.body["detail"].as_str().unwrap().contains("commit"), "{}", refused.body);

    let list = server.admin.get("/sandboxes").await.expect_status(200);
    assert_eq!(list["items"], json!([]));
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_repository_the_workspace_is_empty() {
    let server = LocalServer::start();
    let id = server.create_sandbox(json!({ "prompt": "run pwd; ls -A\nedit a.txt hello\nrun cat a.txt" })).await;
    let row = server.wait_until_ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = server.admin.all_events(&id).await;
    let ran = event_data(&events, "agent.tool_completed");
    let first = ran[0]["output"].as_str().unwrap();
    assert_eq!(first.lines().next(), Some("/workspace"), "{first}");
    assert_eq!(ran.last().unwrap()["output"], "hello\n");
    let edits = file_edits(&events);
    assert_eq!(edits[0], ("created".to_owned(), "a.txt".to_owned()));
    assert!(edits.iter().all(|edit| edit.1 == "a.txt"), "{edits:?}");
    assert!(event_data(&events, "git.branch_created").is_empty());
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unchanged_repository_gets_no_branch() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let before = repository.checkout_state();
    let id = server.create_sandbox(json!({ "prompt": "say hi", "repo": { "path": repository.path_str() } })).await;
    assert_eq!(server.wait_until_ended(&id).await["outcome"], "succeeded");
    let events = server.admin.all_events(&id).await;
    assert_eq!(event_data(&events, "git.nothing_changed").len(), 1);
    assert_eq!(repository.checkout_state(), before);
    server.stop_and_check().await;
}

/// Git configuration, hooks and filters: the user's do not enter the sandbox, and the agent's do not run on the host.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_configuration_crosses_in_neither_direction() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let trap = repository.path().join("trap");
    repository.run_git(&["remote", "add", "origin", "https://name:hunter2@example.org/x.git"]);
    repository.run_git(&["config", "http.extraHeader", "Authorization: hunter3"]);
    for name in ["post-checkout", "reference-transaction"] {
        let hook = repository.path().join(".git/hooks").join(name);
        std::fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", trap.display())).unwrap();
        std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let trap_command = format!("sh -c 'touch {}'", trap.display());
    let prompt = format!(
        "run cat .git/config; ls .git/hooks; git config --list; git remote -v
run git config core.fsmonitor \"{trap_command}\" && git config diff.external \"{trap_command}\" && git config core.sshCommand x
run printf '* filter=trap diff=trap\\n' > .gitattributes && git config filter.trap.clean \"{trap_command}\" && git config \
         diff.trap.textconv \"{trap_command}\"
run mkdir -p .git/hooks && printf '#!/bin/sh\\n{trap_command}\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
run cp .git/hooks/pre-commit .git/hooks/reference-transaction; git config uploadpack.packObjectsHook \"{trap_command}\"
run echo changed >> README.md"
    );
    let before = repository.checkout_state();
    let id = server
        .create_sandbox(json!({ "prompt": prompt, "repo": { "path": repository.path_str() }, "end": "keep" }))
        .await;
    server.wait_until(&id, |row| row["activity"] == "waiting_message").await;
    let diff = server.admin.get(&format!("/sandboxes/{id}/diff")).await.expect_status(200);
    let is_changed = |name: &str| diff["files"].as_array().unwrap().iter().any(|file| file["path"] == name);
    assert!(is_changed("README.md") && is_changed(".gitattributes"), "{diff}");
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "take" })).await.expect_status(200);
    let row = server.wait_until_ended(&id).await;
    assert_eq!(row["results"], "taken", "{row}");
    let events = server.admin.all_events(&id).await;
    let output = event_data(&events, "agent.tool_completed")[0]["output"].as_str().unwrap().to_owned();
    assert!(!output.contains("hunter") && !output.contains("post-checkout"), "{output}");
    assert!(!output.contains(repository.path_str()), "the sandbox must not know the host path: {output}");
    assert!(!trap.exists(), "no hook may run on the host");
    let created = created_branch(&events);
    let branch = created["branch"].as_str().unwrap();
    assert!(repository.file_at(branch, "README.md").unwrap().ends_with("changed\n"));
    repository.assert_untouched(&before, branch);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_diff_is_relative_to_the_starting_commit() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let id = server.create_idle_sandbox(json!({ "repo": { "path": repository.path_str() } })).await;
    // The agent's own commits are part of the diff.
    let script = "echo one > one.txt && git add -A && git commit -qm mine && echo two > two.txt && rm old.txt";
    server.run_shell(&id, script).await.expect_success();
    let path = format!("/sandboxes/{id}/diff");
    let files = server.admin.get(&path).await.expect_status(200)["files"].clone();
    let names: Vec<&str> = files.as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["old.txt", "one.txt", "two.txt"]);
    let request = server.admin.request(reqwest::Method::GET, &path).header("accept", "text/x-diff");
    let patch = request.send().await.unwrap().text().await.unwrap();
    for part in ["+++ b/one.txt", "\n+one\n", "\n+two\n", "\n-no longer needed\n"] {
        assert!(patch.contains(part), "{part} is missing in {patch}");
    }
    server.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect_status(200);
    server.wait_until_ended(&id).await;
    let created = created_branch(&server.admin.all_events(&id).await);
    let branch = created["branch"].as_str().unwrap();
    let log = repository.run_git(&["log", "--format=%s", branch]);
    assert!(log.lines().any(|subject| subject == "mine"), "the agent's own commits must stay: {log}");
    assert_eq!(repository.file_at(branch, "two.txt").as_deref(), Some("two\n"));
    assert_eq!(repository.file_at(branch, "old.txt"), None);
    server.stop_and_check().await;
}
