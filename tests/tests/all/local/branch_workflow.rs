//! The branch workflow with a real git server and the double of a forge: from a ticket to a merged pull request, with
//! conflicts, refusals, outages, and a server that is killed at each step.

use atoll_test_wait::try_poll_for;
use atoll_tests::forge_double::{Fault, ForgeDouble};
use atoll_tests::git_server::{GitServer, git};
use atoll_tests::local::{LocalServer, assert_log_is_complete, event_data};
use atoll_tests::process::program_command;
use atoll_tests::scale;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use std::path::Path;
use tokio::task::block_in_place;

const TOKEN: &str = "f0rge-token-that-stays-outside";
const NAME: &str = "octo/hello";

/// Resolves a conflict of the test: the demo agent runs the line when it reads the conflict.
const RESOLVE: &str = "run printf 'both\\n' > shared.txt && git add -A && git commit -q -m 'Resolve the conflict'";

/// A git server, a forge and an Atoll server that know each other.
struct Workshop {
    git: GitServer,
    forge: ForgeDouble,
    server: LocalServer,
}

impl Workshop {
    async fn start() -> Self {
        let (git, forge) = (GitServer::start(), ForgeDouble::start(TOKEN).await);
        git.create_repository(NAME);
        git.require_login("x-access-token", TOKEN);
        forge.add_repository(NAME, &git.path(NAME));
        let config = format!("github: {{url: \"http://{}\", api_url: \"{}\"}}\n", git.address, forge.url());
        let server = LocalServer::start_with_env(&config, &[("GITHUB_TOKEN".to_owned(), TOKEN.to_owned())]);
        Self { git, forge, server }
    }

    fn repo(&self) -> Value {
        json!({ "url": self.git.url(NAME) })
    }

    async fn create_ticket(&self, new: Value) -> Value {
        self.server.admin.post("/tickets", new).await.expect_status(201)
    }

    async fn read_ticket(&self, ticket: &Value) -> Value {
        self.server.admin.get(&format!("/tickets/{}", ticket["id"].as_str().unwrap())).await.expect_status(200)
    }

    /// Waits until the workflow of a session has a matching progress.
    async fn wait_for_progress(&self, session: &Value, is_match: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/branch-workflow/status?session={}", session.as_str().unwrap());
        let polled = try_poll_for(async || {
            let status = self.server.admin.get(&path).await.expect_status(200);
            let progress = status["progress"].clone();
            if is_match(&progress) { Ok(progress) } else { Err(status) }
        });
        match polled.await {
            Ok(progress) => progress,
            Err(status) => panic!("{status}\n{}", self.server.process.stderr_text()),
        }
    }

    async fn wait_until_done(&self, session: &Value) -> Value {
        let ended = |progress: &Value| progress["state"] == "done" || progress["state"] == "failed";
        let progress = self.wait_for_progress(session, ended).await;
        assert_eq!(progress["state"], "done", "{progress}");
        progress
    }

    /// The sandboxes of a session, oldest first.
    async fn sandboxes_of(&self, session: &Value) -> Vec<Value> {
        let all = self.server.admin.list_all("/sandboxes", 100).await;
        let mut own: Vec<Value> = all.into_iter().filter(|row| row["session_id"] == *session).collect();
        own.reverse();
        own.iter().for_each(|row| self.server.track_sandbox(row["id"].as_str().unwrap()));
        own
    }

    async fn events_of(&self, session: &Value) -> Vec<Value> {
        let mut events = Vec::new();
        for row in self.sandboxes_of(session).await {
            let own = self.server.admin.all_events(row["id"].as_str().unwrap()).await;
            assert_log_is_complete(&own);
            events.extend(own);
        }
        events
    }

    /// Requests that changed something at the forge.
    fn forge_changes(&self, method: &str, path_end: &str) -> usize {
        let is_change = |path: &str| path.split('?').next().is_some_and(|path| path.ends_with(path_end));
        let requests = self.forge.requests();
        requests.iter().filter(|r| r.method == method && is_change(&r.path) && r.status < 300).count()
    }

    fn main_subjects(&self) -> String {
        git(&self.git.path(NAME), ["log", "--format=%s", "main"])
    }

