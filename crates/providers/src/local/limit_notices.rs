//! Notices about limits that this machine does not enforce.

use atoll_jail::{EnforcedLimits, Enforcement, IdMapKind, SandboxInfo};

/// Describes every limit that is not enforced, except the disk's.
pub(super) fn limit_notices(enforced: &EnforcedLimits) -> Vec<String> {
    let bounds = [("memory", enforced.memory), ("CPU time", enforced.cpu), ("process count", enforced.pids)];
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

/// Describes a disk limit that is not enforced. Most machines have no quota, so it is no news in each sandbox.
pub(super) fn disk_notice(enforced: &EnforcedLimits) -> Option<String> {
    match enforced.disk {
        Enforcement::Enforced => None,
        Enforcement::Monitored => Some("disk space: monitored only (no quota on this file system)".into()),
        Enforcement::PerProcess | Enforcement::None => Some("disk space: not limited on this machine".into()),
    }
}

/// Describes the protected paths that could not be mounted read-only.
pub(super) fn unprotected_notice(info: &SandboxInfo) -> Option<String> {
    let missing = info.unprotected.join(", ");
    (!missing.is_empty()).then(|| {
        format!("missing, so not read-only inside: {missing}; results that change a protected path are refused")
    })
}

/// Reports that directories of a layer below cannot be renamed.
pub(super) fn fixed_dirs_notice(info: &SandboxInfo) -> Option<String> {
    let which = match info.cache {
        Some(_) => "that set-up left",
        None => "from before the fork, snapshot or set-up layer",
    };
    info.has_fixed_dirs.then(|| {
        format!(
            "a directory {which} cannot be renamed in place (EXDEV): `mv` copies it, `git mv` fails; run `atoll doctor`"
        )
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
        assert_eq!(disk_notice(&all_enforced()), None);
        let weak = EnforcedLimits {
            memory: Enforcement::PerProcess,
            disk: Enforcement::None,
            cpu: Enforcement::None,
            ids: IdMapKind::SingleId,
            ..all_enforced()
        };
        let notices = limit_notices(&weak);
        assert_eq!(notices[0], "not limited on this machine: CPU time");
        assert_eq!(notices[1], "limited per process only: memory");
        assert_eq!(notices.len(), 3);
        assert_eq!(disk_notice(&weak).as_deref(), Some("disk space: not limited on this machine"));
        let monitored = EnforcedLimits { disk: Enforcement::Monitored, ..all_enforced() };
        assert_eq!(limit_notices(&monitored), Vec::<String>::new(), "a missing quota alone is no notice of a run");
        assert!(disk_notice(&monitored).unwrap().contains("monitored only"));
    }
}
