//! The change that an edit makes, for the person who decides about it. Built from the tool's input alone, which is
//! hostile text: it is bounded, and clients make it harmless.

use serde_json::Value;
use std::fmt::Write;

/// Size limit of a diff in an event.
const MAX_DIFF_BYTES: usize = 20 << 10;
/// Unchanged lines around a change.
const CONTEXT_LINES: usize = 3;

/// Describes an edit as a diff: of a replaced text, of several, or of the whole new file. `None` for other tools.
pub(super) fn describe_edit(input: &Value) -> Option<String> {
    let path = ["file_path", "filePath", "path"].iter().find_map(|name| input.get(*name)?.as_str())?;
    let mut diff = String::new();
    match (input.get("edits").and_then(Value::as_array), replacement(input), input.get("content")) {
        (Some(edits), _, _) => {
            write_header(&mut diff, path, path);
            edits.iter().filter_map(replacement).for_each(|(old, new)| write_hunk(&mut diff, old, new));
        }
        (None, Some((old, new)), _) => {
            write_header(&mut diff, path, path);
            write_hunk(&mut diff, old, new);
        }
        (None, None, Some(content)) => {
            // The input does not say what it replaces.
            write_header(&mut diff, "(the current content)", path);
            write_hunk(&mut diff, "", content.as_str()?);
        }
        (None, None, None) => return None,
    }
    if diff.len() > MAX_DIFF_BYTES {
        diff.truncate(diff.floor_char_boundary(MAX_DIFF_BYTES));
        diff.push_str("\n… (truncated; the input is complete)\n");
    }
    Some(diff)
}

/// The text that an edit replaces, and the new one.
fn replacement(edit: &Value) -> Option<(&str, &str)> {
    let text = |names: [&str; 2]| names.iter().find_map(|name| edit.get(*name)?.as_str());
    Some((text(["old_string", "oldString"])?, text(["new_string", "newString"])?))
}

fn write_header(diff: &mut String, old: &str, new: &str) {
    // A path with a line break must not look like a part of the change.
    let line = |text: &str| text.replace(char::is_control, "\u{fffd}");
    let _infallible = writeln!(diff, "--- {}\n+++ {}", line(old), line(new));
}

fn write_hunk(diff: &mut String, old: &str, new: &str) {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let before = old.iter().zip(&new).take_while(|(old, new)| old == new).count();
    let most = old.len().min(new.len()) - before;
    let after = old.iter().rev().zip(new.iter().rev()).take(most).take_while(|(old, new)| old == new).count();
    diff.push_str("@@ @@\n");
    let mut write_lines = |mark: char, lines: &[&str]| {
        for line in lines {
            let _infallible = writeln!(diff, "{mark}{line}");
        }
    };
    write_lines(' ', &old[before.saturating_sub(CONTEXT_LINES)..before]);
    write_lines('-', &old[before..old.len() - after]);
    write_lines('+', &new[before..new.len() - after]);
    write_lines(' ', &old[old.len() - after..(old.len() - after + CONTEXT_LINES).min(old.len())]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn shows_what_an_edit_changes() {
        let edit = json!({"file_path": "/workspace/a.rs", "old_string": "1\n2\n3\n4\nold\n5", "new_string": "1\n2\n3\n4\nnew\nmore\n5"});
        let expected = "--- /workspace/a.rs\n+++ /workspace/a.rs\n@@ @@\n 2\n 3\n 4\n-old\n+new\n+more\n 5\n";
        assert_eq!(describe_edit(&edit).as_deref(), Some(expected));
        let several = json!({"filePath": "b", "edits": [{"old_string": "x", "new_string": "y"}, {"oldString": "p", "newString": ""}]});
        assert_eq!(describe_edit(&several).as_deref(), Some("--- b\n+++ b\n@@ @@\n-x\n+y\n@@ @@\n-p\n"));
        let whole = json!({"file_path": "c\n+++ d", "content": "1\n2\n"});
        let expected = "--- (the current content)\n+++ c\u{fffd}+++ d\n@@ @@\n+1\n+2\n";
        assert_eq!(describe_edit(&whole).as_deref(), Some(expected));
        for other in
            [json!({"command": "ls"}), json!({"path": "a"}), json!(null), json!({"file_path": 1, "content": ""})]
        {
            assert_eq!(describe_edit(&other), None);
        }
    }

    #[test]
    fn bounds_a_long_change() {
        let edit = json!({"file_path": "a", "content": "ä\n".repeat(MAX_DIFF_BYTES)});
        let diff = describe_edit(&edit).unwrap();
        assert!(diff.len() < MAX_DIFF_BYTES + 100 && diff.ends_with("(truncated; the input is complete)\n"));
    }

    #[test]
    fn an_unchanged_text_has_no_changed_lines() {
        let edit = json!({"file_path": "a", "old_string": "1\n1\n1", "new_string": "1\n1"});
        assert_eq!(describe_edit(&edit).as_deref(), Some("--- a\n+++ a\n@@ @@\n 1\n 1\n-1\n"));
    }
}
