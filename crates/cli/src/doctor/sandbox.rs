//! Sandboxes on this machine: how well they can be isolated, by making one, and what to mend.

use super::{Check, Report};
use crate::failure::Result;
use atoll_config::Config;
use atoll_core::sandbox::IsolationTier;
use atoll_jail::{Ability, Bound, Enforced, GroupVersion, Ids, Missing, Tier};
use std::path::{Path, PathBuf};

const CHECK: &str = "sandboxes";

pub async fn check(config: &Config, report: &mut Report<'_>) -> Result {
    let (config, demanded) = (config.clone(), config.local.isolation);
    let probed = tokio::task::spawn_blocking(move || probe(&config)).await.map_err(|error| error.to_string()).flatten();
    let checks = match probed {
        Ok(found) => judge(&found, demanded),
        Err(why) => {
            let remedy = "Mend that, and run `atoll doctor` again; the providers `external` and `fake` work without.";
            vec![Check::fail(CHECK, format!("none can be made on this machine: {why}"), remedy)]
        }
    };
    checks.into_iter().try_for_each(|check| report.tell(check))
}

/// With a launcher of its own in a directory of its own: a server that runs is not disturbed.
fn probe(config: &Config) -> Result<atoll_jail::Report, String> {
    let scratch = Scratch::new()?;
    let mut config = config.clone();
    let data_dir = std::mem::replace(&mut config.data_dir, scratch.0.clone());
    let launcher = crate::launcher::start_for(&config, &data_dir)?;
    launcher.probe().map_err(|error| error.to_string())
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let dir = std::env::temp_dir().join(format!("atoll-doctor-{}", uuid::Uuid::now_v7().simple()));
        std::fs::create_dir(&dir).map_err(|error| format!("can't make {}: {error}", dir.display()))?;
        Ok(Self(dir))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// What was found, as things to read. Pure.
fn judge(found: &atoll_jail::Report, demanded: Option<IsolationTier>) -> Vec<Check> {
    let groups = match found.groups {
        GroupVersion::V2 => "cgroups version 2",
        GroupVersion::V1 => "cgroups version 1",
        GroupVersion::None => "no cgroups",
    };
    let machine = format!("kernel {} on {}, {groups}", found.kernel, found.architecture);
    let mut checks = vec![match found.tier {
        Tier::Strong => Check::ok(CHECK, format!("tier strong: isolated, every limit enforced ({machine})")),
        Tier::Standard => Check::ok(CHECK, format!("tier standard: isolated, not every limit enforced ({machine})")),
        Tier::None => {
            let remedy = "What is missing stands below; the providers `external` and `fake` work without.";
            Check::fail(CHECK, format!("tier none: none can be made ({machine})"), remedy)
        }
    }];
    checks.extend(demanded.and_then(|demanded| of_demand(demanded, found)));
    let abilities = [
        ("namespaces", &found.user_namespaces),
        ("id ranges", &found.id_ranges),
        ("system calls", &found.seccomp),
        ("landlock", &found.landlock),
        ("overlay", &found.overlay),
        ("pause", &found.freezer),
        ("isolation", &found.isolation),
    ];
    checks.extend(abilities.into_iter().map(|(name, ability)| of_ability(name, ability)));
    if let Some(enforced) = &found.enforced {
        checks.push(Check::ok("ids", ids(enforced.ids)));
        checks.push(Check::ok("limits", limits(enforced)));
    }
    checks.extend(found.missing.iter().map(of_missing));
    let visible: Vec<_> = found.visible.iter().map(|path| path.display().to_string()).collect();
    if found.tier != Tier::None {
        checks.push(Check::ok("visible", format!("of this machine, read-only: {}", visible.join(", "))));
    }
    checks.extend(found.inotify_instances.map(|most| inotify(most, Path::new("/proc/sys/fs/inotify"))));
    checks
}

fn of_ability(name: &'static str, ability: &Ability) -> Check {
    match ability {
        Ability::Yes => Check::ok(name, "as it should be"),
        // How to mend it stands with what is missing.
        Ability::No { reason } => Check::warn(name, reason.clone(), "See what is missing."),
    }
}

fn of_missing(missing: &Missing) -> Check {
    let detail = match missing.keeps_from {
        Some(tier @ (Tier::Strong | Tier::Standard)) => format!("for tier {}: {}", tier.as_str(), missing.what),
        Some(Tier::None) | None => missing.what.clone(),
    };
    Check::warn("missing", detail, missing.remedy.clone())
}

/// The configuration wants more than there is: every sandbox will be refused.
fn of_demand(demanded: IsolationTier, found: &atoll_jail::Report) -> Option<Check> {
    let tier = match demanded {
        IsolationTier::Standard => Tier::Standard,
        IsolationTier::Strong => Tier::Strong,
    };
    let given = found.tier.as_str();
    let detail = format!("local.isolation demands `{demanded}`, and this machine gives `{given}`: none will be made");
    let remedy = "What is missing stands below; or demand less with local.isolation.";
    found.lacks(tier).map(|_| Check::fail(CHECK, detail, remedy))
}

const fn ids(ids: Ids) -> &'static str {
    match ids {
        Ids::Own => "each sandbox has ids of its own",
        Ids::Common => "all sandboxes have the same ids",
        Ids::Shared => "sandboxes share this user's sub-ids",
        Ids::Single => "sandboxes run under this user's own id",
    }
}

