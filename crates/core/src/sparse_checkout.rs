//! Directories of a sparse checkout, in git's cone mode: a checkout has them with everything below, and the files that are
//! directly in the root or in a directory above them.

use crate::bounds::{OutOfBounds, reject_field};
use crate::protected_paths::{is_below_git, normalise_workspace_path};
use std::collections::BTreeSet;

pub const MAX_SPARSE_DIRS: usize = 100;

/// Validates, normalises and sorts the directories, without duplicates.
pub fn normalise_sparse_dirs(field: &str, dirs: &[String]) -> Result<Vec<String>, OutOfBounds> {
    if dirs.len() > MAX_SPARSE_DIRS {
        return reject_field(field, format!("has {} directories; at most {MAX_SPARSE_DIRS} are allowed", dirs.len()));
    }
    let normalise = |dir: &String| {
        let path = normalise_workspace_path(field, dir)?;
        // Git reads the other characters as parts of a pattern or of a quoted name.
        if is_below_git(&path) || path.starts_with(['#', '!', '-']) || path.contains(['[', ']', '\\', '"']) {
            return reject_field(field, format!("`{path}` is not the name of a directory of the repository"));
        }
        Ok(path)
    };
    let all: BTreeSet<String> = dirs.iter().map(normalise).collect::<Result<_, _>>()?;
    Ok(all.into_iter().collect())
}

/// True if a sparse checkout has the file. Without directories, the checkout is complete.
pub fn is_checked_out(dirs: &[String], file: &str) -> bool {
    let parent = file.rsplit_once('/').map(|(parent, _)| parent);
    let is_at_or_below =
        |path: &str, above: &str| path.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    dirs.is_empty()
        || parent.is_none_or(|parent| dirs.iter().any(|dir| is_at_or_below(parent, dir) || is_at_or_below(dir, parent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalise(dirs: &[&str]) -> Result<Vec<String>, OutOfBounds> {
        normalise_sparse_dirs("repo.sparse", &dirs.iter().map(|&dir| dir.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn directories_are_plain_and_sorted() {
        assert_eq!(normalise(&["b/c/", "a b", "größe", "b/c"]).unwrap(), ["a b", "b/c", "größe"]);
        for refused in
            ["", ".", "/", "/a", "../a", "a/../b", "a//b", "./a", "~/a", "*", "a?", "[a]", "!a", "#a", "-a", "a\\b"]
        {
            normalise(&[refused]).unwrap_err();
        }
        for refused in [".git", ".GIT/hooks", "a\nb", "a\"b", &"x".repeat(600)] {
            normalise(&[refused]).unwrap_err();
        }
        let many: Vec<String> = (0..101).map(|number| format!("d{number}")).collect();
        assert!(normalise_sparse_dirs("repo.sparse", &many).unwrap_err().to_string().contains("at most 100"));
    }

    #[test]
    fn a_checkout_has_its_directories_and_the_files_above_them() {
        let dirs = ["a/b".to_owned()];
        for (file, expected) in [
            ("README", true),
            ("a/file", true),
            ("a/b/file", true),
            ("a/b/c/file", true),
            ("a/bc/file", false),
            ("a/c/file", false),
            ("b/file", false),
        ] {
            assert_eq!(is_checked_out(&dirs, file), expected, "{file}");
        }
        assert!(is_checked_out(&[], "b/file"));
    }
}
