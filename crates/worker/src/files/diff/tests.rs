use super::super::tests::patch::patched;
use super::*;
use std::time::Duration;

fn side<'a>(path: &'a str, text: &'a str) -> Side<'a> {
    Side { path: (!path.is_empty()).then_some(path.as_bytes()), text }
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(5)
}

#[test]
fn a_change_in_the_middle() {
    let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
    let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\n10\n";
    let diff = unified(side("a.txt", old), side("a.txt", new), 50_000, soon());
    assert_eq!(diff.text, "--- a/a.txt\n+++ b/a.txt\n@@ -2,8 +2,9 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n 9\n+10\n");
    assert_eq!((diff.added, diff.removed, diff.truncated), (2, 1, false));
}

#[test]
fn created_and_deleted_files_stand_against_nothing() {
    let created = unified(side("", ""), side("new", "one\ntwo"), 50_000, soon());
    assert_eq!(created.text, "--- /dev/null\n+++ b/new\n@@ -0,0 +1,2 @@\n+one\n+two\n\\ No newline at end of file\n");
    assert_eq!((created.added, created.removed), (2, 0));
    let deleted = unified(side("old", "one\n"), side("", ""), 50_000, soon());
    assert_eq!(deleted.text, "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n");
    assert_eq!(unified(side("", ""), side("empty", ""), 50_000, soon()), Diff::default());
}

#[test]
fn a_newline_at_the_end_that_comes_or_goes() {
    let diff = unified(side("a", "x\ny"), side("a", "x\ny\n"), 50_000, soon());
    assert_eq!(diff.text, "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n x\n-y\n\\ No newline at end of file\n+y\n");
}

#[test]
fn a_carriage_return_alone_ends_no_line() {
    let diff = unified(side("a", "x\ry\nz\r\n"), side("a", "x\rY\nz\r\n"), 50_000, soon());
    assert_eq!(diff.text, "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n-x\ry\n+x\rY\n z\r\n");
}

#[test]
fn names_cannot_add_lines() {
    let diff = unified(side("a\n+++ b/evil", "x\n"), side("q\"t\tz\u{1b}", "y\n"), 50_000, soon());
    assert!(diff.text.starts_with("--- \"a/a\\n+++ b/evil\"\n+++ \"b/q\\\"t\\tz\\033\"\n@@"), "{}", diff.text);
}

#[test]
fn long_diffs_are_cut_and_still_counted() {
    let new: String = (0..10_000).map(|number| format!("line {number}\n")).collect();
    let diff = unified(side("", ""), side("n", &new), 1_000, soon());
    assert!(diff.truncated);
    assert_eq!((diff.text.len(), diff.added), (1_000, 10_000));
    let one_line = "ä".repeat(5_000);
    let diff = unified(side("", ""), side("n", &one_line), 1_000, soon());
    assert!(diff.truncated && diff.text.len() > 998);
    assert!(beginning(&diff.text, 100).len() > 98);
    assert_eq!(beginning("12345\n1234567\n1", 10), "12345\n");
}

/// Two texts that have nothing but a few lines in common, over and over: the hardest for the algorithm.
#[test]
fn time_is_bounded_and_the_diff_right_all_the_same() {
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
    let diff = unified(side("a", &old), side("a", &new), usize::MAX, began + Duration::from_millis(200));
    let took = began.elapsed();
    println!("60,000 against 60,000 lines: {took:?}, +{} -{}", diff.added, diff.removed);
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(patched(&old, &diff.text).unwrap(), new);
}
