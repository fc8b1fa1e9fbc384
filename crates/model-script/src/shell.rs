//! Changes of files in the two notations that are no JSON: shell commands and patches.

/// One word of a shell command, whatever is in it.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Writes a file by a shell, for agents that have nothing else.
pub(crate) fn write(file: &str, content: &str) -> String {
    let make = match file.rsplit_once('/') {
        Some((directory, _)) if !directory.is_empty() => format!("mkdir -p {} && ", quoted(directory)),
        _ => String::new(),
    };
    format!("{make}printf '%s' {} > {}", quoted(content), quoted(file))
}

/// A patch that makes a file.
pub(crate) fn add(file: &str, content: &str) -> String {
    let lines: String = content.lines().map(|line| format!("+{line}\n")).collect();
    format!("*** Begin Patch\n*** Add File: {file}\n{lines}*** End Patch\n")
}

/// A patch that replaces whole lines of a file.
pub(crate) fn update(file: &str, old: &str, new: &str) -> String {
    let removed: String = old.lines().map(|line| format!("-{line}\n")).collect();
    let added: String = new.lines().map(|line| format!("+{line}\n")).collect();
    format!("*** Begin Patch\n*** Update File: {file}\n@@\n{removed}{added}*** End Patch\n")
}

/// Gives a patch to the program `apply_patch`, which Codex has on its path.
pub(crate) fn apply(patch: &str) -> String {
    format!("apply_patch {}", quoted(patch.trim_end()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_writes_exactly_the_content() {
        let place = tempfile::tempdir().unwrap();
        let content = "it's $HOME `x` \\n \"q\"\n\n";
        let command = write("a b/c'd.txt", content);
        let done = std::process::Command::new("sh").args(["-c", &command]).current_dir(place.path()).status().unwrap();
        assert!(done.success(), "{command}");
        assert_eq!(std::fs::read_to_string(place.path().join("a b/c'd.txt")).unwrap(), content);
        assert_eq!(write("x", "y"), "printf '%s' 'y' > 'x'");
    }

    #[test]
    fn patches_are_whole_lines() {
        assert_eq!(add("a", "1\n2"), "*** Begin Patch\n*** Add File: a\n+1\n+2\n*** End Patch\n");
        assert_eq!(update("a", "1", "2\n3"), "*** Begin Patch\n*** Update File: a\n@@\n-1\n+2\n+3\n*** End Patch\n");
    }
}