    /// The token is in no file, log or event of the server.
    async fn assert_token_is_nowhere(&self, events: &[Value]) {
        assert!(!json!(events).to_string().contains(TOKEN), "the token is in an event");
        assert!(!self.server.process.stderr_text().contains(TOKEN), "the token is in the log");
        assert_eq!(files_with(&self.server.data_dir(), TOKEN), [] as [&str; 0]);
        for path in ["/sandboxes", "/pull-requests", "/tickets", "/projects"] {
            let listed = self.server.admin.get(path).await.expect_status(200);
            assert!(!listed.to_string().contains(TOKEN), "the token is in {path}");
        }
    }
}

/// Every file below a directory that contains a text.
fn files_with(directory: &Path, text: &str) -> Vec<String> {
    let found = std::process::Command::new("grep").args(["-rlaF", "--", text]).arg(directory).output().unwrap();
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_ticket_becomes_a_merged_pull_request() {
    let workshop = Workshop::start().await;
    let Workshop { git: git_server, forge, server } = &workshop;
    // The push is a process of the server: its arguments and variables are visible to this hook.
    let seen = git_server.path(NAME).join("seen");
    let spy = format!("#!/bin/sh\ncat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' ' >> {}\n", seen.display());
    git_server.write_hook(NAME, "pre-receive", &spy);
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
    let arguments = std::fs::read_to_string(&seen).unwrap();
    assert!(arguments.contains("push --porcelain") && !arguments.contains(TOKEN), "{arguments}");
    workshop.assert_token_is_nowhere(&events).await;
    workshop.server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_agent_resolves_a_conflict_with_a_base_that_moved() {
    let workshop = Workshop::start().await;
    let Workshop { git: git_server, forge, server } = &workshop;
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refused_push_shows_the_remotes_words_and_continues_on_request() {
    let workshop = Workshop::start().await;
    let Workshop { git: git_server, forge, server } = &workshop;
    git_server.write_hook(NAME, "pre-receive", "#!/bin/sh\necho 'commits need a sign-off' >&2\nexit 1\n");
    let body = json!({ "repo": workshop.repo(), "prompt": "edit a.txt a", "git": { "publish": "pull_request" } });
    let id = server.create_sandbox(body).await;
    let failed = server.wait_until_ended(&id).await;
    assert_eq!(failed["reason"]["code"], "results_unpublished", "{failed}");
    assert!(failed["reason"]["detail"].as_str().unwrap().contains("commits need a sign-off"), "{failed}");
    let session = &failed["session_id"];
    let events = workshop.events_of(session).await;
    let refused = event_data(&events, "git.push_failed");
    assert_eq!((refused.len(), refused[0]["code"].as_str()), (1, Some("push_declined")), "{refused:?}");
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

/// A request of the workflow whose effect happens, and whose response the server does not live to see.
#[derive(Debug, Clone, Copy)]
enum KillPoint {
    Git(&'static str),
    /// After the pull request is open.
    LaterGit(&'static str),
    Forge(&'static str, &'static str),
}

const KILL_POINTS: [KillPoint; 7] = [
    KillPoint::Git("POST /octo/hello.git/git-upload-pack"),
    KillPoint::Git("service=git-receive-pack"),
    KillPoint::Git("POST /octo/hello.git/git-receive-pack"),
    KillPoint::Forge("GET", "/pulls"),
    KillPoint::Forge("POST", "/pulls"),
    KillPoint::Forge("PUT", "/merge"),
    KillPoint::LaterGit("POST /octo/hello.git/git-receive-pack"),
];

impl Workshop {
    fn hold(&self, point: KillPoint) {
        match point {
            KillPoint::Git(text) | KillPoint::LaterGit(text) => self.git.hold_responses(Some(text)),
            KillPoint::Forge(method, path_end) => self.forge.inject_fault(Fault::HeldResponse { method, path_end }),
        }
    }

    fn count_held(&self, point: KillPoint) -> usize {
        match point {
            KillPoint::Git(text) | KillPoint::LaterGit(text) => {
                self.git.requests().iter().filter(|request| request.contains(text)).count()
            }
            KillPoint::Forge(method, path_end) => {
                let is_held = |path: &str| path.split('?').next().is_some_and(|path| path.ends_with(path_end));
                self.forge.requests().iter().filter(|r| r.method == method && is_held(&r.path)).count()
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_at_a_step_loses_and_repeats_nothing() {
    let mut rng = StdRng::seed_from_u64(scale::choose_seed("branch workflow"));
    let first = rng.random_range(0..KILL_POINTS.len());
    for number in 0..scale::scale_count(KILL_POINTS.len()) {
        let point = KILL_POINTS[(first + number) % KILL_POINTS.len()];
        publish_with_a_kill_at(point).await;
    }
}

async fn publish_with_a_kill_at(point: KillPoint) {
    let mut workshop = Workshop::start().await;
    let ticket = workshop.create_ticket(json!({ "title": "Add numbers" })).await;
    let settings = json!({ "publish": "pull_request", "merge": true });
    let body = json!({ "ticket_id": ticket["id"], "repo": workshop.repo(), "prompt": "wait 0.5\nedit a.txt a", "git": settings });
    let id = workshop.server.create_sandbox(body).await;
    let row = workshop.server.wait_until(&id, |row| row["state"] == "running").await;
    // The mirror must fetch something.
    workshop.git.commit(NAME, "main", "other.txt", "other\n");
    if let KillPoint::LaterGit(_) = point {
        workshop.forge.delay_mergeability(NAME, 2);
        let opened = async || if workshop.forge_changes("POST", "/pulls") > 0 { Ok(()) } else { Err(point) };
        try_poll_for(opened).await.unwrap();
    }
    let before = workshop.count_held(point);
    workshop.hold(point);
    let held = try_poll_for(async || if workshop.count_held(point) > before { Ok(()) } else { Err(point) });
    held.await.unwrap();
    block_in_place(|| workshop.server.process.kill());
    workshop.git.hold_responses(None);
    workshop.forge.clear_faults();
    block_in_place(|| workshop.server.process.restart());

    let session = &row["session_id"];
    workshop.wait_until_done(session).await;
    let ended = workshop.server.wait_until_ended(&id).await;
    assert_eq!(ended["outcome"], "succeeded", "{point:?}: {ended}");
    assert_eq!(workshop.forge.pull_requests(NAME), [(1, "merged".to_owned())], "{point:?}");
    assert_eq!(workshop.forge_changes("POST", "/pulls"), 1, "{point:?}");
    assert_eq!(workshop.forge_changes("PUT", "/merge"), 1, "{point:?}");
    assert_eq!(workshop.main_subjects().matches("Add numbers").count(), 1, "{point:?}");
    assert_eq!(git(&workshop.git.path(NAME), ["show", "main:a.txt"]), "a");
    assert_eq!(git(&workshop.git.path(NAME), ["for-each-ref", "--format=%(refname)", "refs/heads"]), "refs/heads/main");
    let events = workshop.events_of(session).await;
    for event_type in ["git.pushed", "git.pr_created", "git.merge_completed", "git.branch_removed"] {
        assert_eq!(event_data(&events, event_type).len(), 1, "{point:?} {event_type}: {events:#?}");
    }
    assert_eq!(workshop.read_ticket(&ticket).await["status"], "done");
    workshop.server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn branches_of_dependent_tickets_follow_a_merge() {
    let workshop = Workshop::start().await;
    let Workshop { git: git_server, server, .. } = &workshop;
    let first = workshop.create_ticket(json!({ "title": "First" })).await;
    let second = workshop.create_ticket(json!({ "title": "Second", "depends_on": ["ATL-1"] })).await;
    let request = |ticket: &Value, file: &str, merge: bool| {
        let git = json!({ "publish": "pull_request", "merge": merge });
        json!({ "ticket_id": ticket["id"], "repo": workshop.repo(), "prompt": format!("edit {file} text"), "git": git })
    };
    let id = server.create_sandbox(request(&second, "second.txt", false)).await;
    let dependant = server.wait_until_ended(&id).await["session_id"].clone();
    let before = git_server.branch(NAME, "feature/ATL-2-second").unwrap();
    let id = server.create_sandbox(request(&first, "first.txt", true)).await;
    let merged = server.wait_until_ended(&id).await["session_id"].clone();
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
