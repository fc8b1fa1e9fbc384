//! Ignored paths: git's ignore rules, and cache directories.

use crate::entry;
use crate::relative_path::{self, RelativePath};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

pub const GITIGNORE: &[u8] = b".gitignore";
/// File with which build tools tag cache directories (<https://bford.info/cachedir/>).
pub const CACHEDIR_TAG: &[u8] = b"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// Directories that are ignored even without a rule.
const CACHE_DIRECTORY_NAMES: [&[u8]; 2] = [b"node_modules", b"__pycache__"];
const GIT_DIRECTORY: &[u8] = b".git";
const MAX_RULES_BYTES: u64 = 1024 * 1024;

#[derive(Clone, Default)]
pub struct IgnoreRules {
    exclude: Option<Arc<Gitignore>>,
    by_directory: HashMap<RelativePath, Arc<Gitignore>>,
    caches: HashSet<RelativePath>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Visibility {
    Visible,
    /// Ignored, unless git tracks it.
    Ignored,
    /// Part of `.git`: always ignored.
    GitInternal,
}

impl IgnoreRules {
    /// Loads `.git/info/exclude`.
    pub fn load_exclude(&mut self, root: &Path) {
        self.exclude =
            entry::read_small_file(root, b".git/info/exclude", MAX_RULES_BYTES).and_then(|text| parse_rules(&text));
    }

    /// Loads the rules of a directory and its cache tag.
    pub fn load_directory(&mut self, root: &Path, directory: &[u8], has_rules: bool, has_mark: bool) {
        let rules = if has_rules {
            entry::read_small_file(root, &relative_path::join_path(directory, GITIGNORE), MAX_RULES_BYTES)
                .and_then(|text| parse_rules(&text))
        } else {
            None
        };
        match rules {
            Some(rules) => drop(self.by_directory.insert(directory.into(), rules)),
            None => drop(self.by_directory.remove(directory)),
        }
        let marked = has_mark
            && !directory.is_empty()
            && entry::read_small_file(root, &relative_path::join_path(directory, CACHEDIR_TAG), 4096)
                .is_some_and(|text| text.starts_with(CACHE_SIGNATURE));
        if marked {
            self.caches.insert(directory.into());
        } else {
            self.caches.remove(directory);
        }
    }

    /// Forgets the rules of a removed directory.
    pub fn forget_directory(&mut self, directory: &[u8]) {
        self.by_directory.remove(directory);
        self.caches.remove(directory);
    }

    /// Forgets which directories are caches, before a scan finds them again.
    pub fn forget_caches(&mut self, directory: &[u8]) {
        let under = [directory, b"/"].concat();
        self.caches.retain(|cache| !directory.is_empty() && **cache != *directory && !cache.starts_with(&under));
    }

    pub fn is_cache(&self, directory: &[u8]) -> bool {
        self.caches.contains(directory)
    }

    /// Visibility of a path whose parents are all visible.
    pub fn visibility_in_visible_parent(&self, path: &[u8], is_directory: bool) -> Visibility {
        let name = relative_path::file_name(path);
        if name == GIT_DIRECTORY {
            return Visibility::GitInternal;
        }
        if is_directory && (CACHE_DIRECTORY_NAMES.contains(&name) || self.caches.contains(path)) {
            return Visibility::Ignored;
        }
        let mut end = path.len();
        // Nearest rules first, then the root's, then the repository's.
        while let Some(slash) = path[..end].iter().rposition(|byte| *byte == b'/') {
            if let Some(verdict) = self.match_in(&path[..slash], &path[slash + 1..], is_directory) {
                return verdict;
            }
            end = slash;
        }
        self.match_in(b"", path, is_directory)
            .or_else(|| match_rules(self.exclude.as_deref()?, path, is_directory))
            .unwrap_or(Visibility::Visible)
    }

    /// Visibility of any path: everything in an ignored directory is ignored.
    pub fn visibility(&self, path: &[u8], is_directory: bool) -> Visibility {
        relative_path::ancestors(path)
            .map(|directory| self.visibility_in_visible_parent(directory, true))
            .find(|verdict| *verdict != Visibility::Visible)
            .unwrap_or_else(|| self.visibility_in_visible_parent(path, is_directory))
    }

    fn match_in(&self, directory: &[u8], rest: &[u8], is_directory: bool) -> Option<Visibility> {
        match_rules(self.by_directory.get(directory)?, rest, is_directory)
    }
}

fn match_rules(rules: &Gitignore, path: &[u8], is_directory: bool) -> Option<Visibility> {
    match rules.matched(Path::new(OsStr::from_bytes(path)), is_directory) {
        Match::None => None,
        Match::Ignore(_) => Some(Visibility::Ignored),
        Match::Whitelist(_) => Some(Visibility::Visible),
    }
}

/// Parses rules; skips invalid lines, as git does.
fn parse_rules(text: &[u8]) -> Option<Arc<Gitignore>> {
    let mut builder = GitignoreBuilder::new(".");
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
    for line in String::from_utf8_lossy(text).lines() {
        let _ = builder.add_line(None, line);
    }
    builder.build().ok().filter(|rules| !rules.is_empty()).map(Arc::new)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(files: &[(&str, &str)]) -> IgnoreRules {
        let root = tempfile::tempdir().unwrap();
        for (directory, text) in files {
            std::fs::create_dir_all(root.path().join(directory)).unwrap();
            std::fs::write(root.path().join(directory).join(".gitignore"), text).unwrap();
        }
        let mut rules = IgnoreRules::default();
        for (directory, _) in files {
            rules.load_directory(root.path(), directory.as_bytes(), true, false);
        }
        rules
    }

    #[test]
    fn rules_of_git() {
        let rules = rules(&[("", "target/\n*.log\n/only-top\n[\n!keep.log\n"), ("sub", "!special.log\nlocal\n")]);
        let verdict = |path: &str, is_directory| rules.visibility(path.as_bytes(), is_directory);
        for (path, is_directory) in [
            ("target", true),
            ("target/deep/file.rs", false),
            ("sub/target", true),
            ("a.log", false),
            ("sub/deep/a.log", false),
            ("only-top", false),
            ("sub/local", false),
            ("node_modules", true),
            ("sub/node_modules/x/y.js", false),
        ] {
            assert_eq!(verdict(path, is_directory), Visibility::Ignored, "{path}");
        }
        for path in
            ["target", "keep.log", "sub/keep.log", "sub/special.log", "sub/only-top", "local", "src/main.rs", ".env"]
        {
            assert_eq!(verdict(path, false), Visibility::Visible, "{path}");
        }
        for path in [".git", ".git/config", "sub/.git/config"] {
            assert_eq!(verdict(path, false), Visibility::GitInternal, "{path}");
        }
    }
}
