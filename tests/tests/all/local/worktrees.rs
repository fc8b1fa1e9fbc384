//! `atoll code`: a worktree goes into its sandbox as it is, and the agent's changes come back.

mod call_options;
pub mod code_call;
mod interrupted_calls;

use atoll_test_wait::wait_until;
use atoll_tests::local::LocalServer;
use atoll_tests::local::repository::{SampleRepository, run_git};
use code_call::{ask_demo, find_worktree_sandbox, finish, read_lock, run_code, spawn_code, stop_all, worktree_files};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dirty_worktree_goes_in_and_the_changes_come_back() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let root = repository.path();
    repository.write("calc.py", "def add(a, b):\n    return a + b  # staged\n");
    repository.run_git(&["add", "calc.py"]);
    repository.run_git(&["mv", "old.txt", "renamed.txt"]);
    repository.write("README.md", "# calc\n\nunstaged\n");
    fs::remove_file(root.join("test_calc.py")).unwrap();
    repository.write("-n", "dash\n");
    repository.write("ä ö.txt", "untracked\n");
    fs::write(root.join("binary"), [0, 255, 1]).unwrap();
    repository.write("run.sh", "#!/bin/sh\n");
    fs::set_permissions(root.join("run.sh"), Permissions::from_mode(0o755)).unwrap();
    symlink("README.md", root.join("link")).unwrap();
    fs::create_dir_all(root.join("build")).unwrap();
    repository.write("build/ignored", "secret\n");
    fs::create_dir_all(root.join("empty/inner")).unwrap();
    let (before, staged) = (worktree_files(root), repository.run_git(&["diff", "--cached", "--raw"]));

    let check = "run test -f ./-n && test -x run.sh && test -L link && test -d empty/inner && test ! -e build && \
                 test ! -e test_calc.py && git diff --cached --name-only | grep -q calc.py && echo arrived > seen.txt";
    let prompt = format!("{check}\nedit new.txt hello\nrun rm renamed.txt\nrun chmod -x run.sh");
    let call = run_code(&server, root, &ask_demo(&prompt));
    assert_eq!(call.exit, Some(0), "{:#?}", call.lines);
    assert_eq!(call.lines[0]["type"], "started", "{:#?}", call.lines[0]);
    let phases: Vec<_> = call.of_type("phase").iter().map(|line| line["phase"].clone()).collect();
    assert_eq!(phases, ["sync_in", "agent", "sync_out"]);
    assert!(!call.of_type("agent.tool_use").is_empty(), "events are printed unchanged");
    assert_eq!((&call.done()["files_changed"], &call.done()["files_deleted"]), (&3.into(), &1.into()));
    let mut expected = before.clone();
    expected.remove(Path::new("renamed.txt")).unwrap();
    expected.insert("new.txt".into(), b"hello\n".to_vec());
    expected.insert("seen.txt".into(), b"arrived\n".to_vec());
    assert_eq!(worktree_files(root), expected);
    assert_eq!(fs::metadata(root.join("run.sh")).unwrap().permissions().mode() & 0o111, 0);
    assert_eq!(repository.run_git(&["diff", "--cached", "--raw"]), staged, "staged stays staged");

    // The second call uses the same sandbox and session and sends only what changed.
    repository.write("new.txt", "hello\nuser\n");
    let second = run_code(&server, root, &ask_demo("run cat new.txt > copy.txt"));
    assert_eq!((second.exit, second.sandbox()), (Some(0), call.sandbox()));
    assert_eq!(second.done()["session"], call.done()["session"]);
    assert_eq!(fs::read_to_string(root.join("copy.txt")).unwrap(), "hello\nuser\n");
    let events = server.admin.all_events(&call.sandbox()).await;
    let synced: Vec<u64> = events
        .iter()
        .filter(|event| event["type"] == "worktree.synced_in")
        .map(|event| event["data"]["bytes"].as_u64().unwrap())
        .collect();
    assert!(synced.len() == 2 && synced[1] < synced[0] / 2, "{synced:?}");

    // Undo, and pull again.
    assert_eq!(run_code(&server, root, &["--undo"]).exit, Some(0));
    assert!(!root.join("copy.txt").exists());
    assert_eq!(run_code(&server, root, &["--pull"]).exit, Some(0));
    assert!(root.join("copy.txt").exists());
    stop_all(server, &[&call.sandbox()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_conflict_overwrites_nothing_and_a_choice_resolves_it() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let root = repository.path();
    let call = run_code(&server, root, &[&ask_demo("edit README.md agent")[..], &["--apply", "never"]].concat());
    assert_eq!(call.exit, Some(0), "{:#?}", call.lines);
    repository.write("README.md", "user\n");
    let before = worktree_files(root);
    let pulled = run_code(&server, root, &["--pull"]);
    assert_eq!((pulled.exit, pulled.done()["conflicts"].as_i64()), (Some(3), Some(1)), "{:#?}", pulled.lines);
    assert_eq!(pulled.of_type("error")[0]["kind"], "work");
    assert_eq!(worktree_files(root), before);
    assert_eq!(run_code(&server, root, &["--pull", "--as-branch", "agent/readme"]).exit, Some(0));
    assert_eq!(worktree_files(root), before);
    assert_eq!(repository.file_at("agent/readme", "README.md").as_deref(), Some("agent\n"));
    assert_eq!(run_code(&server, root, &["--pull", "--theirs"]).exit, Some(0));
    assert_eq!(fs::read_to_string(root.join("README.md")).unwrap(), "agent\n");
    stop_all(server, &[&call.sandbox()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_applies_nothing_and_a_second_call_names_the_first() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let root = repository.path();
    let before = worktree_files(root);
    let child = block_in_place(|| {
        let child = spawn_code(&server, root, &ask_demo("edit half.txt work\nwait 600"));
        wait_until("the agent to work", || read_lock(root).contains("half.txt"));
        child
    });
    let busy = run_code(&server, root, &ask_demo("say no"));
    assert_eq!(busy.exit, Some(2), "{:#?}", busy.lines);
    let error = busy.of_type("error")[0];
    assert_eq!((error["code"].as_str(), error["kind"].as_str()), (Some("worktree_busy"), Some("provider")));
    assert!(error["detail"].as_str().unwrap().contains(&child.id().to_string()), "{error}");
    let sandbox = find_worktree_sandbox(&server).await;
    server.wait_for_event(&sandbox, |event| event["type"] == "agent.file_edited").await;
    let interrupted = block_in_place(|| {
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
        finish(child)
    });
    assert_eq!(interrupted.exit, Some(130), "{:#?}", interrupted.lines);
    assert_eq!(worktree_files(root), before, "nothing is applied");
    let pulled = run_code(&server, root, &["--pull"]);
    assert_eq!(pulled.exit, Some(0), "{:#?}", pulled.lines);
    assert_eq!(fs::read_to_string(root.join("half.txt")).unwrap(), "work\n");
    stop_all(server, &[&sandbox]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_worktree_ends_its_sandbox() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let parent = atoll_tests::local::create_temp_dir("atoll-linked-");
    let linked = parent.path().join("linked");
    repository.run_git(&["worktree", "add", "-q", linked.to_str().unwrap()]);
    let call = run_code(&server, &linked, &ask_demo("edit here.txt yes"));
    assert_eq!(call.exit, Some(0), "{:#?}", call.lines);
    assert!(linked.join("here.txt").exists() && !repository.path().join("here.txt").exists());
    run_git(repository.path(), &["worktree", "remove", "--force", linked.to_str().unwrap()]);
    // The server is on the same machine and notices it.
    assert_eq!(server.wait_until_ended(&call.sandbox()).await["reason"]["code"], "worktree_removed");
    server.stop_and_check().await;
}
