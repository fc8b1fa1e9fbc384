//! Branch names: built from a title, validated, and made unique.

use std::collections::{BTreeMap, BTreeSet};

const MAX_SLUG_LENGTH: usize = 50;
/// A ref is also a file name, with a suffix while it is locked.
const MAX_NAME_BYTES: usize = 200;
const MAX_NAME_ATTEMPTS: u32 = 100_000;

/// Builds `prefix/slug` from a title: ASCII, lower case, cut at a word.
pub fn branch_name(prefix: &str, title: &str) -> String {
    let slug = match make_slug(title, MAX_SLUG_LENGTH) {
        empty if empty.is_empty() => "work".to_owned(),
        slug => slug,
    };
    let prefix: Vec<_> = prefix.split('/').map(|part| make_slug(part, MAX_SLUG_LENGTH)).collect();
    let parts = prefix.into_iter().filter(|part| !part.is_empty()).take(3).chain([slug]);
    parts.collect::<Vec<_>>().join("/")
}

/// Builds the branch name of a ticket: `prefix/KEY-slug`.
pub fn ticket_branch_name(prefix: &str, key: &str, title: &str) -> String {
    match make_slug(title, MAX_SLUG_LENGTH) {
        empty if empty.is_empty() => format!("{prefix}/{key}"),
        slug => format!("{prefix}/{key}-{slug}"),
    }
}

fn make_slug(title: &str, longest: usize) -> String {
    let mut slug = String::new();
    for word in split_words(title) {
        let room = longest.saturating_sub(slug.len() + usize::from(!slug.is_empty()));
        if word.len() <= room {
            if !slug.is_empty() {
                slug.push('-');
            }
            slug.push_str(&word);
        } else if slug.is_empty() {
            slug.extend(word.chars().take(longest));
            break;
        } else {
            break;
        }
    }
    slug
}

/// Splits a text into words of ASCII letters and digits. Stops reading a word at the slug's length.
fn split_words(text: &str) -> impl Iterator<Item = String> {
    text.split(|character: char| !character.is_alphanumeric() && !matches!(character, '\'' | '’'))
        .map(|word| {
            let plain = word.chars().take(4 * MAX_SLUG_LENGTH).flat_map(char::to_lowercase).flat_map(to_ascii_letters);
            plain.collect::<String>()
        })
        .filter(|word| !word.is_empty())
}

/// Transliterates a letter to ASCII where a usual spelling exists.
fn to_ascii_letters(character: char) -> impl Iterator<Item = char> {
    let ascii = match character {
        'à'..='å' | 'ā' | 'ă' | 'ą' => "a",
        'ç' | 'ć' | 'č' => "c",
        'ď' | 'đ' => "d",
        'è'..='ë' | 'ē' | 'ė' | 'ę' | 'ě' => "e",
        'ğ' => "g",
        'ì'..='ï' | 'ī' | 'ı' => "i",
        'ł' => "l",
        'ñ' | 'ń' | 'ň' => "n",
        'ò'..='ö' | 'ø' | 'ō' | 'ő' => "o",
        'ř' => "r",
        'ś' | 'ş' | 'š' | 'ș' => "s",
        'ť' | 'ț' => "t",
        'ù'..='ü' | 'ū' | 'ů' | 'ű' => "u",
        'ý' | 'ÿ' => "y",
        'ź' | 'ż' | 'ž' => "z",
        'æ' => "ae",
        'œ' => "oe",
        'ß' => "ss",
        _ => "",
    };
    character.is_ascii_alphanumeric().then_some(character).into_iter().chain(ascii.chars())
}

/// True if git accepts the name for a branch or tag (`git check-ref-format --branch`) and it is not too long.
pub fn is_valid_ref_name(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let letter = |letter: char| letter.is_control() || " ~^:?*[\\".contains(letter);
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && name != "@"
        && name != "HEAD"
        && !name.starts_with('-')
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(letter)
        && name.split('/').all(part)
}

