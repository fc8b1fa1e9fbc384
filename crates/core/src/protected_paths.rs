//! Protected paths of the workspace: validation, and matching of changes.

use crate::bounds::{OutOfBounds, reject_field};
use std::collections::BTreeSet;

pub const MAX_PROTECTED_PATHS: usize = 64;
const MAX_PATH_BYTES: usize = 512;

/// Validates and normalises a path; removes the trailing slash of a directory.
pub fn normalise_protected_path(field: &str, input: &str) -> Result<String, OutOfBounds> {
    let path = normalise_workspace_path(field, input)?;
    if is_below_git(&path) {
        return reject_field(
            field,
            format!("`{path}` belongs to git, which must write to it; protect files of the working tree"),
        );
    }
    Ok(path)
}

/// True for a path in the directory of git.
pub(crate) fn is_below_git(path: &str) -> bool {
    path.split('/').next().is_some_and(|first| first.eq_ignore_ascii_case(".git"))
}

/// Validates a relative path without patterns; removes the trailing slash of a directory.
pub(crate) fn normalise_workspace_path(field: &str, input: &str) -> Result<String, OutOfBounds> {
    let path = input.strip_suffix('/').unwrap_or(input);
    let printable: String = input.chars().filter(|letter| !letter.is_control()).take(100).collect();
    let no = |why: &str| reject_field(field, format!("`{printable}` {why}"));
    if path.is_empty() || path == "." {
        return no("names no file or directory of the workspace");
    }
    if path.len() > MAX_PATH_BYTES {
        return no(&format!("has more than {MAX_PATH_BYTES} bytes"));
    }
    if path.chars().any(char::is_control) {
        return no("has control characters");
    }
    if path.starts_with('/') || path.starts_with('~') {
        return no("must be relative to the workspace");
    }
    if path.contains(['*', '?']) {
        return no("is a pattern; name files and directories, a directory includes everything in it");
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return no("must be plain, without `.`, `..` and empty parts");
    }
    Ok(path.to_owned())
}

/// Joins several lists in order, without duplicates. No list can weaken another.
pub fn join_protected_paths<'a>(
    field: &str,
    paths: impl IntoIterator<Item = &'a String>,
) -> Result<Vec<String>, OutOfBounds> {
    let all: BTreeSet<String> =
        paths.into_iter().map(|one| normalise_protected_path(field, one)).collect::<Result<_, _>>()?;
    if all.len() > MAX_PROTECTED_PATHS {
        return reject_field(field, format!("has {} paths; at most {MAX_PROTECTED_PATHS} are allowed", all.len()));
    }
    Ok(all.into_iter().collect())
}

/// Returns true if a change of the file `changed` touches a protected path: it is one, is inside one, or replaces a
/// parent directory of one. Ignores case, because some systems that check the files out do.
pub fn touches_protected_path(protected: &[String], changed: &str) -> bool {
    let changed = changed.to_lowercase();
    let inside = |path: &str, other: &str| path.strip_prefix(other).is_some_and(|rest| rest.starts_with('/'));
    protected.iter().map(|path| path.to_lowercase()).any(|path| {
        let (path, changed) = (path.as_str(), changed.as_str());
        path == changed || inside(changed, path) || inside(path, changed)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_only_plain_paths_below_the_workspace() {
        for (input, expected) in [(".github/", ".github"), ("Cargo.lock", "Cargo.lock"), ("a/[id]/b c", "a/[id]/b c")] {
            assert_eq!(normalise_protected_path("protected", input).unwrap(), expected);
        }
        for input in ["", "/", ".", "./a", "a/../b", "..", "/etc", "~/x", "a//b", "a\nb", ".git", ".Git/hooks"] {
            assert!(normalise_protected_path("protected", input).is_err(), "{input:?}");
        }
        assert!(normalise_protected_path("protected", &"a".repeat(513)).is_err());
        let error = normalise_protected_path("protected", "src/*.rs").unwrap_err().to_string();
        assert!(error.starts_with("protected: `src/*.rs` is a pattern"), "{error}");
    }

    #[test]
    fn lists_are_joined_and_bounded() {
        let input = ["b/", "a", "b"].map(str::to_owned);
        assert_eq!(join_protected_paths("protected", &input).unwrap(), ["a", "b"]);
        let many: Vec<String> = (0..=MAX_PROTECTED_PATHS).map(|number| number.to_string()).collect();
        assert!(join_protected_paths("protected", &many).is_err());
    }

    #[test]
    fn a_change_touches_protected_paths_their_content_and_parents() {
        let protected = ["Cargo.lock", "infra/prod"].map(str::to_owned);
        for changed in ["Cargo.lock", "cargo.LOCK", "infra/prod", "infra/prod/a/b", "infra", "Infra/Prod/x"] {
            assert!(touches_protected_path(&protected, changed), "{changed}");
        }
        for changed in ["Cargo.toml", "infra/production", "infra/test", "x/Cargo.lock", "infra2"] {
            assert!(!touches_protected_path(&protected, changed), "{changed}");
        }
        assert!(!touches_protected_path(&[], "a"));
    }
}
