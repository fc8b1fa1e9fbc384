//! Which paths are not looked at: git's rules, and directories that only ever hold what can be made again.

use super::look;
use super::path::{self, Relative};
use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

pub const RULES_FILE: &[u8] = b".gitignore";
/// Build tools put it into directories that are caches, with this beginning (<https://bford.info/cachedir/>).
pub const CACHE_MARK: &[u8] = b"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";
/// These are never anybody's work, even where nobody wrote a rule for them yet.
const CACHE_NAMES: [&[u8]; 2] = [b"node_modules", b"__pycache__"];
const GIT: &[u8] = b".git";
const LONGEST_RULES: u64 = 1024 * 1024;

#[derive(Clone, Default)]
pub struct Rules {
    exclude: Option<Arc<Gitignore>>,
    by_directory: HashMap<Relative, Arc<Gitignore>>,
    caches: HashSet<Relative>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Shown,
    /// Not looked at, unless git tracks it all the same.
    Ignored,
    /// Git's own, never looked at.
    Forbidden,
}

impl Rules {
    /// Takes in what the repository says beside its `.gitignore` files.
    pub fn read_exclude(&mut self, root: &Path) {
        self.exclude = look::read_small(root, b".git/info/exclude", LONGEST_RULES).and_then(|text| parsed(&text));
    }

    /// Takes in what a directory says about itself and what is under it.
    pub fn enter(&mut self, root: &Path, directory: &[u8], has_rules: bool, has_mark: bool) {
        let rules = if has_rules {
            look::read_small(root, &path::join(directory, RULES_FILE), LONGEST_RULES).and_then(|text| parsed(&text))
        } else {
            None
        };
        match rules {
            Some(rules) => drop(self.by_directory.insert(directory.into(), rules)),
            None => drop(self.by_directory.remove(directory)),
        }
        let marked = has_mark
            && !directory.is_empty()
            && look::read_small(root, &path::join(directory, CACHE_MARK), 4096)
                .is_some_and(|text| text.starts_with(CACHE_SIGNATURE));
        if marked {
            self.caches.insert(directory.into());
        } else {
            self.caches.remove(directory);
        }
    }

    /// The rules of a directory that is gone.
    pub fn leave(&mut self, directory: &[u8]) {
        self.by_directory.remove(directory);
        self.caches.remove(directory);
    }

    /// Which directories are caches must be found out again.
    pub fn forget_caches(&mut self, directory: &[u8]) {
        let under = [directory, b"/"].concat();
        self.caches.retain(|cache| !directory.is_empty() && **cache != *directory && !cache.starts_with(&under));
    }

    pub fn is_cache(&self, directory: &[u8]) -> bool {
        self.caches.contains(directory)
    }

    /// The verdict on a path whose parents are all shown.
    pub fn own(&self, path: &[u8], is_directory: bool) -> Verdict {
        let name = path::name(path);
        if name == GIT {
            return Verdict::Forbidden;
        }
        if is_directory && (CACHE_NAMES.contains(&name) || self.caches.contains(path)) {
            return Verdict::Ignored;
        }
        let mut end = path.len();
        // The nearest rules speak first, those of the root last, then those of the repository.
        while let Some(slash) = path[..end].iter().rposition(|byte| *byte == b'/') {
            if let Some(verdict) = self.said_in(&path[..slash], &path[slash + 1..], is_directory) {
                return verdict;
            }
            end = slash;
        }
        self.said_in(b"", path, is_directory)
            .or_else(|| said(self.exclude.as_deref()?, path, is_directory))
            .unwrap_or(Verdict::Shown)
    }

    /// The verdict on any path: what is in an ignored directory is ignored.
    pub fn verdict(&self, path: &[u8], is_directory: bool) -> Verdict {
        path::above(path)
            .map(|directory| self.own(directory, true))
            .find(|verdict| *verdict != Verdict::Shown)
            .unwrap_or_else(|| self.own(path, is_directory))
    }

    fn said_in(&self, directory: &[u8], rest: &[u8], is_directory: bool) -> Option<Verdict> {
        said(self.by_directory.get(directory)?, rest, is_directory)
    }
}

fn said(rules: &Gitignore, path: &[u8], is_directory: bool) -> Option<Verdict> {
    match rules.matched(Path::new(OsStr::from_bytes(path)), is_directory) {
        Match::None => None,
        Match::Ignore(_) => Some(Verdict::Ignored),
        Match::Whitelist(_) => Some(Verdict::Shown),
    }
}

/// A line that is no pattern is left out, as git does.
fn parsed(text: &[u8]) -> Option<Arc<Gitignore>> {
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

    fn rules(files: &[(&str, &str)]) -> Rules {
        let root = tempfile::tempdir().unwrap();
        for (directory, text) in files {
            std::fs::create_dir_all(root.path().join(directory)).unwrap();
            std::fs::write(root.path().join(directory).join(".gitignore"), text).unwrap();
        }
        let mut rules = Rules::default();
        for (directory, _) in files {
            rules.enter(root.path(), directory.as_bytes(), true, false);
        }
        rules
    }

    #[test]
    fn rules_of_git() {
        let rules = rules(&[("", "target/\n*.log\n/only-top\n[\n!keep.log\n"), ("sub", "!special.log\nlocal\n")]);
        let verdict = |path: &str, is_directory| rules.verdict(path.as_bytes(), is_directory);
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
            assert_eq!(verdict(path, is_directory), Verdict::Ignored, "{path}");
        }
        for path in
            ["target", "keep.log", "sub/keep.log", "sub/special.log", "sub/only-top", "local", "src/main.rs", ".env"]
        {
            assert_eq!(verdict(path, false), Verdict::Shown, "{path}");
        }
        for path in [".git", ".git/config", "sub/.git/config"] {
            assert_eq!(verdict(path, false), Verdict::Forbidden, "{path}");
        }
    }
}
