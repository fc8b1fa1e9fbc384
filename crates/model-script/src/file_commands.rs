//! File changes as shell commands and patches.

/// Quotes a word for a shell.
fn quote_word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// A shell command that writes a file, for agents without a write tool.
pub(crate) fn write_command(file: &str, content: &str) -> String {
    let make = match file.rsplit_once('/') {
        Some((directory, _)) if !directory.is_empty() => format!("mkdir -p {} && ", quote_word(directory)),
        _ => String::new(),
    };
    format!("{make}printf '%s' {} > {}", quote_word(content), quote_word(file))
}

/// A patch that creates a file.
pub(crate) fn add_file_patch(file: &str, content: &str) -> String {
    let lines: String = content.lines().map(|line| format!("+{line}\n")).collect();
    format!("*** Begin Patch\n*** Add File: {file}\n{lines}*** End Patch\n")
}

/// A patch that replaces whole lines of a file.
pub(crate) fn update_file_patch(file: &str, old: &str, new: &str) -> String {
    let removed: String = old.lines().map(|line| format!("-{line}\n")).collect();
    let added: String = new.lines().map(|line| format!("+{line}\n")).collect();
    format!("*** Begin Patch\n*** Update File: {file}\n@@\n{removed}{added}*** End Patch\n")
}

/// A shell command that passes a patch to `apply_patch`, which Codex provides.
pub(crate) fn apply_patch_command(patch: &str) -> String {
    format!("apply_patch {}", quote_word(patch.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_writes_exactly_the_content() {
        let place = tempfile::tempdir().unwrap();
        let content = "it's $HOME `x` \\n \"q\"\n\n";
        let command = write_command("a b/c'd.txt", content);
        let done = std::process::Command::new("sh").args(["-c", &command]).current_dir(place.path()).status().unwrap();
        assert!(done.success(), "{command}");
        assert_eq!(std::fs::read_to_string(place.path().join("a b/c'd.txt")).unwrap(), content);
        assert_eq!(write_command("x", "y"), "printf '%s' 'y' > 'x'");
    }

    #[test]
    fn patches_are_whole_lines() {
        assert_eq!(add_file_patch("a", "1\n2"), "*** Begin Patch\n*** Add File: a\n+1\n+2\n*** End Patch\n");
        assert_eq!(
            update_file_patch("a", "1", "2\n3"),
            "*** Begin Patch\n*** Update File: a\n@@\n-1\n+2\n+3\n*** End Patch\n"
        );
    }
}
