//! What goes in is the last commit, what comes out is a branch, and the user's checkout stays as it was.

use atoll_tests::local::repository::Repository;
use atoll_tests::local::{Ground, assert_belongs_together, assert_whole, said, told};
use serde_json::{Value, json};

fn place_of(events: &[Value], event_type: &str) -> usize {
    let found = events.iter().position(|event| event["type"] == event_type);
    found.unwrap_or_else(|| panic!("there is no {event_type} in {events:#?}"))
}

/// The one branch that was made, by the event that says so.
fn branch_of(events: &[Value]) -> Value {
    let made = told(events, "git.branch_created");
    assert_eq!(made.len(), 1, "{events:#?}");
    made[0].clone()
}

fn edits_of(events: &[Value]) -> Vec<(String, String)> {
    let text = |data: &Value, field: &str| data[field].as_str().unwrap().to_owned();
    told(events, "agent.file_edited").iter().map(|data| (text(data, "change_type"), text(data, "file_path"))).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_in_plain_words_ends_as_a_branch() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let (before, base) = (repository.checkout(), repository.head());
    let prompt = "Add a function that subtracts, and test it";
    let id = ground.make(json!({ "prompt": prompt, "repo": { "path": repository.text() } })).await;
    let row = ground.ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");

    let events = ground.admin.all_events(&id).await;
    assert_whole(&events);
    assert_belongs_together(&events);
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
    let places: Vec<usize> = steps.iter().map(|step| place_of(&events, step)).collect();
    assert!(places.is_sorted(), "{steps:?} are at {places:?}");
    assert!(place_of(&events, "git.cloned") < place_of(&events, "agent.started"), "first the files, then the agent");
    let cloned = told(&events, "git.cloned")[0];
    assert_eq!((cloned["commit"].as_str(), cloned["uncommitted"].as_i64()), (Some(&*base), Some(0)), "{cloned}");
    let ran = told(&events, "agent.tool_completed");
    assert!(ran.iter().any(|data| data["tool"] == "Bash" && data["is_error"] == false), "a command went well: {ran:?}");
    assert!(!said(&events).is_empty(), "it says what it did");

    let made = branch_of(&events);
    let (branch, commit) = (made["branch"].as_str().unwrap(), made["commit"].as_str().unwrap());
    assert!(branch.starts_with("atoll/"), "{made}");
    assert_eq!(repository.git(&["rev-parse", branch]).trim(), commit);
    assert_eq!(made["base"], base);
    let count = repository.git(&["rev-list", "--count", &format!("{base}..{branch}")]);
    assert_eq!(made["commits"].to_string(), count.trim());
    assert_eq!(repository.git(&["merge-base", &base, branch]).trim(), base);
    repository.edits_give(&base, &told(&events, "agent.file_edited"), commit);
    assert!(!repository.git(&["diff", "--name-only", &base, branch]).is_empty());
    repository.is_untouched(&before, branch);
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_of_any_origin_are_told() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let base = repository.head();
    let prompt = "\
edit written.txt by the agent
run printf 'one\\ntwo\\n' > shell.txt && sed -i 's/Adds/Sums/' README.md
run mv calc.py sums.py
run rm old.txt
run mkdir -p build node_modules/x deep/er && echo x > build/out && echo x > node_modules/x/y && echo z > deep/er/z
run printf 'one\\n2\\n' > shell.txt";
    let id = ground.make(json!({ "prompt": prompt, "repo": { "path": repository.text() } })).await;
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&id).await;
    let edits = edits_of(&events);
    let told_of = |kind: &str, path: &str| edits.iter().any(|edit| edit.0 == kind && edit.1 == path);
    assert!(told_of("created", "written.txt"), "{edits:?}");
    assert!(told_of("created", "shell.txt") && told_of("modified", "shell.txt"), "{edits:?}");
    assert!(told_of("modified", "README.md"), "{edits:?}");
    assert!(told_of("renamed", "sums.py"), "{edits:?}");
    assert!(told_of("deleted", "old.txt"), "{edits:?}");
    assert!(told_of("created", "deep/er/z"), "{edits:?}");
    let ignored =
        |path: &str| path.starts_with("build") || path.starts_with("node_modules") || path.starts_with(".git");
    assert!(!edits.iter().any(|edit| ignored(&edit.1)), "what is ignored is nobody's business: {edits:?}");

    let data = told(&events, "agent.file_edited");
    let renamed = data.iter().find(|data| data["change_type"] == "renamed").unwrap();
    assert_eq!(renamed["old_path"], "calc.py");
    let readme = data.iter().find(|data| data["file_path"] == "README.md").unwrap();
    assert_eq!((readme["lines_added"].as_i64(), readme["lines_removed"].as_i64()), (Some(1), Some(1)), "{readme}");
    let diff = readme["full_diff"].as_str().unwrap();
    assert!(diff.contains("\n-Adds numbers.\n+Sums numbers."), "{diff}");
    assert!(data.iter().all(|data| data["turn"] == 1), "{data:?}");
    let commit = branch_of(&events)["commit"].as_str().unwrap().to_owned();
    repository.edits_give(&base, &data, &commit);
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uncommitted_changes_are_said_and_stay_out() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    repository.write("README.md", "# not committed\n");
    repository.write("untracked.txt", "mine\n");
    repository.write("staged.txt", "staged\n");
    repository.git(&["add", "staged.txt"]);
    let before = repository.checkout();
    let prompt = "run ls; cat README.md\nedit done.txt yes";
    let id = ground.make(json!({ "prompt": prompt, "repo": { "path": repository.text() } })).await;
    let row = ground.ended(&id).await;
    assert_eq!(row["outcome"], "succeeded", "{row}");
    let events = ground.admin.all_events(&id).await;
    let cloned = told(&events, "git.cloned")[0];
    assert_eq!(cloned["uncommitted"], 3, "it is said: {cloned}");
    let seen = told(&events, "agent.tool_completed")[0]["output"].as_str().unwrap().to_owned();
    assert!(seen.contains("calc.py") && seen.contains("Adds numbers"), "{seen}");
    assert!(!["untracked", "staged", "not committed"].iter().any(|word| seen.contains(word)), "{seen}");
    let made = branch_of(&events);
    let branch = made["branch"].as_str().unwrap();
    assert_eq!(repository.show(branch, "done.txt").as_deref(), Some("yes\n"));
    assert_eq!(repository.show(branch, "staged.txt"), None);
    repository.is_untouched(&before, branch);
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_repository_is_refused_before_anything_is_made() {
    let ground = Ground::start();
    let empty = atoll_tests::local::directory("atoll-empty-");
    let path = empty.path().to_str().unwrap();
    let asked = Ground::request(json!({ "prompt": "say hi", "repo": { "path": path } }));
    let problem = ground.admin.post("/sandboxes", asked).await.refused(422, "not_a_repository");
    assert!(problem["detail"].as_str().unwrap().contains("git init"), "it says what to do: {problem}");
    let missing = Ground::request(json!({ "prompt": "say hi", "repo": { "path": format!("{path}/nowhere") } }));
    let refused = ground.admin.post("/sandboxes", missing).await;
    assert_eq!(refused.status.as_u16(), 422, "{}", refused.body);

    // Nothing to begin from: the first commit is missing.
    atoll_tests::local::repository::git(empty.path(), &["init", "-q"]);
    let unborn = Ground::request(json!({ "prompt": "say hi", "repo": { "path": path } }));
    let refused = ground.admin.post("/sandboxes", unborn).await;
    assert!(refused.status.is_client_error(), "{}", refused.body);
    assert!(refused.body["detail"].as_str().unwrap().contains("commit"), "{}", refused.body);

    let list = ground.admin.get("/sandboxes").await.expect(200);
    assert_eq!(list["items"], json!([]));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_url_is_said_to_come_later() {
    let ground = Ground::start();
    let url = "https://example.org/calc.git";
    let asked = Ground::request(json!({ "prompt": "say hi", "repo": { "url": url } }));
    let refused = ground.admin.post("/sandboxes", asked).await;
    assert!(refused.status.is_client_error() || refused.status.as_u16() == 501, "{}", refused.body);
    let detail = refused.body["detail"].as_str().unwrap();
    assert!(detail.contains("later") && detail.contains("path"), "when, and what to do until then: {detail}");
    assert_eq!(ground.admin.get("/sandboxes").await.expect(200)["items"], json!([]));
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_repository_the_agent_has_an_empty_workspace() {
    let ground = Ground::start();
    let id = ground.make(json!({ "prompt": "run pwd; ls -A\nedit a.txt hello\nrun cat a.txt" })).await;
    let row = ground.ended(&id).await;
    assert_eq!((row["state"].as_str(), row["outcome"].as_str()), (Some("completed"), Some("succeeded")), "{row}");
    let events = ground.admin.all_events(&id).await;
    let ran = told(&events, "agent.tool_completed");
    let first = ran[0]["output"].as_str().unwrap();
    assert_eq!(first.lines().next(), Some("/workspace"), "{first}");
    assert_eq!(ran.last().unwrap()["output"], "hello\n");
    let edits = edits_of(&events);
    assert_eq!(edits[0], ("created".to_owned(), "a.txt".to_owned()));
    assert!(edits.iter().all(|edit| edit.1 == "a.txt"), "{edits:?}");
    assert!(told(&events, "git.branch_created").is_empty());
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_changed_makes_no_branch() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let before = repository.checkout();
    let id = ground.make(json!({ "prompt": "say hi", "repo": { "path": repository.text() } })).await;
    assert_eq!(ground.ended(&id).await["outcome"], "succeeded");
    let events = ground.admin.all_events(&id).await;
    assert_eq!(told(&events, "git.nothing_changed").len(), 1);
    assert_eq!(repository.checkout(), before);
    ground.leave().await;
}

/// Settings, hooks and filters: what the user has does not go in, what the agent makes does not run outside.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn git_s_settings_cross_in_neither_direction() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let trap = repository.path().join("trap");
    repository.git(&["remote", "add", "origin", "https://name:hunter2@example.org/x.git"]);
    repository.git(&["config", "http.extraHeader", "Authorization: hunter3"]);
    for name in ["post-checkout", "reference-transaction"] {
        let hook = repository.path().join(".git/hooks").join(name);
        std::fs::write(&hook, format!("#!/bin/sh\ntouch {}\n", trap.display())).unwrap();
        std::fs::set_permissions(&hook, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let springs = format!("sh -c 'touch {}'", trap.display());
    let prompt = format!(
        "run cat .git/config; ls .git/hooks; git config --list; git remote -v
run git config core.fsmonitor \"{springs}\" && git config diff.external \"{springs}\" && git config core.sshCommand x
run printf '* filter=trap diff=trap\\n' > .gitattributes && git config filter.trap.clean \"{springs}\" && git config \
         diff.trap.textconv \"{springs}\"
run mkdir -p .git/hooks && printf '#!/bin/sh\\n{springs}\\n' > .git/hooks/pre-commit && chmod +x .git/hooks/pre-commit
run cp .git/hooks/pre-commit .git/hooks/reference-transaction; git config uploadpack.packObjectsHook \"{springs}\"
run echo changed >> README.md"
    );
    let before = repository.checkout();
    let id = ground.make(json!({ "prompt": prompt, "repo": { "path": repository.text() }, "end": "keep" })).await;
    ground.until(&id, |row| row["activity"] == "waiting_message").await;
    let diff = ground.admin.get(&format!("/sandboxes/{id}/diff")).await.expect(200);
    let changed = |name: &str| diff["files"].as_array().unwrap().iter().any(|file| file["path"] == name);
    assert!(changed("README.md") && changed(".gitattributes"), "{diff}");
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({ "results": "take" })).await.expect(200);
    let row = ground.ended(&id).await;
    assert_eq!(row["results"], "taken", "{row}");
    let events = ground.admin.all_events(&id).await;
    let seen = told(&events, "agent.tool_completed")[0]["output"].as_str().unwrap().to_owned();
    assert!(!seen.contains("hunter") && !seen.contains("post-checkout"), "{seen}");
    assert!(!seen.contains(repository.text()), "not even where it came from: {seen}");
    assert!(!trap.exists(), "nothing of the workspace ran on the host");
    let made = branch_of(&events);
    let branch = made["branch"].as_str().unwrap();
    assert!(repository.show(branch, "README.md").unwrap().ends_with("changed\n"));
    repository.is_untouched(&before, branch);
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_diff_is_against_the_commit_that_went_in() {
    let (ground, repository) = (Ground::start(), Repository::sample());
    let id = ground.kept(json!({ "repo": { "path": repository.text() } })).await;
    // A commit of the agent's own belongs to the difference like everything else.
    let script = "echo one > one.txt && git add -A && git commit -qm mine && echo two > two.txt && rm old.txt";
    ground.shell(&id, script).await.well();
    let path = format!("/sandboxes/{id}/diff");
    let files = ground.admin.get(&path).await.expect(200)["files"].clone();
    let names: Vec<&str> = files.as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap()).collect();
    assert_eq!(names, ["old.txt", "one.txt", "two.txt"]);
    let asked = ground.admin.request(reqwest::Method::GET, &path).header("accept", "text/x-diff");
    let patch = asked.send().await.unwrap().text().await.unwrap();
    for part in ["+++ b/one.txt", "\n+one\n", "\n+two\n", "\n-no longer needed\n"] {
        assert!(patch.contains(part), "{part} is missing in {patch}");
    }
    ground.admin.post(&format!("/sandboxes/{id}/stop"), json!({})).await.expect(200);
    ground.ended(&id).await;
    let made = branch_of(&ground.admin.all_events(&id).await);
    let branch = made["branch"].as_str().unwrap();
    let log = repository.git(&["log", "--format=%s", branch]);
    assert!(log.lines().any(|subject| subject == "mine"), "the agent's own commits stay: {log}");
    assert_eq!(repository.show(branch, "two.txt").as_deref(), Some("two\n"));
    assert_eq!(repository.show(branch, "old.txt"), None);
    ground.leave().await;
}
