//! Claude Code's transcripts: `.claude/projects/<workspace>/<id>.jsonl`.

use crate::transcript::TranscriptFiles;
use std::path::{Path, PathBuf};

pub(super) const FILES: TranscriptFiles = TranscriptFiles {
    directory: &[".claude", "projects"],
    depth: 1,
    file_suffix: |id| format!("{id}.jsonl"),
    restore_path,
};

fn restore_path(id: &str, workspace: &Path, _first_line: &str) -> PathBuf {
    let replace = |letter: char| if letter.is_ascii_alphanumeric() { letter } else { '-' };
    let directory: String = workspace.to_string_lossy().chars().map(replace).collect();
    Path::new(".claude/projects").join(directory).join(format!("{id}.jsonl"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_encodes_the_workspace() {
        let path = restore_path("id-1", Path::new("/workspace"), "");
        assert_eq!(path, Path::new(".claude/projects/-workspace/id-1.jsonl"));
    }
}
