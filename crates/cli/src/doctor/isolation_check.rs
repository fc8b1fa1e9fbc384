//! Checks the isolation of sandboxes on this machine by creating one.

use super::{Check, Report};
use crate::failure::Result;
use atoll_config::Config;
use atoll_core::sandbox::IsolationTier;
use atoll_jail::{CgroupVersion, EnforcedLimits, Enforcement, IdMapKind, MissingFeature, Support, Tier};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const CHECK: &str = "sandboxes";

pub async fn check_isolation(config: &Config, report: &mut Report<'_>) -> Result {
    let (config, demanded) = (config.clone(), config.local.isolation);
    let probed = tokio::task::spawn_blocking(move || probe_isolation(&config))
        .await
        .map_err(|error| error.to_string())
        .flatten();
    let checks = match probed {
        Ok(found) => judge_report(&found, demanded),
        Err(why) => {
            let remedy = "Fix this and run `atoll doctor` again; the providers `external` and `fake` work without it.";
            vec![Check::fail(CHECK, format!("this machine cannot create sandboxes: {why}"), remedy)]
        }
    };
    checks.into_iter().try_for_each(|check| report.add(check))
}

/// Probes with a separate launcher in a temporary directory, so that a running server is not disturbed.
fn probe_isolation(config: &Config) -> Result<atoll_jail::HostReport, String> {
    let readable = std::fs::Permissions::from_mode(0o755);
    let scratch = tempfile::Builder::new().prefix("atoll-doctor-").permissions(readable).tempdir();
    let scratch = scratch.map_err(|error| format!("can't create a temporary directory: {error}"))?;
    let mut config = config.clone();
    let data_dir = std::mem::replace(&mut config.data_dir, scratch.path().to_owned());
    let launcher = crate::launcher::start_launcher_probing(&config, &data_dir)?;
    launcher.probe_host().map_err(|error| error.to_string())
}

/// Translates the launcher's report into checks.
fn judge_report(found: &atoll_jail::HostReport, demanded: Option<IsolationTier>) -> Vec<Check> {
    let groups = match found.cgroups {
        CgroupVersion::V2 => "cgroups version 2",
        CgroupVersion::V1 => "cgroups version 1",
        CgroupVersion::None => "no cgroups",
    };
    let machine = format!("kernel {} on {}, {groups}", found.kernel, found.architecture);
    let mut checks = vec![match found.tier {
        Tier::Strong => Check::ok(CHECK, format!("tier strong: isolated, all limits enforced ({machine})")),
        Tier::Standard => Check::ok(CHECK, format!("tier standard: isolated, not all limits enforced ({machine})")),
        Tier::None => {
            let remedy = "See the missing parts below; the providers `external` and `fake` work without them.";
            Check::fail(CHECK, format!("tier none: this machine cannot create sandboxes ({machine})"), remedy)
        }
    }];
    checks.extend(demanded.and_then(|demanded| judge_demanded_tier(demanded, found)));
    let abilities = [
        ("namespaces", &found.user_namespaces),
        ("id ranges", &found.id_ranges),
        ("system calls", &found.seccomp),
        ("landlock", &found.landlock),
        ("overlay", &found.overlay),
        ("pause", &found.freezer),
        ("isolation", &found.isolation),
    ];
    checks.extend(abilities.into_iter().map(|(name, ability)| judge_ability(name, ability)));
    if let Some(enforced) = &found.enforced {
        checks.push(Check::ok("ids", describe_ids(enforced.ids)));
        checks.push(Check::ok("limits", describe_limits(enforced)));
    }
    checks.extend(found.missing.iter().map(judge_missing));
    let visible: Vec<_> = found.visible.iter().map(|path| path.display().to_string()).collect();
    if found.tier != Tier::None {
        checks.push(Check::ok("visible", format!("host directories, read-only: {}", visible.join(", "))));
    }
    let ids = found.enforced.map(|enforced| enforced.ids);
    checks.extend(found.inotify_instances.map(|most| judge_inotify(most, ids, Path::new("/proc/sys/fs/inotify"))));
    checks
}

fn judge_ability(name: &'static str, ability: &Support) -> Check {
    match ability {
        Support::Available => Check::ok(name, "available"),
        // The remedy is part of the `missing` checks.
        Support::Unavailable { reason } => Check::warn(name, reason.clone(), "See the missing parts."),
    }
}

fn judge_missing(missing: &MissingFeature) -> Check {
    let detail = match missing.blocks_tier {
        Some(tier @ (Tier::Strong | Tier::Standard)) => format!("for tier {}: {}", tier.as_str(), missing.description),
        Some(Tier::None) | None => missing.description.clone(),
    };
    Check::warn("missing", detail, missing.remedy.clone())
}

/// Fails if the configuration demands a tier that this machine lacks: every sandbox will be refused.
fn judge_demanded_tier(demanded: IsolationTier, found: &atoll_jail::HostReport) -> Option<Check> {
    let tier = match demanded {
        IsolationTier::Standard => Tier::Standard,
        IsolationTier::Strong => Tier::Strong,
    };
    let offered = found.tier.as_str();
    let detail =
        format!("local.isolation demands `{demanded}`, this machine offers `{offered}`: every sandbox will be refused");
    let remedy = "See the missing parts below, or lower local.isolation.";
    found.explain_missing_tier(tier).map(|_| Check::fail(CHECK, detail, remedy))
}

