//! What a sandbox can't be held to on this machine, in words.

use atoll_jail::{Bound, Enforced, Ids, Place};

/// Nothing when everything is enforced; else what isn't, so that nobody believes more than is so.
pub(super) fn notices(enforced: &Enforced) -> Vec<String> {
    let bounds = [
        ("memory", enforced.memory),
        ("processor time", enforced.cpu),
        ("the number of processes", enforced.pids),
        ("disk space", enforced.disk),
    ];
    let named = |wanted: Bound| -> Vec<&str> {
        bounds.iter().filter(|(_, bound)| *bound == wanted).map(|(name, _)| *name).collect()
    };
    let mut said = Vec::new();
    let (free, alone) = (named(Bound::No), named(Bound::PerProcess));
    if !free.is_empty() {
        said.push(format!("not limited on this machine: {}", free.join(", ")));
    }
    if !alone.is_empty() {
        said.push(format!("limited only for each process by itself: {}", alone.join(", ")));
    }
    let watched = named(Bound::Watched);
    if !watched.is_empty() {
        said.push(format!("watched, not bounded: {}; who takes too much is stopped", watched.join(", ")));
    }
    match enforced.ids {
        Ids::Own | Ids::Shared => {}
        Ids::Common => said.push(
            "all sandboxes have the same user ids on the host, as this kernel or file system can't map ids of mounts".into(),
        ),
        Ids::Single => said.push(
            "worker and agent have the same user id, as this user has no id ranges (/etc/subuid); `atoll doctor` says more"
                .into(),
        ),
    }
    said
}

/// What could not be mounted read-only.
pub(super) fn unprotected(place: &Place) -> Option<String> {
    let missing = place.unprotected.join(", ");
    (!missing.is_empty()).then(|| {
        format!("not there, so not read-only inside: {missing}; results that change a protected path are refused")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Enforced {
        let yes = Bound::Enforced;
        Enforced { memory: yes, cpu: yes, pids: yes, open_files: yes, disk: yes, ids: Ids::Own }
    }

    #[test]
    fn what_is_not_enforced_is_named_and_nothing_else() {
        assert_eq!(notices(&all()), Vec::<String>::new());
        let weak = Enforced { memory: Bound::PerProcess, disk: Bound::No, cpu: Bound::No, ids: Ids::Single, ..all() };
        let said = notices(&weak);
        assert_eq!(said[0], "not limited on this machine: processor time, disk space");
        assert_eq!(said[1], "limited only for each process by itself: memory");
        assert_eq!(said.len(), 3);
        let said = notices(&Enforced { disk: Bound::Watched, ..all() });
        assert_eq!(said, ["watched, not bounded: disk space; who takes too much is stopped"]);
    }
}
