//! Keys of tickets, such as `ATL-12`: the prefix of the project and a number.

use crate::bounds::{OutOfBounds, reject_field};
use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

const MAX_PREFIX_CHARS: usize = 10;
/// Letters that a prefix takes from the name of its project.
const DERIVED_PREFIX_CHARS: usize = 3;
const DEFAULT_PREFIX: &str = "ATL";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid ticket key: it is a prefix of capital letters and digits, `-` and a number, such as ATL-12")]
pub struct BadTicketKey;

/// The key of a ticket.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketKey {
    prefix: String,
    number: i64,
}

impl TicketKey {
    pub fn new(prefix: &str, number: i64) -> Self {
        Self { prefix: prefix.to_owned(), number }
    }
}

impl fmt::Display for TicketKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.prefix, self.number)
    }
}

impl FromStr for TicketKey {
    type Err = BadTicketKey;

    /// Also reads the prefix in small letters, as people type it.
    fn from_str(text: &str) -> Result<Self, BadTicketKey> {
        let (prefix, number) = text.rsplit_once('-').ok_or(BadTicketKey)?;
        let prefix = prefix.to_ascii_uppercase();
        let is_number = !number.is_empty() && !number.starts_with('0') && number.bytes().all(|b| b.is_ascii_digit());
        if !is_prefix(&prefix) || !is_number {
            return Err(BadTicketKey);
        }
        let number = number.parse().map_err(|_| BadTicketKey)?;
        Ok(Self { prefix, number })
    }
}

impl serde::Serialize for TicketKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> serde::Deserialize<'de> for TicketKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(feature = "openapi")]
impl utoipa::PartialSchema for TicketKey {
    fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
        utoipa::openapi::ObjectBuilder::new()
            .schema_type(utoipa::openapi::schema::Type::String)
            .pattern(Some("^[A-Z][A-Z0-9]{1,9}-[1-9][0-9]{0,17}$"))
            .build()
            .into()
    }
}

#[cfg(feature = "openapi")]
impl utoipa::ToSchema for TicketKey {
    fn name() -> std::borrow::Cow<'static, str> {
        "TicketKey".into()
    }
}

fn is_prefix(prefix: &str) -> bool {
    (2..=MAX_PREFIX_CHARS).contains(&prefix.len())
        && prefix.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit())
        && prefix.starts_with(|first: char| first.is_ascii_uppercase())
}

/// Validates a requested prefix.
pub fn check_prefix(field: &str, prefix: &str) -> Result<(), OutOfBounds> {
    if is_prefix(prefix) {
        return Ok(());
    }
    reject_field(field, "must be 2 to 10 of A-Z and 0-9, beginning with a letter")
}

/// Chooses the prefix of a project that has none: the first letters of its name, with a number if it is taken. The default
/// project's prefix is `ATL`.
pub fn choose_prefix(project_name: &str, is_default: bool, taken: &BTreeSet<String>) -> String {
    let letters = project_name.chars().filter(char::is_ascii_alphabetic).take(DERIVED_PREFIX_CHARS);
    let derived: String = letters.map(|letter| letter.to_ascii_uppercase()).collect();
    let stem = if is_default || derived.len() < 2 { DEFAULT_PREFIX.to_owned() } else { derived };
    let numbered = (2..).map(|number: u32| format!("{stem}{number}"));
    let mut candidates = std::iter::once(stem.clone()).chain(numbered);
    candidates.find(|candidate| !taken.contains(candidate)).unwrap_or(stem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_keys_as_people_type_them() {
        assert_eq!("ATL-12".parse(), Ok(TicketKey::new("ATL", 12)));
        assert_eq!("atl-12".parse(), Ok(TicketKey::new("ATL", 12)));
        for bad in [
            "",
            "ATL",
            "ATL-",
            "ATL-0",
            "ATL-01",
            "ATL--1",
            "ATL-1x",
            "A-1",
            "1A-1",
            "ATL-+1",
            "Ä-1",
            "ATL-9223372036854775808",
        ] {
            assert_eq!(bad.parse::<TicketKey>(), Err(BadTicketKey), "{bad}");
        }
    }

    #[test]
    fn a_prefix_comes_from_the_name_and_is_unique() {
        let taken = BTreeSet::from(["ATL".to_owned(), "PAR".to_owned(), "PAR2".to_owned()]);
        assert_eq!(choose_prefix("default", true, &BTreeSet::new()), "ATL");
        assert_eq!(choose_prefix("default", true, &taken), "ATL2");
        assert_eq!(choose_prefix("parser", false, &taken), "PAR3");
        assert_eq!(choose_prefix("my compiler", false, &taken), "MYC");
        assert_eq!(choose_prefix("日本", false, &BTreeSet::new()), "ATL");
        assert!(check_prefix("ticket_prefix", "AB2").is_ok() && check_prefix("ticket_prefix", "ab").is_err());
    }

    proptest! {
        #[test]
        fn a_key_survives_its_written_form(name in "\\PC{0,20}", is_default: bool, number in 1..i64::MAX) {
            let prefix = choose_prefix(&name, is_default, &BTreeSet::new());
            prop_assert!(check_prefix("ticket_prefix", &prefix).is_ok(), "{}", prefix);
            let key = TicketKey::new(&prefix, number);
            prop_assert_eq!(key.to_string().parse(), Ok(key));
        }
    }
}
