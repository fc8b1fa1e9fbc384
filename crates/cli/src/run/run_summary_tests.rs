//! Summaries and exit codes of every kind of end.

use super::*;
use crate::event_log::log_event::testing::event;
use crate::run::progress::AnswerMode;

fn progress_after(events: &[(&str, Value)]) -> RunProgress {
    let mut progress = RunProgress::new(AnswerMode::Command);
    for (event_type, data) in events {
        progress.apply(&event(event_type, Some(1), data));
    }
    progress
}

fn summary_of(progress: &RunProgress, end: WatchEnd) -> RunSummary<'_> {
    RunSummary {
        end,
        progress,
        interrupted: false,
        sandbox: "sbx_1",
        reference: "zj4ref",
        usage: None,
        elapsed: Duration::from_secs(72),
        repo: Some(Path::new("/src/x y")),
        in_repo: false,
        patch: None,
        data_dir: Some(Path::new("/data")),
    }
}

fn summary_text(summary: &RunSummary<'_>) -> String {
    let lines: Vec<_> = summary.lines().iter().map(|line| line.to_ansi(false)).collect();
    format!("{}\n=> exit {} {}", lines.join("\n"), summary.exit_code(), summary.to_json())
}

fn running_event() -> (&'static str, Value) {
    ("sandbox.running", json!({"state": "running", "outcome": null, "reason": null}))
}

fn failed_event(code: &str, detail: &str) -> (&'static str, Value) {
    ("sandbox.failed", json!({"state": "failed", "outcome": "failed", "reason": {"code": code, "detail": detail}}))
}

fn branch_event() -> (&'static str, Value) {
    let files = json!([
        {"path": "src/a.rs", "change": "modified", "added": 2, "removed": 1},
        {"path": "NOTES.md", "change": "added", "added": 3, "removed": 0},
    ]);
    let data = json!({"branch": "atoll/fix-it", "commit": "9f", "base": "1a2b3c4d5e6f", "commits": 1, "files": files,
                      "flagged": [".github/workflows/test.yml"], "repo": null,
                      "notes": [{"note": "name_taken", "name": "atoll/fix", "text": "the branch atoll/fix already exists"}]});
    ("git.branch_created", data)
}

fn completed_event(outcome: &str) -> (&'static str, Value) {
    let reason = (outcome == "cancelled").then(|| json!({"code": "stopped", "detail": "a person stopped it"}));
    ("sandbox.completed", json!({"state": "completed", "outcome": outcome, "reason": reason}))
}

#[test]
fn done_with_a_branch() {
    let progress = progress_after(&[running_event(), branch_event(), completed_event("succeeded")]);
    let patch = "diff --git a/src/a.rs b/src/a.rs\n@@ -1 +1,2 @@\n-old\n+new\n+more\n";
    let summary = RunSummary { patch: Some(patch), ..summary_of(&progress, WatchEnd::Ended) };
    insta::assert_snapshot!("branch", summary_text(&summary));
    let long = "+x\n".repeat(61);
    let summary = RunSummary { patch: Some(&long), in_repo: true, data_dir: None, ..summary };
    insta::assert_snapshot!("branch_with_a_long_patch", summary_text(&summary));
}

/// A session brings its repository along, and its path can be unknown here.
#[test]
fn a_branch_is_named_without_its_path() {
    let progress = progress_after(&[running_event(), branch_event(), completed_event("succeeded")]);
    let text = summary_text(&RunSummary { repo: None, ..summary_of(&progress, WatchEnd::Ended) });
    assert!(text.contains("branch  atoll/fix-it (1 commit)"), "{text}");
    assert!(!text.contains("gone with the sandbox"), "{text}");
}

#[test]
fn done_without_a_repository_or_without_a_change() {
    let nothing = progress_after(&[
        running_event(),
        ("git.nothing_changed", json!({"base": null, "repo": null})),
        completed_event("succeeded"),
    ]);
    let edit = json!({"file_path": "a.txt", "change_type": "created", "lines_added": 1});
    let no_repo = progress_after(&[running_event(), ("agent.file_edited", edit), completed_event("succeeded")]);
    let no_repo = RunSummary { repo: None, ..summary_of(&no_repo, WatchEnd::Ended) };
    insta::assert_snapshot!(
        "no_branch",
        format!("{}\n{}", summary_text(&summary_of(&nothing, WatchEnd::Ended)), summary_text(&no_repo))
    );
}

#[test]
fn failed_in_every_way() {
    let oom =
        json!({"reason": "out_of_memory", "error": "killed", "memory_limit": 4_i64 << 30, "memory_peak": 4_i64 << 30});
    let runs = [
        progress_after(&[
            running_event(),
            ("agent.failed", oom),
            failed_event("out_of_memory", "killed"),
            branch_event(),
            failed_event("out_of_memory", "killed"),
        ]),
        progress_after(&[running_event(), failed_event("agent_crashed", "the agent crashed (signal 6)")]),
        progress_after(&[failed_event("provider_failed", "no sandbox can be made here")]),
        progress_after(&[running_event(), failed_event("sandbox_lost", "its provider no longer has it")]),
        progress_after(&[running_event(), failed_event("results_failed", "the branch could not be made")]),
    ];
    let all: Vec<_> = runs.iter().map(|progress| summary_text(&summary_of(progress, WatchEnd::Ended))).collect();
    insta::assert_snapshot!("failures", all.join("\n"));
}

#[test]
fn left_in_every_way() {
    let going = progress_after(&[running_event()]);
    let stopped = progress_after(&[running_event(), branch_event(), completed_event("cancelled")]);
    let own = RunSummary { interrupted: true, ..summary_of(&stopped, WatchEnd::Ended) };
    let all = [
        summary_text(&summary_of(&going, WatchEnd::Detached)),
        summary_text(&summary_of(&going, WatchEnd::Kept)),
        summary_text(&summary_of(&going, WatchEnd::Aborted)),
        summary_text(&own),
        summary_text(&summary_of(&stopped, WatchEnd::Ended)),
    ];
    insta::assert_snapshot!("left", all.join("\n"));
}

#[test]
fn shows_tokens_and_cost() {
    let usage = json!({"requests": 2, "input": 1200, "output": 950, "cache_read": 10_000, "cache_write": 0,
                       "cost": 0.0123, "cost_source": "prices"});
    let usage: ModelUsage = serde_json::from_value(usage).unwrap();
    let progress = progress_after(&[running_event(), completed_event("succeeded")]);
    let text = |usage| summary_text(&RunSummary { usage: Some(usage), ..summary_of(&progress, WatchEnd::Ended) });
    assert!(text(&usage).contains("11.2k tokens in (10.0k cached), 950 out, $0.0123"), "{}", text(&usage));
    let unpriced = ModelUsage { cost: None, cache_read: 0, ..usage };
    assert!(text(&unpriced).contains("1.2k tokens in, 950 out, cost unknown"), "{}", text(&unpriced));
}
