//! Changes of files: a patch in its colours, and a list of files with what was added and removed.

use super::spans::Spans;
use super::{style, text, width};
use serde_json::Value;

/// A file that was changed. Its names come from elsewhere and are not harmless.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Changed {
    pub path: String,
    pub old_path: Option<String>,
    pub change: String,
    pub added: i64,
    pub removed: i64,
    pub binary: bool,
}

impl Changed {
    /// The list of files in an answer or an event.
    pub fn list(files: &Value) -> Vec<Self> {
        files.as_array().into_iter().flatten().filter_map(Self::read).collect()
    }

    fn read(file: &Value) -> Option<Self> {
        Some(Self {
            path: file["path"].as_str()?.to_owned(),
            old_path: file["old_path"].as_str().map(str::to_owned),
            change: file["change"].as_str().unwrap_or("modified").to_owned(),
            added: file["added"].as_i64().unwrap_or(0),
            removed: file["removed"].as_i64().unwrap_or(0),
            binary: file["binary"] == true,
        })
    }
}

/// `+3 −1` in their colours.
pub fn counts(added: i64, removed: i64) -> Spans {
    Spans::new().put(style::GOOD, format!("+{added}")).plain(" ").put(style::BAD, format!("−{removed}"))
}

/// A line for each file, lined up, and the sum under them.
pub fn summary(files: &[Changed]) -> Vec<Spans> {
    /// Longer names push their counts out of the column instead of taking the whole screen.
    const LONGEST: usize = 60;
    let names: Vec<String> = files.iter().map(name).collect();
    let widest = names.iter().map(|name| width::of(name)).filter(|columns| *columns <= LONGEST).max().unwrap_or(0);
    let mut lines: Vec<Spans> = files.iter().zip(&names).map(|(file, name)| row(file, name, widest)).collect();
    if files.len() > 1 {
        let sum = |of: fn(&Changed) -> i64| files.iter().map(of).sum::<i64>();
        let head = Spans::new().put(style::FAINT, format!("{} files ", files.len()));
        lines.push(head.then(counts(sum(|file| file.added), sum(|file| file.removed))));
    }
    lines
}

fn name(file: &Changed) -> String {
    match &file.old_path {
        Some(old) => text::inline(&format!("{old} → {}", file.path)),
        None => text::inline(&file.path),
    }
}

fn row(file: &Changed, name: &str, widest: usize) -> Spans {
    let padding = " ".repeat(widest.saturating_sub(width::of(name)));
    let line = Spans::new().plain(format!("{name}{padding}  "));
    let line = if file.binary { line.put(style::FAINT, "binary") } else { line.then(counts(file.added, file.removed)) };
    match file.change.as_str() {
        "modified" => line,
        // As file watchers call it.
        "added" => line.put(style::FAINT, "  created"),
        change => line.put(style::FAINT, format!("  {}", text::clipped(change, 20))),
    }
}

/// The lines of a patch, harmless and in their colours.
pub fn lines(patch: &str) -> Vec<Spans> {
    text::block(patch).lines().map(|line| Spans::new().put(of_line(line), line)).collect()
}

fn of_line(line: &str) -> anstyle::Style {
    match line.as_bytes() {
        [b'd', b'i', b'f', b'f', b' ', ..] | [b'+', b'+', b'+', b' ', ..] | [b'-', b'-', b'-', b' ', ..] => style::HEAD,
        [b'@', b'@', ..] => style::NAME,
        [b'+', ..] => style::GOOD,
        [b'-', ..] => style::BAD,
        _ => anstyle::Style::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn files_line_up() {
        let files = Changed::list(&json!([
            {"path": "src/lib.rs", "change": "modified", "added": 12, "removed": 3},
            {"path": "NOTES.md", "change": "created", "added": 3, "removed": 0},
            {"path": "b\u{1b}[2J", "old_path": "a", "change": "renamed", "added": 0, "removed": 0},
            {"path": "logo.png", "change": "deleted", "binary": true},
            {"nothing": 1},
        ]));
        let shown: Vec<_> = summary(&files).iter().map(|line| line.painted(false)).collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        src/lib.rs  +12 −3
        NOTES.md    +3 −0  created
        a → b␛[2J   +0 −0  renamed
        logo.png    binary  deleted
        4 files +15 −3
        ");
    }

    #[test]
    fn a_patch_has_its_colours() {
        let lines = lines("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\x1b\n same\n");
        let style = |at: usize| of_line(&lines[at].painted(false));
        assert_eq!([style(0), style(2), style(3)], [style::HEAD, style::HEAD, style::NAME]);
        assert_eq!([style(4), style(5), style(6)], [style::BAD, style::GOOD, anstyle::Style::new()]);
        assert_eq!(lines[5].painted(false), "+new␛");
    }
}
