//! Lists the files of the repository.

use std::path::Path;

const MAX_FILES: usize = 500;
const MAX_DEPTH: usize = 6;
/// Directories with generated files.
const GENERATED_DIRS: &[&str] = &["node_modules", "target", "dist", "build", "vendor", "__pycache__", "venv"];

/// Lists files with their relative paths, sorted, without hidden and generated ones.
pub(super) fn list_files(root: &Path) -> Vec<String> {
    let mut files = Vec::new();
    add_files(root, "", 0, &mut files);
    files.sort();
    files
}

fn add_files(dir: &Path, prefix: &str, depth: usize, files: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(kind) = entry.file_type() else { continue };
        if name.starts_with('.') || files.len() >= MAX_FILES {
            continue;
        }
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}/{name}") };
        if kind.is_file() {
            files.push(path);
        } else if kind.is_dir() && depth < MAX_DEPTH && !GENERATED_DIRS.contains(&name.as_str()) {
            add_files(&entry.path(), &path, depth + 1, files);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skips_hidden_and_generated_files() {
        let root = tempfile::tempdir().unwrap();
        for file in ["a.rs", "src/b.rs", "target/x", ".git/config"] {
            let path = root.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        assert_eq!(list_files(root.path()), ["a.rs", "src/b.rs"]);
    }
}
