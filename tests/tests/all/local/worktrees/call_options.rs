//! Options of `atoll code`, and directories that it refuses.

use super::code_call::{ask_demo, finish, read_lock, run_code, spawn_code, stop_all, worktree_files};
use atoll_test_wait::wait_until;
use atoll_tests::local::LocalServer;
use atoll_tests::local::repository::{SampleRepository, run_git};
use std::fs;
use tokio::task::block_in_place;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_continues_a_session_waits_its_turn_and_uses_a_new_sandbox() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let root = repository.path();
    fs::create_dir(root.join("inner")).unwrap();
    repository.write("inner/file.txt", "inner\n");
    let before = worktree_files(root);
    let prompt = ask_demo("run test -f inner/file.txt\nedit half.txt work\nwait 600");
    let late = run_code(&server, &root.join("inner"), &[&prompt[..], &["--timeout", "2"]].concat());
    assert_eq!((late.exit, late.of_type("error")[0]["code"].as_str()), (Some(1), Some("timeout")), "{:#?}", late.lines);
    assert_eq!(worktree_files(root), before, "nothing is applied after a failure");

    let session = late.done()["session"].as_str().unwrap().to_owned();
    let asked = run_code(&server, root, &["say hello", "--session", &session, "--apply", "ask"]);
    assert_eq!((asked.exit, asked.of_type("error")[0]["code"].as_str()), (Some(2), Some("bad_input")), "no terminal");
    let again = run_code(&server, root, &["say hello", "--session", &session]);
    assert_eq!((again.exit, again.done()["session"].as_str()), (Some(0), Some(&*session)), "{:#?}", again.lines);
    assert_eq!(again.sandbox(), late.sandbox());
    assert_eq!(fs::read_to_string(root.join("half.txt")).unwrap(), "work\n", "the work of the earlier turn comes too");

    // Two calls at once: the second one waits.
    let gate = "run until test -e /tmp/go; do sleep 0.05; done\nedit first.txt 1";
    let first = block_in_place(|| {
        let first = spawn_code(&server, root, &ask_demo(gate));
        wait_until("the first call to hold the lock", || read_lock(root).contains("run until"));
        first
    });
    let second =
        spawn_code(&server, root, &[&ask_demo("run test -f first.txt\nedit second.txt 2")[..], &["--wait"]].concat());
    server.run_shell(&again.sandbox(), "touch /tmp/go").await.expect_success();
    let (first, second) = block_in_place(|| (finish(first), finish(second)));
    assert_eq!((first.exit, second.exit), (Some(0), Some(0)), "{:#?} {:#?}", first.lines, second.lines);
    assert!(root.join("first.txt").exists() && root.join("second.txt").exists());

    let new =
        run_code(&server, root, &[&ask_demo("run test -f second.txt\nedit third.txt 3")[..], &["--new"]].concat());
    assert_eq!(new.exit, Some(0), "{:#?}", new.lines);
    assert_ne!(new.sandbox(), again.sandbox());
    let pulled = run_code(&server, root, &["--pull"]);
    assert_eq!((pulled.exit, pulled.sandbox()), (Some(0), new.sandbox()), "the newest sandbox is the worktree's");
    stop_all(server, &[&again.sandbox(), &new.sandbox()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_without_a_worktree_are_refused() {
    let (server, repository) = (LocalServer::start(), SampleRepository::create());
    let dir = atoll_tests::local::create_temp_dir("atoll-no-worktree-");
    let bare = dir.path().join("bare.git");
    fs::create_dir(&bare).unwrap();
    run_git(&bare, &["init", "-q", "--bare"]);
    for (directory, code) in [(dir.path(), "not_a_repository"), (&bare, "no_worktree")] {
        let call = run_code(&server, directory, &ask_demo("say hello"));
        assert_eq!(call.exit, Some(2), "{:#?}", call.lines);
        assert_eq!(call.lines[0]["code"].as_str(), Some(code), "{:#?}", call.lines);
    }
    let pulled = run_code(&server, repository.path(), &["--pull"]);
    assert_eq!((pulled.exit, pulled.lines[0]["code"].as_str()), (Some(2), Some("no_sandbox")), "{:#?}", pulled.lines);
    let undone = run_code(&server, repository.path(), &["--undo"]);
    assert_eq!((undone.exit, undone.lines[0]["code"].as_str()), (Some(2), Some("nothing_to_undo")));
    server.stop_and_check().await;
}
