//! Names of branches: from a title, checked, and free.

use std::collections::{BTreeMap, BTreeSet};

const LONGEST_SLUG: usize = 50;
/// A ref is also a file, with a suffix while it is locked.
const LONGEST_NAME: usize = 200;
const MOST_TRIES: u32 = 100_000;

/// `prefix/slug` for what a title says: ASCII, lower case, cut at a word.
pub fn branch_name(prefix: &str, title: &str) -> String {
    let slug = match slug(title, LONGEST_SLUG) {
        empty if empty.is_empty() => "work".to_owned(),
        slug => slug,
    };
    let prefix: Vec<_> = prefix.split('/').map(|part| self::slug(part, LONGEST_SLUG)).collect();
    let parts = prefix.into_iter().filter(|part| !part.is_empty()).take(3).chain([slug]);
    parts.collect::<Vec<_>>().join("/")
}

fn slug(title: &str, longest: usize) -> String {
    let mut slug = String::new();
    for word in words(title) {
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

/// The words of a text in plain letters and digits. A word longer than any slug is not read to its end.
fn words(text: &str) -> impl Iterator<Item = String> {
    text.split(|character: char| !character.is_alphanumeric() && !matches!(character, '\'' | '’'))
        .map(|word| {
            let plain = word.chars().take(4 * LONGEST_SLUG).flat_map(char::to_lowercase).flat_map(plain);
            plain.collect::<String>()
        })
        .filter(|word| !word.is_empty())
}

/// A letter as ASCII, where there is a usual way to write it so.
fn plain(character: char) -> impl Iterator<Item = char> {
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

/// Whether git takes this as the name of a branch or tag (`git check-ref-format --branch`), and it is not too long.
pub fn is_name(name: &str) -> bool {
    let part = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.ends_with(".lock");
    let letter = |letter: char| letter.is_control() || " ~^:?*[\\".contains(letter);
    !name.is_empty()
        && name.len() <= LONGEST_NAME
        && name != "@"
        && name != "HEAD"
        && !name.starts_with('-')
        && !name.ends_with('.')
        && !name.contains("..")
        && !name.contains("@{")
        && !name.contains(letter)
        && name.split('/').all(part)
}

/// A name that no branch has, and why it is not the wanted one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Free {
    pub name: String,
    pub why: Option<Why>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Why {
    Taken,
    /// A branch has the name of the directory that the wanted one would be in.
    Blocked {
        by: String,
    },
}

/// The wanted name if it is free, else the next like it.
pub(crate) fn free_name(wanted: &str, taken: &BTreeSet<String>) -> Option<Free> {
    let slashes = wanted.match_indices('/').map(|(place, _)| &wanted[..place]);
    let blocked = slashes.filter(|directory| taken.contains(*directory)).map(str::to_owned).next();
    let stem = if blocked.is_some() { wanted.replace('/', "-") } else { wanted.to_owned() };
    let is_free = |name: &String| {
        let inside = format!("{name}/");
        let first = taken.range(inside.clone()..).next();
        !taken.contains(name) && !first.is_some_and(|other| other.starts_with(&inside))
    };
    let numbered = (2..MOST_TRIES).map(|number| format!("{stem}-{number}"));
    let name = std::iter::once(stem.clone()).chain(numbered).find(is_free)?;
    let why = match blocked {
        Some(by) => Some(Why::Blocked { by }),
        None => (name != wanted).then_some(Why::Taken),
    };
    Some(Free { name, why })
}

/// A branch of the wanted name, or one like it, that is at this commit already: an earlier try came so far.
pub(crate) fn already(wanted: &str, commit: &str, branches: &BTreeMap<String, String>) -> Option<Free> {
    let flat = wanted.replace('/', "-");
    let is_like = |name: &str| {
        [wanted, &flat].iter().filter_map(|stem| name.strip_prefix(*stem)).any(|rest| {
            let number = rest.strip_prefix('-').is_some_and(|digits| digits.parse::<u32>().is_ok());
            rest.is_empty() || number
        })
    };
    let mut there = branches.iter().filter(|(name, at)| *at == commit && is_like(name)).map(|(name, _)| name);
    let name = there.next()?.clone();
    let why = (name != wanted).then_some(Why::Taken);
    Some(Free { name, why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::Command;

    fn git_takes(name: &str) -> bool {
        // `--branch` alone lets through what only a shell of an interactive user would mean.
        let whole = format!("refs/heads/{name}");
        let check = |arguments: &[&str]| {
            let output = Command::new("git").arg("check-ref-format").args(arguments).env_clear().output().unwrap();
            output.status.success()
        };
        check(&[&whole]) && check(&["--branch", name])
    }

    #[test]
    fn titles_become_names() {
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
    fn the_next_free_name_is_found() {
        let taken: BTreeSet<String> = ["main", "a/x", "a/y", "a/y-2", "b/x/deep", "c"].map(str::to_owned).into();
        let free = |wanted: &str| free_name(wanted, &taken).unwrap();
        assert_eq!(free("a/z"), Free { name: "a/z".to_owned(), why: None });
        assert_eq!(free("a/x"), Free { name: "a/x-2".to_owned(), why: Some(Why::Taken) });
        assert_eq!(free("a/y"), Free { name: "a/y-3".to_owned(), why: Some(Why::Taken) });
        assert_eq!(free("b/x"), Free { name: "b/x-2".to_owned(), why: Some(Why::Taken) });
        assert_eq!(free("c/x"), Free { name: "c-x".to_owned(), why: Some(Why::Blocked { by: "c".to_owned() }) });
    }

    #[test]
    fn a_branch_of_an_earlier_try_is_found() {
        let branches = [("a/x", "1"), ("a/x-2", "2"), ("a/x-two", "3"), ("a-y", "4")];
        let branches = branches.map(|(name, commit)| (name.to_owned(), commit.to_owned())).into();
        let found = |wanted, commit| already(wanted, commit, &branches).map(|free| (free.name, free.why));
        assert_eq!(found("a/x", "1"), Some(("a/x".to_owned(), None)));
        assert_eq!(found("a/x", "2"), Some(("a/x-2".to_owned(), Some(Why::Taken))));
        assert_eq!(found("a/y", "4"), Some(("a-y".to_owned(), Some(Why::Taken))));
        assert_eq!(found("a/x", "3"), None);
        assert_eq!(found("b", "1"), None);
    }

    #[test]
    fn names_that_git_refuses_are_refused() {
        for name in [
            "", "-x", "HEAD", "@", "a..b", "a@{b", "a b", "a\nb", "a/.b", "a.lock", "a/", "/a", "a//b", "a.", "a\\b",
            "a^",
        ] {
            assert!(!is_name(name), "{name:?}");
        }
        for name in ["main", "atoll/x-2", "größe", "v1.2", "a@b", "refs/heads/x"] {
            assert!(is_name(name) && git_takes(name), "{name:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        #[test]
        fn git_takes_every_name_made_of_a_title(prefix in "\\PC{0,20}", title in "(?s).{0,200}") {
            let name = branch_name(&prefix, &title);
            prop_assert!(is_name(&name), "{name:?}");
            prop_assert!(git_takes(&name), "{name:?}");
            let slug = name.rsplit('/').next().unwrap_or_default();
            prop_assert!((1..=50).contains(&slug.len()), "{name:?}");
            prop_assert!(slug.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-')), "{name:?}");
        }

        #[test]
        fn the_check_is_git_s_own(name in "[-a./@{}~ :?*\\[\\\\^]{1,8}|[a.]{1,3}(\\.lock)?(/[a.lock]{1,6})?") {
            // Git lets a branch have this name, but means HEAD by it.
            prop_assume!(name != "@");
            prop_assert_eq!(is_name(&name), git_takes(&name), "{:?}", name);
        }
    }
}