/// Returns the requested branch name, or the next one like it that is not in `taken`.
pub fn free_branch_name(requested: &str, taken: &BTreeSet<String>) -> Option<String> {
    find_free_name(requested, taken).map(|assigned| assigned.name)
}

/// An unused branch name, and the conflict with the requested one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AssignedBranch {
    pub name: String,
    pub conflict: Option<NameConflict>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameConflict {
    Taken,
    /// The session's own branch has commits that the result lacks.
    Moved,
    /// The session's own branch is checked out in a worktree.
    CheckedOut,
    /// A branch has the name of a parent directory of the requested one.
    Blocked {
        by: String,
    },
}

/// Returns the requested name, or the next unused one like it.
pub(crate) fn find_free_name(requested: &str, existing: &BTreeSet<String>) -> Option<AssignedBranch> {
    let slashes = requested.match_indices('/').map(|(place, _)| &requested[..place]);
    let blocked = slashes.filter(|directory| existing.contains(*directory)).map(str::to_owned).next();
    let stem = if blocked.is_some() { requested.replace('/', "-") } else { requested.to_owned() };
    let is_free = |name: &String| {
        let inside = format!("{name}/");
        let first = existing.range(inside.clone()..).next();
        !existing.contains(name) && !first.is_some_and(|other| other.starts_with(&inside))
    };
    let numbered = (2..MAX_NAME_ATTEMPTS).map(|number| format!("{stem}-{number}"));
    let name = std::iter::once(stem.clone()).chain(numbered).find(is_free)?;
    let why = match blocked {
        Some(by) => Some(NameConflict::Blocked { by }),
        None => (name != requested).then_some(NameConflict::Taken),
    };
    Some(AssignedBranch { name, conflict: why })
}

