//! What is said at every kind of end, and the exit code that goes with it.

use super::*;
use crate::reading::entry::Entry;
use crate::run::story::Answers;

fn story(events: &[(&str, Value)]) -> Story {
    let mut story = Story::new(Answers::Command);
    for (event_type, data) in events {
        let event = json!({ "seq": 1, "type": event_type, "at": "2026-01-31T12:00:00Z", "turn": 1, "data": data });
        story.take(&Entry::parse(&event.to_string()).unwrap());
    }
    story
}

fn ending(story: &Story, left: Left) -> Ending<'_> {
    Ending {
        left,
        story,
        interrupted: false,
        sandbox: "sbx_1",
        elapsed: Duration::from_secs(72),
        repo: Some(Path::new("/src/x y")),
        in_repo: false,
        patch: None,
        inside: Some(Path::new("/data")),
    }
}

fn shown(ending: &Ending<'_>) -> String {
    let lines: Vec<_> = ending.lines().iter().map(|line| line.painted(false)).collect();
    format!("{}\n=> exit {} {}", lines.join("\n"), ending.exit(), ending.object())
}

fn running() -> (&'static str, Value) {
    ("sandbox.running", json!({}))
}

fn failed(code: &str, detail: &str) -> (&'static str, Value) {
    ("sandbox.failed", json!({"outcome": "failed", "reason": {"code": code, "detail": detail}}))
}

fn branch() -> (&'static str, Value) {
    let files = json!([
        {"path": "src/a.rs", "change": "modified", "added": 2, "removed": 1},
        {"path": "NOTES.md", "change": "added", "added": 3, "removed": 0},
    ]);
    let data = json!({"branch": "atoll/fix-it", "commit": "9f", "base": "1a2b3c4d5e6f", "commits": 1, "files": files,
                      "flagged": [".github/workflows/test.yml"]});
    ("git.branch_created", data)
}

fn completed(outcome: &str) -> (&'static str, Value) {
    let reason = (outcome == "cancelled").then(|| json!({"code": "stopped", "detail": "a person stopped it"}));
    ("sandbox.completed", json!({"outcome": outcome, "reason": reason}))
}

#[test]
fn done_with_a_branch() {
    let story = story(&[running(), branch(), completed("succeeded")]);
    let patch = "diff --git a/src/a.rs b/src/a.rs\n@@ -1 +1,2 @@\n-old\n+new\n+more\n";
    let ending = Ending { patch: Some(patch), ..ending(&story, Left::Ended) };
    insta::assert_snapshot!("branch", shown(&ending));
    let long = "+x\n".repeat(61);
    let ending = Ending { patch: Some(&long), in_repo: true, inside: None, ..ending };
    insta::assert_snapshot!("branch_with_a_long_patch", shown(&ending));
}

#[test]
fn done_without_a_repository_or_without_a_change() {
    let nothing = story(&[running(), ("git.nothing_changed", json!({})), completed("succeeded")]);
    let edit = json!({"file_path": "a.txt", "change_type": "created", "lines_added": 1});
    let no_repo = story(&[running(), ("agent.file_edited", edit), completed("succeeded")]);
    let no_repo = Ending { repo: None, ..ending(&no_repo, Left::Ended) };
    insta::assert_snapshot!("no_branch", format!("{}\n{}", shown(&ending(&nothing, Left::Ended)), shown(&no_repo)));
}

#[test]
fn failed_in_every_way() {
    let oom =
        json!({"reason": "out_of_memory", "error": "killed", "memory_limit": 4_i64 << 30, "memory_peak": 4_i64 << 30});
    let stories = [
        story(&[
            running(),
            ("agent.failed", oom),
            failed("out_of_memory", "killed"),
            branch(),
            failed("out_of_memory", "killed"),
        ]),
        story(&[running(), failed("agent_crashed", "the agent crashed (signal 6)")]),
        story(&[failed("provider_failed", "no sandbox can be made here")]),
        story(&[running(), failed("sandbox_lost", "its provider no longer has it")]),
        story(&[running(), failed("results_failed", "the branch could not be made")]),
    ];
    let all: Vec<_> = stories.iter().map(|story| shown(&ending(story, Left::Ended))).collect();
    insta::assert_snapshot!("failures", all.join("\n"));
}

#[test]
fn left_in_every_way() {
    let going = story(&[running()]);
    let stopped = story(&[running(), branch(), completed("cancelled")]);
    let own = Ending { interrupted: true, ..ending(&stopped, Left::Ended) };
    let all = [
        shown(&ending(&going, Left::Running)),
        shown(&ending(&going, Left::Kept)),
        shown(&ending(&going, Left::Aborted)),
        shown(&own),
        shown(&ending(&stopped, Left::Ended)),
    ];
    insta::assert_snapshot!("left", all.join("\n"));
}
