//! References: how a person names a sandbox or a session without its whole id.
//!
//! A reference is the beginning or the end of an id, a name, or a branch. Ids begin with their creation time, so the
//! beginnings of ids of one day are alike; their ends differ.

use crate::bounds::{OutOfBounds, check_snapshot_name, reject_field};

/// Refers to the newest sandbox of the caller.
pub const LAST: &str = "last";
/// A shorter part of an id refers to nothing.
pub const MIN_ID_PART_CHARS: usize = 4;
/// Length of the end of an id that serves as its short form.
pub const SHORT_ID_CHARS: usize = 6;

/// How a reference names a candidate; the best kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReferenceKind {
    Name,
    Id,
    Branch,
}

/// The parts of a sandbox or session that a reference can name.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceTarget<'a> {
    pub id: &'a str,
    pub name: Option<&'a str>,
    pub branch: Option<&'a str>,
}

impl ReferenceTarget<'_> {
    /// Compares the target with a reference; a branch also matches without its prefix up to a `/`.
    pub fn match_reference(&self, reference: &str) -> Option<ReferenceKind> {
        let is_branch = |branch: &str| {
            branch.strip_suffix(reference).is_some_and(|before| before.is_empty() || before.ends_with('/'))
        };
        if reference.is_empty() {
            return None;
        }
        if self.name == Some(reference) {
            return Some(ReferenceKind::Name);
        }
        let bare = self.id.split_once('_').map_or(self.id, |(_, bare)| bare);
        let is_part = bare.starts_with(reference) || bare.ends_with(reference);
        if (is_part && reference.len() >= MIN_ID_PART_CHARS)
            || (reference.contains('_') && self.id.starts_with(reference))
        {
            return Some(ReferenceKind::Id);
        }
        self.branch.filter(|branch| is_branch(branch)).map(|_| ReferenceKind::Branch)
    }
}

/// The end of an id, which refers to it unless another id ends alike.
pub fn short_id(id: &str) -> &str {
    id.len().checked_sub(SHORT_ID_CHARS).and_then(|start| id.get(start..)).unwrap_or(id)
}

/// Validates the name of a sandbox: lower-case letters, digits, `.`, `_` and `-`, and not a word with another meaning.
pub fn check_sandbox_name(field: &str, name: &str) -> Result<(), OutOfBounds> {
    check_snapshot_name(field, name)?;
    if name == LAST || name.starts_with("sbx_") || name.starts_with("ses_") {
        return reject_field(field, "must not be `last` and must not begin like an id (`sbx_`, `ses_`)");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "sbx_01m7fkrr8mezdtrwya23zj4ref";

    #[test]
    fn a_reference_is_a_part_of_the_id_a_name_or_a_branch() {
        let target = ReferenceTarget { id: ID, name: Some("web"), branch: Some("atoll/fix-it") };
        for (reference, expected) in [
            (ID, Some(ReferenceKind::Id)),
            ("sbx_01m7", Some(ReferenceKind::Id)),
            ("01m7", Some(ReferenceKind::Id)),
            ("j4ref", Some(ReferenceKind::Id)),
            (short_id(ID), Some(ReferenceKind::Id)),
            ("01m", None),
            ("m7fk", None),
            ("", None),
            ("web", Some(ReferenceKind::Name)),
            ("we", None),
            ("atoll/fix-it", Some(ReferenceKind::Branch)),
            ("fix-it", Some(ReferenceKind::Branch)),
            ("it", None),
        ] {
            assert_eq!(target.match_reference(reference), expected, "{reference}");
        }
    }

    #[test]
    fn a_name_has_no_other_meaning() {
        for good in ["web", "fix-1", "a.b_c"] {
            assert_eq!(check_sandbox_name("name", good), Ok(()), "{good}");
        }
        for bad in ["", "last", "sbx_1", "ses_x", "a b", "a/b", &"x".repeat(200)] {
            assert!(check_sandbox_name("name", bad).is_err(), "{bad}");
        }
    }
}
