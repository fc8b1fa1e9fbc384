//! A unified diff of one change, without the common start and end except for some context.

const CONTEXT_LINES: usize = 3;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct UnifiedDiff {
    pub(super) added: usize,
    pub(super) removed: usize,
    pub(super) text: String,
}

/// `old` is `None` for a new file.
pub(super) fn unified_diff(path: &str, old: Option<&str>, new: &str) -> UnifiedDiff {
    let before: Vec<&str> = old.unwrap_or_default().lines().collect();
    let after: Vec<&str> = new.lines().collect();
    let same = |(a, b): &(&&str, &&str)| a == b;
    let head = before.iter().zip(&after).take_while(same).count();
    let tail = before[head..].iter().rev().zip(after[head..].iter().rev()).take_while(same).count();
    let (removed, added) = (&before[head..before.len() - tail], &after[head..after.len() - tail]);

    let from = if old.is_some() { format!("a/{path}") } else { "/dev/null".to_owned() };
    let mut text = format!("--- {from}\n+++ b/{path}\n");
    if !(removed.is_empty() && added.is_empty()) {
        let first = head.saturating_sub(CONTEXT_LINES);
        let leading = &before[first..head];
        let trailing = &after[after.len() - tail..][..tail.min(CONTEXT_LINES)];
        let span = |lines: usize| {
            let length = leading.len() + lines + trailing.len();
            // An empty side refers to the line before it.
            format!("{},{length}", if length == 0 { first } else { first + 1 })
        };
        text.push_str(&format!("@@ -{} +{} @@\n", span(removed.len()), span(added.len())));
        for (sign, lines) in [(' ', leading), ('-', removed), ('+', added), (' ', trailing)] {
            for line in lines {
                text.push(sign);
                text.push_str(line);
                text.push('\n');
            }
        }
    }
    UnifiedDiff { added: added.len(), removed: removed.len(), text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_all_added() {
        let diff = unified_diff("n.md", None, "a\nb\n");
        assert_eq!((diff.added, diff.removed), (2, 0));
        assert_eq!(diff.text, "--- /dev/null\n+++ b/n.md\n@@ -0,0 +1,2 @@\n+a\n+b\n");
    }

    #[test]
    fn a_change_shows_three_lines_around_it() {
        let diff = unified_diff("f", Some("1\n2\n3\n4\n5\n6\n7\n8\n9\n"), "1\n2\n3\n4\nfive\n6\n7\n8\n9\n");
        assert_eq!((diff.added, diff.removed), (1, 1));
        assert_eq!(diff.text, "--- a/f\n+++ b/f\n@@ -2,7 +2,7 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n");
    }

    #[test]
    fn a_line_at_the_end_and_no_change_at_all() {
        assert_eq!(unified_diff("f", Some("a\n"), "a\nb\n").text, "--- a/f\n+++ b/f\n@@ -1,1 +1,2 @@\n a\n+b\n");
        assert_eq!(unified_diff("f", Some("a\na\n"), "a\n").removed, 1);
        assert_eq!(unified_diff("f", Some("a\n"), "a\n").added, 0);
    }
}
