//! The server is killed at each step of a branch workflow. Nothing is lost, and nothing happens twice.

use super::workshop::{NAME, Workshop};
use atoll_test_wait::try_poll_for;
use atoll_tests::forge_double::Fault;
use atoll_tests::git_server::{git, try_git};
use atoll_tests::local::event_data;
use atoll_tests::scale;
use rand::RngExt;
use rand::SeedableRng;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use tokio::task::block_in_place;

/// The commit of a ref in the server's mirror.
fn mirror_ref(workshop: &Workshop, name: &str) -> Option<String> {
    let mirrors = std::fs::read_dir(workshop.server.data_dir().join("mirrors")).ok()?;
    mirrors.flatten().filter(|mirror| mirror.path().is_dir()).find_map(|mirror| {
        let (found, commit) = try_git(&mirror.path(), ["rev-parse", "-q", "--verify", name]);
        found.then_some(commit)
    })
}

fn mirror_branch(workshop: &Workshop, branch: &str) -> Option<String> {
    mirror_ref(workshop, &format!("refs/heads/{branch}"))
}

/// Waits until the condition is true, kills the server, ends all faults and starts the server again.
async fn kill_when(workshop: &mut Workshop, what: &str, is_reached: impl Fn(&Workshop) -> bool) {
    let polled = try_poll_for(async || if is_reached(workshop) { Ok(()) } else { Err(()) });
    polled.await.unwrap_or_else(|()| panic!("not reached: {what}"));
    block_in_place(|| workshop.server.process.kill());
    workshop.git.hold_responses(None);
    workshop.forge.clear_faults();
    block_in_place(|| workshop.server.process.restart());
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
    kill_when(&mut workshop, &format!("{point:?}"), |workshop| workshop.count_held(point) > before).await;

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

/// The moment of a kill while the branch of a dependent ticket moves.
#[derive(Debug, Clone, Copy)]
enum DependantKill {
    /// The mirror has the new base.
    Fetched,
    /// The branch has moved in the mirror.
    Moved,
    /// The branch has moved at the remote.
    Pushed,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_while_a_dependent_branch_moves_loses_and_repeats_nothing() {
    let mut rng = StdRng::seed_from_u64(scale::choose_seed("killed dependants"));
    let kills = [DependantKill::Fetched, DependantKill::Moved, DependantKill::Pushed];
    let first = rng.random_range(0..kills.len());
    for number in 0..scale::scale_count(kills.len()) {
        move_dependant_with_a_kill(kills[(first + number) % kills.len()]).await;
    }
}

async fn move_dependant_with_a_kill(kill: DependantKill) {
    let mut workshop = Workshop::start().await;
    let first = workshop.create_ticket(json!({ "title": "First" })).await;
    let second = workshop.create_ticket(json!({ "title": "Second", "depends_on": ["ATL-1"] })).await;
    let branch = "feature/ATL-2-second";
    let dependant = workshop.publish_ticket(&second, "edit second.txt text", false).await;
    let before = workshop.git.branch(NAME, branch);
    let old_base = workshop.git.branch(NAME, "main");
    let merged = workshop.publish_ticket(&first, "edit first.txt text", false).await;
    let merge = json!({ "session_id": merged });
    workshop.server.admin.post("/branch-workflow/merge", merge).await.expect_status(200);
    let is_reached = |workshop: &Workshop| match kill {
        DependantKill::Fetched => mirror_ref(workshop, "refs/remotes/origin/main") != old_base,
        DependantKill::Moved => mirror_branch(workshop, branch) != before,
        DependantKill::Pushed => workshop.git.branch(NAME, branch) != before,
    };
    kill_when(&mut workshop, &format!("{kill:?}"), is_reached).await;

    workshop.wait_until_done(&merged).await;
    let moved =
        |progress: &Value| progress["state"] == "done" && progress["pushed_commit"].as_str() != before.as_deref();
    let progress = workshop.wait_for_progress(&dependant, moved).await;
    assert_eq!(workshop.git.branch(NAME, branch).as_deref(), progress["pushed_commit"].as_str(), "{kill:?}");
    let subjects = git(&workshop.git.path(NAME), ["log", "--format=%s", &format!("main..{branch}")]);
    assert_eq!(subjects, "Second", "{kill:?}: only its own commit, on top of the new base");
    assert_eq!(workshop.main_subjects().matches("First").count(), 1, "{kill:?}");
    let events = workshop.events_of(&dependant).await;
    for (event_type, count) in [("git.branch_updated", 1), ("git.pushed", 2), ("git.pr_created", 1)] {
        assert_eq!(event_data(&events, event_type).len(), count, "{kill:?} {event_type}: {events:#?}");
    }
    workshop.server.stop_and_check().await;
}
