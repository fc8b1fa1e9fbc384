//! Coloured patches and diffstats.

use super::spans::Spans;
use super::{style, text, width};
use atoll_api::DiffFile;
use atoll_api::events::FileChangeType;

pub const fn change_word(change: FileChangeType) -> &'static str {
    match change {
        FileChangeType::Created => "created",
        FileChangeType::Modified => "modified",
        FileChangeType::Deleted => "deleted",
        FileChangeType::Renamed => "renamed",
    }
}

/// Formats `+3 −1` with colours.
pub fn change_counts(added: u64, removed: u64) -> Spans {
    Spans::new().styled(style::GOOD, format!("+{added}")).plain(" ").styled(style::BAD, format!("−{removed}"))
}

/// One aligned line per file, and a total.
pub fn diffstat(files: &[DiffFile]) -> Vec<Spans> {
    /// Longer names do not widen the column.
    const MAX_NAME_WIDTH: usize = 60;
    let names: Vec<String> = files.iter().map(display_name).collect();
    let widest = names
        .iter()
        .map(|name| width::text_width(name))
        .filter(|columns| *columns <= MAX_NAME_WIDTH)
        .max()
        .unwrap_or(0);
    let mut lines: Vec<Spans> = files.iter().zip(&names).map(|(file, name)| diffstat_row(file, name, widest)).collect();
    if files.len() > 1 {
        let sum = |of: fn(&DiffFile) -> u64| files.iter().map(of).sum::<u64>();
        let head = Spans::new().styled(style::FAINT, format!("{} files ", files.len()));
        lines.push(head.append(change_counts(sum(|file| file.added), sum(|file| file.removed))));
    }
    lines
}

fn display_name(file: &DiffFile) -> String {
    match &file.old_path {
        Some(old) => text::escape_line(&format!("{old} → {}", file.path)),
        None => text::escape_line(&file.path),
    }
}

fn diffstat_row(file: &DiffFile, name: &str, widest: usize) -> Spans {
    let padding = " ".repeat(widest.saturating_sub(width::text_width(name)));
    let line = Spans::new().plain(format!("{name}{padding}  "));
    let line = if file.binary {
        line.styled(style::FAINT, "binary")
    } else {
        line.append(change_counts(file.added, file.removed))
    };
    let line = match &file.modes {
        Some([old, new]) => line.styled(style::FAINT, format!("  mode {old} → {new}")),
        None => line,
    };
    let line = if file.submodule { line.styled(style::FAINT, "  submodule") } else { line };
    match file.change.as_str() {
        "modified" => line,
        // The watcher's word for it.
        "added" => line.styled(style::FAINT, "  created"),
        change => line.styled(style::FAINT, format!("  {}", text::escape_clipped(change, 20))),
    }
}

/// The escaped and coloured lines of a patch.
pub fn patch_lines(patch: &str) -> Vec<Spans> {
    text::escape_block(patch).lines().map(|line| Spans::new().styled(line_style(line), line)).collect()
}

fn line_style(line: &str) -> anstyle::Style {
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
    fn aligns_files() {
        let files: Vec<DiffFile> = serde_json::from_value(json!([
            {"path": "src/lib.rs", "change": "modified", "added": 12, "removed": 3},
            {"path": "NOTES.md", "change": "created", "added": 3, "removed": 0},
            {"path": "b\u{1b}[2J", "old_path": "a", "change": "renamed", "added": 0, "removed": 0},
            {"path": "logo.png", "change": "deleted", "added": 0, "removed": 0, "binary": true},
            {"path": "run", "change": "modified", "added": 0, "removed": 0, "modes": ["100644", "100755"]},
            {"path": "lib", "change": "modified", "added": 1, "removed": 1, "submodule": true},
        ]))
        .unwrap();
        let lines: Vec<_> = diffstat(&files).iter().map(|line| line.to_ansi(false)).collect();
        insta::assert_snapshot!(lines.join("\n"), @r"
        src/lib.rs  +12 −3
        NOTES.md    +3 −0  created
        a → b␛[2J   +0 −0  renamed
        logo.png    binary  deleted
        run         +0 −0  mode 100644 → 100755
        lib         +1 −1  submodule
        6 files +16 −4
        ");
    }

    #[test]
    fn colours_a_patch() {
        let lines = patch_lines("diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\x1b\n same\n");
        let style = |at: usize| line_style(&lines[at].to_ansi(false));
        assert_eq!([style(0), style(2), style(3)], [style::HEAD, style::HEAD, style::NAME]);
        assert_eq!([style(4), style(5), style(6)], [style::BAD, style::GOOD, anstyle::Style::new()]);
        assert_eq!(lines[5].to_ansi(false), "+new␛");
    }
}