/// Finds a branch with a name like the requested one at this commit: an earlier attempt created it.
pub(crate) fn find_existing_branch(
    requested: &str,
    commit: &str,
    branches: &BTreeMap<String, String>,
) -> Option<AssignedBranch> {
    let flat = requested.replace('/', "-");
    let is_like = |name: &str| {
        [requested, &flat].iter().filter_map(|stem| name.strip_prefix(*stem)).any(|rest| {
            let number = rest.strip_prefix('-').is_some_and(|digits| digits.parse::<u32>().is_ok());
            rest.is_empty() || number
        })
    };
    let mut there = branches.iter().filter(|(name, at)| *at == commit && is_like(name)).map(|(name, _)| name);
    let name = there.next()?.clone();
    let why = (name != requested).then_some(NameConflict::Taken);
    Some(AssignedBranch { name, conflict: why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn git_accepts(name: &str) -> bool {
        // `--branch` alone also accepts shorthands such as `@{-1}`.
        let whole = format!("refs/heads/{name}");
        let check = |arguments: &[&str]| {
            let output = Command::new("git").arg("check-ref-format").args(arguments).env_clear().output().unwrap();
            output.status.success()
        };
        check(&[&whole]) && check(&["--branch", name])
    }

    #[test]
    fn titles_become_branch_names() {
        let long = "Make the parser of configuration files at least ten times faster than it is";
        for (prefix, title, name) in [
            ("atoll", "Fix the login page", "atoll/fix-the-login-page"),
            ("atoll", "  --Fix: it's BROKEN!! (again) ", "atoll/fix-its-broken-again"),
            ("feature/ATL-12", "x", "feature/atl-12/x"),
            ("", "x", "x"),
            ("../..", "../../etc/passwd", "etc-passwd"),
            ("atoll", "", "atoll/work"),
            ("atoll", "日本語", "atoll/work"),
            ("atoll", "Überprüfe das Menü, größer", "atoll/uberprufe-das-menu-grosser"),
            ("atoll", "a.lock\nb", "atoll/a-lock-b"),
            ("atoll", long, "atoll/make-the-parser-of-configuration-files-at-least"),
        ] {
            assert_eq!(branch_name(prefix, title), name);
        }
        let one_word = branch_name("atoll", &"x".repeat(10_000));
        assert_eq!(one_word, format!("atoll/{}", "x".repeat(50)));
    }

    #[test]
    fn tickets_name_their_branches() {
        let long = "Make the parser of configuration files at least ten times faster than it is";
        for (title, name) in [
            ("Calculate the binomial coefficient", "feature/ATL-12-calculate-the-binomial-coefficient"),
            ("日本語", "feature/ATL-12"),
            ("../../x.lock", "feature/ATL-12-x-lock"),
            (long, "feature/ATL-12-make-the-parser-of-configuration-files-at-least"),
        ] {
            assert_eq!(ticket_branch_name("feature", "ATL-12", title), name);
            assert!(is_valid_ref_name(name) && git_accepts(name), "{name}");
        }
    }

    #[test]
    fn finds_the_next_free_name() {
        let existing: BTreeSet<String> = ["main", "a/x", "a/y", "a/y-2", "b/x/deep", "c"].map(str::to_owned).into();
        let free = |requested: &str| find_free_name(requested, &existing).unwrap();
        assert_eq!(free("a/z"), AssignedBranch { name: "a/z".to_owned(), conflict: None });
        assert_eq!(free("a/x"), AssignedBranch { name: "a/x-2".to_owned(), conflict: Some(NameConflict::Taken) });
        assert_eq!(free("a/y"), AssignedBranch { name: "a/y-3".to_owned(), conflict: Some(NameConflict::Taken) });
        assert_eq!(free("b/x"), AssignedBranch { name: "b/x-2".to_owned(), conflict: Some(NameConflict::Taken) });
        assert_eq!(
            free("c/x"),
            AssignedBranch { name: "c-x".to_owned(), conflict: Some(NameConflict::Blocked { by: "c".to_owned() }) }
        );
    }

    #[test]
    fn finds_the_branch_of_an_earlier_attempt() {
        let branches = [("a/x", "1"), ("a/x-2", "2"), ("a/x-two", "3"), ("a-y", "4")];
        let branches = branches.map(|(name, commit)| (name.to_owned(), commit.to_owned())).into();
        let found = |requested, commit| {
            find_existing_branch(requested, commit, &branches).map(|free| (free.name, free.conflict))
        };
        assert_eq!(found("a/x", "1"), Some(("a/x".to_owned(), None)));
        assert_eq!(found("a/x", "2"), Some(("a/x-2".to_owned(), Some(NameConflict::Taken))));
        assert_eq!(found("a/y", "4"), Some(("a-y".to_owned(), Some(NameConflict::Taken))));
        assert_eq!(found("a/x", "3"), None);
        assert_eq!(found("b", "1"), None);
    }

    #[test]
    fn rejects_names_that_git_rejects() {
        for name in [
            "", "-x", "HEAD", "@", "a..b", "a@{b", "a b", "a\nb", "a/.b", "a.lock", "a/", "/a", "a//b", "a.", "a\\b",
            "a^",
        ] {
            assert!(!is_valid_ref_name(name), "{name:?}");
        }
        for name in ["main", "atoll/x-2", "größe", "v1.2", "a@b", "refs/heads/x"] {
            assert!(is_valid_ref_name(name) && git_accepts(name), "{name:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn git_accepts_every_name_built_from_a_title(prefix in "\\PC{0,20}", title in "(?s).{0,200}") {
            let name = branch_name(&prefix, &title);
            prop_assert!(is_valid_ref_name(&name), "{name:?}");
            prop_assert!(git_accepts(&name), "{name:?}");
            let slug = name.rsplit('/').next().unwrap_or_default();
            prop_assert!((1..=50).contains(&slug.len()), "{name:?}");
            prop_assert!(slug.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')), "{name:?}");
        }

        #[test]
        fn agrees_with_git_check_ref_format(name in "[-a./@{}~ :?*\\[\\\\^]{1,8}|[a.]{1,3}(\\.lock)?(/[a.lock]{1,6})?") {
            // Git accepts this branch name but reads it as HEAD.
            prop_assume!(name != "@");
            prop_assert_eq!(is_valid_ref_name(&name), git_accepts(&name), "{:?}", name);
        }
    }
}
