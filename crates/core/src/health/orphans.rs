//! Orphans: sandboxes at a provider that no row explains, and when the reaper may remove them.

use crate::sandbox::SandboxState;
use std::time::Duration;

/// What the store knows of a sandbox that a provider has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OwnerRow {
    /// There is no row.
    Absent,
    /// There is a row; `names_provider_id` if it still refers to the provider's sandbox, so that its own job removes it.
    Present { state: SandboxState, names_provider_id: bool },
}

/// What the reaper does with a sandbox that it found at a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrphanVerdict {
    /// It is no orphan.
    Keep,
    /// It looks like an orphan, but a running request may still store its row.
    Wait,
    Remove,
}

/// Judges a sandbox that the reaper has seen without an owner for `seen_for`.
pub fn judge_orphan(owner: OwnerRow, seen_for: Duration, grace: Duration) -> OrphanVerdict {
    let is_owned = match owner {
        OwnerRow::Absent => false,
        OwnerRow::Present { state, names_provider_id } => state.is_live() || names_provider_id,
    };
    match (is_owned, seen_for >= grace) {
        (true, _) => OrphanVerdict::Keep,
        (false, false) => OrphanVerdict::Wait,
        (false, true) => OrphanVerdict::Remove,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_sandbox_without_an_owner_is_removed_and_only_after_the_grace() {
        use OrphanVerdict as V;
        use SandboxState as S;
        let present = |state: S, names_provider_id: bool| OwnerRow::Present { state, names_provider_id };
        let (young, old, grace) = (Duration::from_secs(599), Duration::from_secs(600), Duration::from_secs(600));
        for (owner, seen_for, verdict) in [
            (OwnerRow::Absent, young, V::Wait),
            (OwnerRow::Absent, old, V::Remove),
            (present(S::Pending, false), old, V::Keep),
            (present(S::Creating, false), old, V::Keep),
            (present(S::Running, true), old, V::Keep),
            (present(S::Completing, true), old, V::Keep),
            (present(S::Failed, true), old, V::Keep),
            (present(S::Completed, true), old, V::Keep),
            (present(S::Completed, false), young, V::Wait),
            (present(S::Completed, false), old, V::Remove),
            (present(S::Failed, false), old, V::Remove),
        ] {
            assert_eq!(judge_orphan(owner, seen_for, grace), verdict, "{owner:?} {seen_for:?}");
        }
        assert_eq!(judge_orphan(OwnerRow::Absent, Duration::ZERO, Duration::ZERO), V::Remove);
    }
}
