//! Isolation tier requirements: refuses creation where this machine does not reach the tier.

use super::Local;
use crate::lock_state;
use atoll_core::provider::Error;
use atoll_core::sandbox::IsolationTier;
use atoll_jail::{HostReport, Tier};
use std::sync::Mutex;

/// The minimum tier of all sandboxes, and the findings of the last probe.
#[derive(Default)]
pub(super) struct TierRequirement {
    minimum: Option<IsolationTier>,
    probed: Mutex<Option<ProbedHost>>,
}

#[derive(Clone, Copy)]
struct ProbedHost {
    tier: Tier,
    confines_agents: bool,
}

impl TierRequirement {
    pub fn with_minimum(minimum: Option<IsolationTier>) -> Self {
        Self { minimum, ..Self::default() }
    }
}

impl Local {
    /// This machine confines agents; false if the probe fails.
    pub(super) async fn host_confines_agents(&self) -> bool {
        let known = *lock_state(&self.tier.probed);
        match known {
            Some(known) => known.confines_agents,
            None => self.probe_host().await.is_ok_and(|report| report.confines_agents()),
        }
    }

    /// Refuses creation below the required tier. A positive probe is cached; a negative one is repeated, because the
    /// host may have been fixed.
    pub(super) async fn require_tier(&self, tier: Option<IsolationTier>) -> Result<(), Error> {
        let Some(demanded) = tier.max(self.tier.minimum) else { return Ok(()) };
        if lock_state(&self.tier.probed).is_some_and(|known| known.tier >= jail_tier(demanded)) {
            return Ok(());
        }
        let report = self.probe_host().await?;
        explain_refusal(demanded, &report).map_or(Ok(()), |detail| Err(Error::Refused { detail }))
    }

    async fn probe_host(&self) -> Result<HostReport, Error> {
        let report = self.call_launcher(|launcher| launcher.probe_host()).await?;
        let probed = ProbedHost { tier: report.tier, confines_agents: report.confines_agents() };
        *lock_state(&self.tier.probed) = Some(probed);
        Ok(report)
    }
}

const fn jail_tier(demanded: IsolationTier) -> Tier {
    match demanded {
        IsolationTier::Standard => Tier::Standard,
        IsolationTier::Strong => Tier::Strong,
    }
}

fn explain_refusal(demanded: IsolationTier, report: &HostReport) -> Option<String> {
    let missing = report.explain_missing_tier(jail_tier(demanded))?;
    let reached = report.tier.as_str();
    Some(format!("isolation `{demanded}` is required, but this machine reaches `{reached}`: {missing}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_jail::{CgroupVersion, DiskQuota, EnforcedLimits, Enforcement, IdMapKind, MissingFeature, Support};

    fn host_report(tier: Tier, missing: Vec<MissingFeature>) -> HostReport {
        HostReport {
            tier,
            kernel: "6.1".into(),
            architecture: "x86_64".into(),
            root: true,
            isolation: Support::Available,
            user_namespaces: Support::Available,
            id_ranges: Support::Available,
            seccomp: Support::Available,
            landlock: Support::Available,
            overlay: Support::Available,
            freezer: Support::Available,
            cgroups: CgroupVersion::V2,
            enforced: None,
            disk: DiskQuota::Monitored,
            visible: Vec::new(),
            inotify_instances: None,
            missing,
        }
    }

    #[test]
    fn agents_are_confined_by_isolation_and_not_by_limits() {
        let limits = EnforcedLimits {
            memory: Enforcement::PerProcess,
            cpu: Enforcement::None,
            pids: Enforcement::Enforced,
            open_files: Enforcement::PerProcess,
            disk: Enforcement::Monitored,
            ids: IdMapKind::OwnRange,
        };
        let host = |ids| HostReport {
            enforced: Some(EnforcedLimits { ids, ..limits }),
            ..host_report(Tier::Standard, Vec::new())
        };
        for ids in [IdMapKind::OwnRange, IdMapKind::CommonRange, IdMapKind::SubIds] {
            assert!(host(ids).confines_agents(), "{ids:?}");
        }
        assert!(!host(IdMapKind::SingleId).confines_agents(), "the agent has the ids of the server's user");
        let missing = Support::Unavailable { reason: "off".into() };
        assert!(!HostReport { seccomp: missing.clone(), ..host(IdMapKind::OwnRange) }.confines_agents());
        assert!(!HostReport { isolation: missing, ..host(IdMapKind::OwnRange) }.confines_agents());
        assert!(!host_report(Tier::None, Vec::new()).confines_agents(), "no sandbox can be created");
    }

    #[test]
    fn a_refusal_names_the_missing_feature_and_the_remedy() {
        let missing = |what: &str, keeps_from| MissingFeature {
            description: what.into(),
            remedy: "Do it.".into(),
            blocks_tier: keeps_from,
        };
        let found = host_report(
            Tier::Standard,
            vec![missing("the disk is watched", Some(Tier::Strong)), missing("no Landlock", None)],
        );
        assert_eq!(explain_refusal(IsolationTier::Standard, &found), None);
        let message =
            "isolation `strong` is required, but this machine reaches `standard`: the disk is watched. Do it.";
        assert_eq!(explain_refusal(IsolationTier::Strong, &found).as_deref(), Some(message));
        assert_eq!(explain_refusal(IsolationTier::Strong, &host_report(Tier::Strong, Vec::new())), None);
        let found = host_report(Tier::None, vec![missing("no namespaces", Some(Tier::Standard))]);
        let message = explain_refusal(IsolationTier::Standard, &found).unwrap();
        assert!(message.ends_with("reaches `none`: no namespaces. Do it."), "{message}");
    }
}
