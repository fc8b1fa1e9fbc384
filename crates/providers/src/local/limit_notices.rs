//! Notices about limits that this machine does not enforce.

use atoll_jail::{EnforcedLimits, Enforcement, IdMapKind, SandboxInfo};

/// Describes every limit that is not enforced.
pub(super) fn limit_notices(enforced: &EnforcedLimits) -> Vec<String> {
    let bounds = [
        ("memory", enforced.memory),
        ("CPU time", enforced.cpu),
        ("process count", enforced.pids),
        ("disk space", enforced.disk),
    ];
    let named = |enforcement: Enforcement| -> Vec<&str> {
        bounds.iter().filter(|(_, bound)| *bound == enforcement).map(|(name, _)| *name).collect()
    };
    let mut notices = Vec::new();
    let (free, alone) = (named(Enforcement::None), named(Enforcement::PerProcess));
    if !free.is_empty() {
        notices.push(format!("not limited on this machine: {}", free.join(", ")));
    }
    if !alone.is_empty() {
        notices.push(format!("limited per process only: {}", alone.join(", ")));
    }
    let watched = named(Enforcement::Monitored);
    if !watched.is_empty() {
        notices.push(format!("{}: monitored only (no quota on this file system)", watched.join(", ")));
    }
    match enforced.ids {
        IdMapKind::OwnRange | IdMapKind::SubIds => {}
        IdMapKind::CommonRange => notices.push(
            "all sandboxes share user ids on the host: this kernel or file system has no id-mapped mounts".into(),
        ),
        IdMapKind::SingleId => notices.push(
            "worker and agent share a user id: this user has no id ranges in /etc/subuid; run `atoll doctor`".into(),
        ),
    }
    notices
}

/// Describes the protected paths that could not be mounted read-only.
pub(super) fn unprotected_notice(info: &SandboxInfo) -> Option<String> {
    let missing = info.unprotected.join(", ");
    (!missing.is_empty()).then(|| {
        format!("missing, so not read-only inside: {missing}; results that change a protected path are refused")
    })
}

/// Reports that directories cannot be renamed since a fork or snapshot.
pub(super) fn fixed_dirs_notice(info: &SandboxInfo) -> Option<String> {
    info.has_fixed_dirs.then(|| {
        "a directory from before the fork or snapshot cannot be renamed in place (EXDEV): `mv` copies it, `git mv` fails; run `atoll doctor`".to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_enforced() -> EnforcedLimits {
        let yes = Enforcement::Enforced;
        EnforcedLimits { memory: yes, cpu: yes, pids: yes, open_files: yes, disk: yes, ids: IdMapKind::OwnRange }
    }

    #[test]
    fn notices_name_only_unenforced_limits() {
        assert_eq!(limit_notices(&all_enforced()), Vec::<String>::new());
        let weak = EnforcedLimits {
            memory: Enforcement::PerProcess,
            disk: Enforcement::None,
            cpu: Enforcement::None,
            ids: IdMapKind::SingleId,
            ..all_enforced()
        };
        let notices = limit_notices(&weak);
        assert_eq!(notices[0], "not limited on this machine: CPU time, disk space");
        assert_eq!(notices[1], "limited per process only: memory");
        assert_eq!(notices.len(), 3);
        let notices = limit_notices(&EnforcedLimits { disk: Enforcement::Monitored, ..all_enforced() });
        assert_eq!(notices, ["disk space: monitored only (no quota on this file system)"]);
    }
}