const fn describe_ids(ids: IdMapKind) -> &'static str {
    match ids {
        IdMapKind::OwnRange => "each sandbox has its own ids",
        IdMapKind::CommonRange => "all sandboxes have the same ids",
        IdMapKind::SubIds => "sandboxes share this user's sub-ids",
        IdMapKind::SingleId => "sandboxes use this user's own id",
    }
}

fn describe_limits(enforced: &EnforcedLimits) -> String {
    let all = [
        ("memory", enforced.memory),
        ("cpu", enforced.cpu),
        ("processes", enforced.pids),
        ("open files", enforced.open_files),
        ("disk", enforced.disk),
    ];
    let with = |bound: Enforcement| {
        let names: Vec<_> = all.iter().filter(|(_, found)| *found == bound).map(|(name, _)| *name).collect();
        names.join(", ")
    };
    let parts = [
        (with(Enforcement::Enforced), "per sandbox"),
        (with(Enforcement::PerProcess), "per process"),
        (with(Enforcement::Monitored), "monitored only"),
        (with(Enforcement::None), "unlimited"),
    ];
    let parts = parts.into_iter().filter(|(names, _)| !names.is_empty());
    parts.map(|(names, how)| format!("{names} {how}")).collect::<Vec<_>>().join("; ")
}

/// Every working agent needs one inotify instance. A sandbox with its own ids shares them with no other.
fn judge_inotify(most: u64, ids: Option<IdMapKind>, place: &Path) -> Check {
    const FEW: u64 = 128;
    if ids == Some(IdMapKind::OwnRange) {
        return Check::ok("file watching", format!("{most} inotify instances per sandbox"));
    }
    let detail = format!("{most} inotify instances per user");
    if most > FEW {
        return Check::ok("file watching", detail);
    }
    let remedy = format!(
        "With more concurrent agents, the watcher polls files; to raise the limit: echo 1024 > {}",
        place.join("max_user_instances").display()
    );
    Check::warn("file watching", detail, remedy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_jail::DiskQuota;

    fn report(tier: Tier) -> atoll_jail::HostReport {
        atoll_jail::HostReport {
            tier,
            kernel: "6.18.0".into(),
            architecture: "x86_64".into(),
            root: true,
            isolation: Support::Available,
            user_namespaces: Support::Available,
            id_ranges: Support::Available,
            seccomp: Support::Available,
            landlock: Support::Available,
            overlay: Support::Available,
            freezer: Support::Available,
            cgroups: CgroupVersion::V1,
            enforced: Some(EnforcedLimits {
                memory: Enforcement::Enforced,
                cpu: Enforcement::Enforced,
                pids: Enforcement::Enforced,
                open_files: Enforcement::PerProcess,
                disk: Enforcement::Monitored,
                ids: IdMapKind::OwnRange,
            }),
            disk: DiskQuota::Monitored,
            visible: vec!["/usr".into(), "/bin".into()],
            inotify_instances: Some(128),
            missing: vec![MissingFeature {
                description: "a sandbox's disk use is watched, not bounded".into(),
                remedy: "A file system.".into(),
                blocks_tier: Some(Tier::Strong),
            }],
        }
    }

    fn report_text(found: &atoll_jail::HostReport) -> String {
        checks_text(judge_report(found, None))
    }

    fn checks_text(checks: Vec<Check>) -> String {
        let lines = checks.into_iter().map(|check| {
            let remedy = check.remedy.map(|remedy| format!("\n  {remedy}")).unwrap_or_default();
            format!("{:?} {}: {}{remedy}", check.status, check.check, check.detail)
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn reports_limits_and_missing_parts() {
        insta::assert_snapshot!("standard", report_text(&report(Tier::Standard)));
    }

    #[test]
    fn fails_when_the_demanded_tier_is_missing() {
        let text = checks_text(judge_report(&report(Tier::Standard), Some(IsolationTier::Strong)));
        assert!(text.contains("Fail sandboxes: local.isolation demands `strong`"), "{text}");
        assert_eq!(
            checks_text(judge_report(&report(Tier::Standard), Some(IsolationTier::Standard))),
            report_text(&report(Tier::Standard))
        );
    }

    #[test]
    fn fails_with_a_remedy_when_isolation_is_impossible() {
        let reason = "making namespaces: Operation not permitted".to_owned();
        let found = atoll_jail::HostReport {
            isolation: Support::Unavailable { reason: reason.clone() },
            user_namespaces: Support::Unavailable { reason: reason.clone() },
            enforced: None,
            missing: vec![MissingFeature {
                description: reason,
                remedy: "sysctl kernel.unprivileged_userns_clone=1".into(),
                blocks_tier: Some(Tier::Standard),
            }],
            ..report(Tier::None)
        };
        insta::assert_snapshot!("none", report_text(&found));
    }
}
