//! References to sandboxes and sessions, lists, removal and the stored state, with the `fake` provider.

use crate::program::{Running, atoll, objects, serve, text};
use atoll_test_wait::wait_for;
use serde_json::Value;
use std::path::Path;
use std::process::Output;

const NEW: [&str; 6] = ["sandbox", "new", "--provider", "fake", "--end", "keep"];

fn run(data_dir: &Path, arguments: &[&str]) -> Output {
    atoll(data_dir).args(arguments).output().unwrap()
}

/// Runs a command that succeeds, and returns its stdout.
fn done(data_dir: &Path, arguments: &[&str]) -> String {
    let output = run(data_dir, arguments);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// Runs a command that fails with exit code 2, and returns its stderr.
fn refused(data_dir: &Path, arguments: &[&str]) -> String {
    let output = run(data_dir, arguments);
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stdout));
    text(&output.stderr)
}

fn create(data_dir: &Path, flags: &[&str]) -> Value {
    let arguments = [&NEW[..], flags, &["--json"]].concat();
    let output = run(data_dir, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    objects(&output).remove(0)
}

fn shown_id(data_dir: &Path, reference: &str) -> String {
    let shown = run(data_dir, &["sandbox", "show", reference, "--json"]);
    assert_eq!(shown.status.code(), Some(0), "{reference}: {}", text(&shown.stderr));
    objects(&shown)[0]["id"].as_str().unwrap().to_owned()
}

struct Fixture {
    dir: tempfile::TempDir,
    server: Option<Running>,
}

impl Fixture {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (server, _) = serve(dir.path(), "127.0.0.1:0");
        Self { dir, server: Some(server) }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

#[test]
fn a_reference_is_an_id_a_part_of_it_a_name_or_last() {
    let fixture = Fixture::start();
    let dir = fixture.path();
    let first = create(dir, &["--name", "web", "--title", "the web page"]);
    let second = create(dir, &["--title", "the parser"]);
    let [first, second] = [first, second].map(|created| created["id"].as_str().unwrap().to_owned());
    assert_eq!(shown_id(dir, "web"), first);
    assert_eq!(shown_id(dir, "last"), second);
    assert_eq!(shown_id(dir, &first[first.len() - 6..]), first);
    assert_eq!(shown_id(dir, &second[..second.len() - 2]), second);
    assert_eq!(shown_id(dir, &second[4..second.len() - 2]), second, "without sbx_");

    // Ids begin with their creation time.
    let ambiguous = refused(dir, &["sandbox", "show", &first[..8]]);
    assert!(ambiguous.contains("matches 2 sandboxes (ambiguous)"), "{ambiguous}");
    assert!(ambiguous.contains("the web page") && ambiguous.contains("the parser"), "{ambiguous}");
    let unknown = refused(dir, &["logs", "nothing-like-it"]);
    assert!(
        unknown.contains("no sandbox matches `nothing-like-it`") && unknown.contains("atoll ls --all"),
        "{unknown}"
    );

    let session = objects(&run(dir, &["session", "show", "web", "--json"])).remove(0);
    assert_eq!(session["sandbox_id"], first.as_str());
    done(dir, &["send", "web", "say hello", "--wait"]);
    done(dir, &["sandbox", "exec", "web", "--no-stdin", "--", "echo", "x"]);
    std::fs::write(dir.join("a.txt"), "x").unwrap();
    done(dir, &["sandbox", "cp", "a.txt", "web:a.txt"]);
}

#[test]
fn a_name_is_unique_among_live_sandboxes() {
    let fixture = Fixture::start();
    let dir = fixture.path();
    let first = create(dir, &["--name", "web"]);
    let taken = refused(dir, &[&NEW[..], &["--name", "web"]].concat());
    assert!(taken.contains("there is already a live sandbox named `web`") && taken.contains("name_taken"), "{taken}");
    for bad in ["last", "sbx_1", "A B"] {
        let refusal = refused(dir, &[&NEW[..], &["--name", bad]].concat());
        assert!(refusal.contains("name: "), "{refusal}");
    }
    let stopped = done(dir, &["sandbox", "stop", "web"]);
    assert!(stopped.contains("is completed"), "the command waits: {stopped}");
    let second = create(dir, &["--name", "web"]);
    assert_ne!(first["id"], second["id"]);
    assert_eq!(shown_id(dir, "web"), second["id"], "the live one");
}

#[test]
fn lists_show_running_sandboxes_and_omit_removed_ones() {
    let fixture = Fixture::start();
    let dir = fixture.path();
    create(dir, &["--name", "old", "--title", "the old one"]);
    create(dir, &["--name", "new", "--title", "the new one"]);
    done(dir, &["sandbox", "stop", "old"]);
    let listed = done(dir, &["ls"]);
    assert!(listed.contains("the new one") && !listed.contains("the old one"), "{listed}");
    assert!(done(dir, &["ls", "--all"]).contains("the old one"));

    done(dir, &["sandbox", "rm", "old"]);
    assert!(!done(dir, &["ls", "--all"]).contains("the old one"));
    assert!(done(dir, &["ls", "--archived"]).contains("the old one"));
    assert!(done(dir, &["logs", "old"]).contains("session"), "its log stays");
    let session = objects(&run(dir, &["session", "show", "old", "--json"])).remove(0);
    let id = session["id"].as_str().unwrap();
    assert!(done(dir, &["session", "ls"]).contains(id));
    done(dir, &["session", "rm", id]);
    assert!(!done(dir, &["session", "ls"]).contains(id));
    assert!(done(dir, &["session", "ls", "--archived"]).contains(id));
    let busy = refused(dir, &["session", "rm", "new"]);
    assert!(busy.contains("session_busy"), "{busy}");
}

#[test]
fn destructive_commands_need_a_confirmation() {
    let fixture = Fixture::start();
    let dir = fixture.path();
    create(dir, &["--name", "web", "--title", "the web page"]);
    for arguments in [&["sandbox", "rm", "web"][..], &["sandbox", "stop", "web", "--discard"]] {
        let refusal = refused(dir, arguments);
        assert!(refusal.contains("(the web page)") && refusal.contains("--yes"), "{refusal}");
    }
    assert!(done(dir, &["ls"]).contains("the web page"), "nothing happened");
    done(dir, &["sandbox", "rm", "web", "--yes"]);
    wait_for("the end of the sandbox", || (!done(dir, &["ls"]).contains("the web page")).then_some(()));
    let refusal = refused(dir, &["gc", "--all"]);
    assert!(refusal.contains("removes the logs of") && refusal.contains("--yes"), "{refusal}");
    done(dir, &["gc", "--all", "--dry-run"]);
    done(dir, &["gc", "--all", "--yes"]);
    assert!(refused(dir, &["snapshot", "rm", "x"]).contains("removes the snapshot `x`"));
}

#[test]
fn a_detached_run_prints_the_next_commands() {
    let fixture = Fixture::start();
    let dir = fixture.path();
    let detached = done(dir, &["run", "say begun\nwait 600", "--provider", "fake", "--name", "slow", "--detach"]);
    for command in ["atoll attach slow", "atoll send slow", "atoll sandbox stop slow"] {
        assert!(detached.contains(command), "{detached}");
    }
    // Without a terminal, attach prints the steps until the sandbox ends.
    let mut attach = atoll(dir);
    attach.args(["attach", "slow"]);
    let mut attached = Running::start(attach);
    attached.until("begun");
    attached.signal(rustix::process::Signal::TERM);
    let (code, rest, _) = attached.end();
    assert_eq!(code, Some(0));
    assert!(rest.contains("slow keeps running"), "{rest}");
    assert!(done(dir, &["ls"]).contains("slow"), "leaving does not stop the sandbox");
    done(dir, &["sandbox", "stop", "slow"]);
    let ended = refused(dir, &["attach", "slow"]);
    assert!(ended.contains("has ended") && ended.contains("atoll logs slow"), "{ended}");
}

#[test]
fn a_detached_run_needs_a_server() {
    let dir = tempfile::tempdir().unwrap();
    let refusal = refused(dir.path(), &["run", "say x", "--provider", "fake", "--detach"]);
    assert!(refusal.contains("needs a running server") && refusal.contains("atoll serve"), "{refusal}");
}

#[test]
fn ended_sandboxes_can_be_read_without_a_server() {
    let mut fixture = Fixture::start();
    create(fixture.path(), &["--name", "web", "--title", "the web page"]);
    done(fixture.path(), &["send", "web", "say hello there", "--wait"]);
    done(fixture.path(), &["sandbox", "stop", "web"]);
    drop(fixture.server.take());
    let dir = fixture.path();
    let listed = run(dir, &["ls", "--all"]);
    assert!(text(&listed.stdout).contains("the web page"), "{}", text(&listed.stderr));
    assert!(text(&listed.stderr).contains("no server runs"), "{}", text(&listed.stderr));
    assert!(done(dir, &["logs", "web"]).contains("hello there"));
    assert!(done(dir, &["sandbox", "show", "web"]).contains("completed"));
    assert!(done(dir, &["replay", "web", "--speed", "1000"]).contains("hello there"));
    let refusal = refused(dir, &["sandbox", "stop", "web"]);
    assert!(refusal.contains("atoll serve"), "{refusal}");
    // Reading takes no lock.
    let (_server, _) = serve(dir, "127.0.0.1:0");
    assert!(done(dir, &["logs", "web"]).contains("hello there"));
    let empty = tempfile::tempdir().unwrap();
    assert!(refused(empty.path(), &["ls"]).contains("no server found"));
}
