//! Paths of the workspace that an agent must not change: their form, and which changes touch them.

use crate::bounds::{OutOfBounds, refuse};
use std::collections::BTreeSet;

pub const MOST: usize = 64;
const BYTES: usize = 512;

/// One as it is kept, without the slash that may say that it is a directory.
pub fn path(field: &str, given: &str) -> Result<String, OutOfBounds> {
    let path = given.strip_suffix('/').unwrap_or(given);
    let shown: String = given.chars().filter(|letter| !letter.is_control()).take(100).collect();
    let no = |why: &str| refuse(field, format!("`{shown}` {why}"));
    if path.is_empty() || path == "." {
        return no("names no file or directory of the workspace");
    }
    if path.len() > BYTES {
        return no(&format!("has more than {BYTES} bytes"));
    }
    if path.chars().any(char::is_control) {
        return no("has control characters");
    }
    if path.starts_with('/') || path.starts_with('~') {
        return no("must be relative to the workspace");
    }
    if path.contains(['*', '?']) {
        return no("is a pattern; name files and directories themselves, a directory stands for all that is in it");
    }
    if path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return no("must be plain, without `.`, `..` and empty parts");
    }
    if path.split('/').next().is_some_and(|first| first.eq_ignore_ascii_case(".git")) {
        return no("is git's own, which has to change; protect what is checked out");
    }
    Ok(path.to_owned())
}

/// All of several lists, in order and once each: nobody's demand is lowered by another's.
pub fn paths<'a>(field: &str, given: impl IntoIterator<Item = &'a String>) -> Result<Vec<String>, OutOfBounds> {
    let all: BTreeSet<String> = given.into_iter().map(|one| path(field, one)).collect::<Result<_, _>>()?;
    if all.len() > MOST {
        return refuse(field, format!("has {} paths; at most {MOST} are allowed", all.len()));
    }
    Ok(all.into_iter().collect())
}

/// Whether a change of the file `changed` touches one of `protected`: it is one, lies in one, or stands where a directory
/// on the way to one would be. The case of letters does not matter: some systems that check the files out don't tell
/// them apart.
pub fn touches(protected: &[String], changed: &str) -> bool {
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
    fn only_plain_paths_below_the_workspace_can_be_protected() {
        for (given, kept) in [(".github/", ".github"), ("Cargo.lock", "Cargo.lock"), ("a/[id]/b c", "a/[id]/b c")] {
            assert_eq!(path("protected", given).unwrap(), kept);
        }
        for given in ["", "/", ".", "./a", "a/../b", "..", "/etc", "~/x", "a//b", "a\nb", ".git", ".Git/hooks"] {
            assert!(path("protected", given).is_err(), "{given:?}");
        }
        assert!(path("protected", &"a".repeat(513)).is_err());
        let said = path("protected", "src/*.rs").unwrap_err().to_string();
        assert!(said.starts_with("protected: `src/*.rs` is a pattern"), "{said}");
    }

    #[test]
    fn lists_are_joined_and_bounded() {
        let given = ["b/", "a", "b"].map(str::to_owned);
        assert_eq!(paths("protected", &given).unwrap(), ["a", "b"]);
        let many: Vec<String> = (0..=MOST).map(|number| number.to_string()).collect();
        assert!(paths("protected", &many).is_err());
    }

    #[test]
    fn a_change_touches_what_it_is_lies_in_or_stands_in_the_way_of() {
        let protected = ["Cargo.lock", "infra/prod"].map(str::to_owned);
        for changed in ["Cargo.lock", "cargo.LOCK", "infra/prod", "infra/prod/a/b", "infra", "Infra/Prod/x"] {
            assert!(touches(&protected, changed), "{changed}");
        }
        for changed in ["Cargo.toml", "infra/production", "infra/test", "x/Cargo.lock", "infra2"] {
            assert!(!touches(&protected, changed), "{changed}");
        }
        assert!(!touches(&[], "a"));
    }
}
