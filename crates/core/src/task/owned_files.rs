//! Globs of the files that a task owns, and whether two tasks could change the same file.
//!
//! `*` stands for any characters of one name, `?` for one, and `**` for any number of directories. A pattern also owns
//! everything below the directories that it matches; a last name with a dot, such as `*.rs` or `guide.md`, is a file unless the
//! pattern ends with `/`.

use crate::bounds::{OutOfBounds, reject_field};
use serde::{Deserialize, Serialize};

pub const MAX_PATTERNS: usize = 50;
const MAX_PATTERN_BYTES: usize = 255;

/// The patterns of a task's files. A task without patterns owns no file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OwnedFiles(pub Vec<String>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Char(char),
    AnyChar,
    AnyRun,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Name(Vec<Token>),
    AnyDirs,
}

fn parse_pattern(pattern: &str) -> Vec<Segment> {
    let parse_name = |name: &str| match name {
        "**" => Segment::AnyDirs,
        name => Segment::Name(
            name.chars()
                .map(|c| match c {
                    '*' => Token::AnyRun,
                    '?' => Token::AnyChar,
                    c => Token::Char(c),
                })
                .collect(),
        ),
    };
    let trimmed = pattern.trim_end_matches('/');
    let last = trimmed.rsplit('/').next().unwrap_or_default();
    let may_be_directory = trimmed != pattern || !last.trim_start_matches('.').contains('.');
    let below = may_be_directory.then_some(Segment::AnyDirs);
    trimmed.split('/').map(parse_name).chain(below).collect()
}

fn parse_path(path: &str) -> Vec<Segment> {
    path.split('/').map(|name| Segment::Name(name.chars().map(Token::Char).collect())).collect()
}

/// True if some sequence matches both: `matches` compares two single items, and `is_any` marks items for any run.
fn can_meet<T>(a: &[T], b: &[T], is_any: impl Fn(&T) -> bool, matches: impl Fn(&T, &T) -> bool) -> bool {
    // `below[j]` is the result for the rests `a[i + 1..]` and `b[j..]`.
    let mut below = vec![false; b.len() + 1];
    for i in (0..=a.len()).rev() {
        let mut row = vec![false; b.len() + 1];
        for j in (0..=b.len()).rev() {
            row[j] = match (a.get(i), b.get(j)) {
                (None, None) => true,
                (Some(x), None) => is_any(x) && below[j],
                (None, Some(y)) => is_any(y) && row[j + 1],
                (Some(x), Some(_)) if is_any(x) => below[j] || row[j + 1],
                (Some(_), Some(y)) if is_any(y) => row[j + 1] || below[j],
                (Some(x), Some(y)) => matches(x, y) && below[j + 1],
            };
        }
        below = row;
    }
    below[0]
}

fn names_meet(a: &[Token], b: &[Token]) -> bool {
    can_meet(
        a,
        b,
        |token| *token == Token::AnyRun,
        |x, y| match (x, y) {
            (Token::Char(x), Token::Char(y)) => x == y,
            (Token::AnyChar | Token::AnyRun, _) | (_, Token::AnyChar | Token::AnyRun) => true,
        },
    )
}

fn paths_meet(a: &[Segment], b: &[Segment]) -> bool {
    can_meet(
        a,
        b,
        |segment| *segment == Segment::AnyDirs,
        |x, y| match (x, y) {
            (Segment::Name(x), Segment::Name(y)) => names_meet(x, y),
            (Segment::AnyDirs, _) | (_, Segment::AnyDirs) => true,
        },
    )
}