fn limits(enforced: &Enforced) -> String {
    let all = [
        ("memory", enforced.memory),
        ("cpu", enforced.cpu),
        ("processes", enforced.pids),
        ("open files", enforced.open_files),
        ("disk", enforced.disk),
    ];
    let with = |bound: Bound| {
        let names: Vec<_> = all.iter().filter(|(_, found)| *found == bound).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let parts = [
        (with(Bound::Enforced), "for the whole sandbox"),
        (with(Bound::PerProcess), "for each process"),
        (with(Bound::Watched), "watched, and who takes too much stopped"),
        (with(Bound::No), "not at all"),
    ];
    let parts = parts.into_iter().filter(|(names, _)| !names.is_empty());
    parts.map(|(names, how)| format!("{names} {how}")).collect::<Vec<_>>().join("; ")
}

/// Every sandbox whose agent works takes one.
fn inotify(most: u64, place: &Path) -> Check {
    const FEW: u64 = 128;
    let detail = format!("{most} inotify instances for each user");
    if most > FEW {
        return Check::ok("file watching", detail);
    }
    let remedy = format!(
        "With more agents at work at once files are looked through instead; more: echo 1024 > {}.",
        place.join("max_user_instances").display()
    );
    Check::warn("file watching", detail, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_jail::DiskBound;

    fn report(tier: Tier) -> atoll_jail::Report {
        atoll_jail::Report {
            tier,
            kernel: "6.18.0".into(),
            architecture: "x86_64".into(),
            root: true,
            isolation: Ability::Yes,
            user_namespaces: Ability::Yes,
            id_ranges: Ability::Yes,
            seccomp: Ability::Yes,
            landlock: Ability::Yes,
            overlay: Ability::Yes,
            freezer: Ability::Yes,
            groups: GroupVersion::V1,
            enforced: Some(Enforced {
                memory: Bound::Enforced,
                cpu: Bound::Enforced,
                pids: Bound::Enforced,
                open_files: Bound::PerProcess,
                disk: Bound::Watched,
                ids: Ids::Own,
            }),
            disk: DiskBound::Watched,
            visible: vec!["/usr".into(), "/bin".into()],
            inotify_instances: Some(128),
            missing: vec![Missing {
                what: "a sandbox's disk use is watched, not bounded".into(),
                remedy: "A file system.".into(),
                keeps_from: Some(Tier::Strong),
            }],
        }
    }

    fn shown(found: &atoll_jail::Report) -> String {
        told(judge(found, None))
    }

    fn told(checks: Vec<Check>) -> String {
        let lines = checks.into_iter().map(|check| {
            let remedy = check.remedy.map(|remedy| format!("\n  {remedy}")).unwrap_or_default();
            format!("{:?} {}: {}{remedy}", check.status, check.check, check.detail)
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn what_can_be_enforced_and_what_is_missing() {
        insta::assert_snapshot!("standard", shown(&report(Tier::Standard)));
    }

    #[test]
    fn what_the_configuration_demands_in_vain_is_a_failure() {
        let said = told(judge(&report(Tier::Standard), Some(IsolationTier::Strong)));
        assert!(said.contains("Fail sandboxes: local.isolation demands `strong`"), "{said}");
        assert_eq!(told(judge(&report(Tier::Standard), Some(IsolationTier::Standard))), shown(&report(Tier::Standard)));
    }

    #[test]
    fn where_none_can_be_made_it_is_a_failure_with_its_remedy() {
        let reason = "making namespaces: Operation not permitted".to_owned();
        let found = atoll_jail::Report {
            isolation: Ability::No { reason: reason.clone() },
            user_namespaces: Ability::No { reason: reason.clone() },
            enforced: None,
            missing: vec![Missing {
                what: reason,
                remedy: "sysctl kernel.unprivileged_userns_clone=1".into(),
                keeps_from: Some(Tier::Standard),
            }],
            ..report(Tier::None)
        };
        insta::assert_snapshot!("none", shown(&found));
    }
}
