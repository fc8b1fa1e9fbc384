use super::super::tests::patch::apply_patch;
use super::*;
use std::time::Duration;

fn make_side<'a>(path: &'a str, text: &'a str) -> Side<'a> {
    Side { path: (!path.is_empty()).then_some(path.as_bytes()), text }
}

fn in_five_seconds() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[test]
fn diffs_a_change_in_the_middle() {
    let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
    let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n";
    let diff = unified_diff(make_side("a.txt", old), make_side("a.txt", new), 50_000, in_five_seconds());
    assert_eq!(diff.text, "--- a/a.txt\n+++ b/a.txt\n@@ -2,8 +2,9 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n 9\n+10\n");
    assert_eq!((diff.added, diff.removed, diff.is_truncated()), (2, 1, false));
}

#[test]
fn diffs_created_and_deleted_files_with_dev_null() {
    let created = unified_diff(make_side("", ""), make_side("new", "one\ntwo"), 50_000, in_five_seconds());
    assert_eq!(created.text, "--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n");
    assert_eq!((created.added, created.removed), (2, 0));
    let deleted = unified_diff(make_side("old", "one\n"), make_side("", ""), 50_000, in_five_seconds());
    assert_eq!(deleted.text, "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n");
    assert_eq!(unified_diff(make_side("", ""), make_side("empty", ""), 50_000, in_five_seconds()), FileDiff::default());
}

#[test]
fn marks_a_missing_final_newline() {
    let diff = unified_diff(make_side("a", "x\ny"), make_side("a", "x\ny\n"), 50_000, in_five_seconds());
    assert_eq!(diff.text, "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n x\n-y\n\\ No newline at end of file\n+y\n");
}

#[test]
fn treats_a_lone_carriage_return_as_text() {
    let diff = unified_diff(make_side("a", "x\ry\nz\r\n"), make_side("a", "x\rY\nz\r\n"), 50_000, in_five_seconds());
    assert_eq!(diff.text, "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n-x\ry\n+x\rY\n z\r\n");
}

#[test]
fn quotes_control_characters_in_names() {
    let diff =
        unified_diff(make_side("a\n+++ b/evil", "x\n"), make_side("q\"t\tz\u{1b}", "y\n"), 50_000, in_five_seconds());
    assert!(diff.text.starts_with("--- \"a/a\\n+++ b/evil\"\n+++ \"b/q\\\"t\\tz\\033\"\n@@"), "{}", diff.text);
}

#[test]
fn counts_all_lines_of_a_truncated_diff() {
    let new: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
    let diff = unified_diff(make_side("", ""), make_side("n", &new), 1_000, in_five_seconds());
    let whole = unified_diff(make_side("", ""), make_side("n", &new), usize::MAX, in_five_seconds());
    assert!(diff.is_truncated() && !whole.is_truncated() && whole.text.starts_with(&diff.text));
    assert_eq!((diff.text.len(), diff.bytes, diff.added), (1_000, whole.text.len() as u64, 10_000));
    let one_line = "ä".repeat(5_000);
    let diff = unified_diff(make_side("", ""), make_side("n", &one_line), 1_000, in_five_seconds());
    assert!(diff.is_truncated() && diff.text.len() > 998);
    assert!(cut_preview(&diff.text, 100).len() > 98);
    assert_eq!(cut_preview("12345\n1234567\n1", 10), "12345\n");
}

/// Two texts with a few repeated common lines: the worst case for the algorithm.
#[test]
fn stays_correct_when_the_deadline_passes() {
    let text = |seed: u64, length: usize| -> String {
        let mut state = seed;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                format!("{}\n", (state >> 33) % 300)
            })
            .collect()
    };
    let (old, new) = (text(1, 60_000), text(2, 60_000));
    let began = Instant::now();
    let diff = unified_diff(make_side("a", &old), make_side("a", &new), usize::MAX, began + Duration::from_millis(200));
    let took = began.elapsed();
    println!("60,000 against 60,000 lines: {took:?}, +{} -{}", diff.added, diff.removed);
    assert!(took < Duration::from_secs(50), "{took:?}");
    assert_eq!(apply_patch(&old, &diff.text).unwrap(), new);
}