impl OwnedFiles {
    /// True if a file could belong to both.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.0.iter().any(|own| {
            let own = parse_pattern(own);
            other.0.iter().any(|other| paths_meet(&own, &parse_pattern(other)))
        })
    }

    /// True if the path, relative to the workspace, belongs to the task.
    pub fn covers(&self, path: &str) -> bool {
        self.0.iter().any(|own| paths_meet(&parse_pattern(own), &parse_path(path)))
    }

    pub fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        if self.0.len() > MAX_PATTERNS {
            return reject_field(field, format!("at most {MAX_PATTERNS} patterns"));
        }
        for pattern in &self.0 {
            if pattern.is_empty() || pattern.len() > MAX_PATTERN_BYTES {
                return reject_field(field, format!("a pattern has 1 to {MAX_PATTERN_BYTES} bytes"));
            }
            let names: Vec<&str> = pattern.trim_end_matches('/').split('/').collect();
            if names.iter().any(|name| name.is_empty() || *name == "." || *name == "..") {
                return reject_field(field, "a pattern is a path below the workspace, such as src/api/**");
            }
            if names.iter().any(|name| name.contains("**") && *name != "**") {
                return reject_field(field, "`**` stands alone between slashes");
            }
            if pattern.contains(|c: char| c.is_control() || "[]{}\\".contains(c)) {
                return reject_field(field, "a pattern has only the wildcards *, ? and **");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn files(patterns: &[&str]) -> OwnedFiles {
        OwnedFiles(patterns.iter().map(|pattern| (*pattern).to_owned()).collect())
    }

    #[test]
    fn finds_common_files() {
        for (a, b, overlap) in [
            ("src/lib.rs", "src/lib.rs", true),
            ("src/lib.rs", "src/main.rs", false),
            ("src", "src/api/mod.rs", true),
            ("src/", "src/api", true),
            ("src/*.rs", "src/l?b.rs", true),
            ("src/*.rs", "src/*.py", false),
            ("src/*.rs", "src/api/*.rs", false),
            ("src/a*", "src/*b", true),
            ("src/a*c", "src/b*c", false),
            ("**/*.rs", "docs/guide.md", false),
            ("docs/v1.2/", "docs/v1.2/guide.md", true),
            (".github", ".github/workflows/ci.yml", true),
            ("**/*.rs", "docs", true),
            ("**/test/**", "src/test/a.rs", true),
            ("**", "anything", true),
            ("a/**/z", "a/z", true),
            ("a/**/z", "a/b/c/z", true),
            ("a/**/z", "b/**/z", false),
            ("*", "a/b", true),
            ("Src", "src", false),
        ] {
            assert_eq!(files(&[a]).overlaps(&files(&[b])), overlap, "{a} {b}");
            assert_eq!(files(&[b]).overlaps(&files(&[a])), overlap, "{b} {a}");
        }
        assert!(files(&["a", "b"]).overlaps(&files(&["c", "b/x"])));
        assert!(!files(&[]).overlaps(&files(&["**"])));
    }

    #[test]
    fn covers_paths_literally() {
        let own = files(&["src/*.rs", "docs"]);
        for (path, covered) in
            [("src/a.rs", true), ("src/a/b.rs", false), ("docs/x/y.md", true), ("docs", true), ("*", false)]
        {
            assert_eq!(own.covers(path), covered, "{path}");
        }
    }

    #[test]
    fn rejects_other_patterns() {
        for bad in ["", "/etc", "a//b", "../x", "a/./b", "a**", "a/{b,c}", "[ab]", "a\\b", "a\nb"] {
            assert!(files(&[bad]).check_bounds("owned_files").is_err(), "{bad}");
        }
        let many = OwnedFiles(vec!["a".into(); MAX_PATTERNS + 1]);
        assert!(many.check_bounds("owned_files").is_err());
        assert!(files(&["src/**/a?.rs", "docs/", "**"]).check_bounds("owned_files").is_ok());
    }

    #[test]
    fn a_hostile_pattern_takes_little_time() {
        let stars = "*a".repeat(120);
        assert!(!files(&[&stars]).overlaps(&files(&[&"a".repeat(100)])));
        let dirs = "**/a/".repeat(50);
        assert!(files(&[&dirs]).overlaps(&files(&[&"a/".repeat(120)])));
    }

    proptest! {
        /// Two patterns that cover one path overlap.
        #[test]
        fn a_common_path_is_an_overlap(a in "[ab*?]{1,4}(/([ab*?]{1,3}|\\*\\*)){0,3}", b in "[ab*?]{1,4}(/([ab*?]{1,3}|\\*\\*)){0,3}", path in "[ab]{1,3}(/[ab]{1,2}){0,3}") {
            let (a, b) = (files(&[&a]), files(&[&b]));
            if a.covers(&path) && b.covers(&path) {
                prop_assert!(a.overlaps(&b));
            }
        }
    }
}
