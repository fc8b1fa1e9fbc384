//! Isolation tier requirements: refuses creation where this machine does not reach the tier.

use super::Local;
use crate::lock_state;
use atoll_core::provider::Error;
use atoll_core::sandbox::IsolationTier;
use atoll_jail::{HostReport, Tier};
use std::sync::Mutex;

/// The minimum tier of all sandboxes, and the tier of the last probe.
#[derive(Default)]
pub(super) struct TierRequirement {
    minimum: Option<IsolationTier>,
    reached: Mutex<Option<Tier>>,
}

impl TierRequirement {
    pub fn with_minimum(minimum: Option<IsolationTier>) -> Self {
        Self { minimum, ..Self::default() }
    }
}

impl Local {
    /// The best tier that this machine reaches.
    pub(super) async fn best_tier(&self) -> Option<IsolationTier> {
        let reached = *lock_state(&self.tier.reached);
        let reached = match reached {
            Some(reached) => reached,
            None => {
                let report = self.call_launcher(|launcher| launcher.probe_host()).await.ok()?;
                *lock_state(&self.tier.reached) = Some(report.tier);
                report.tier
            }
        };
        [IsolationTier::Strong, IsolationTier::Standard].into_iter().find(|one| reached >= jail_tier(*one))
    }

    /// Refuses creation below the required tier. A positive probe is cached; a negative one is repeated, because the
    /// host may have been fixed.
    pub(super) async fn require_tier(&self, tier: Option<IsolationTier>) -> Result<(), Error> {
        let Some(demanded) = tier.max(self.tier.minimum) else { return Ok(()) };
        if lock_state(&self.tier.reached).is_some_and(|reached| reached >= jail_tier(demanded)) {
            return Ok(());
        }
        let report = self.call_launcher(|launcher| launcher.probe_host()).await?;
        *lock_state(&self.tier.reached) = Some(report.tier);
        explain_refusal(demanded, &report).map_or(Ok(()), |detail| Err(Error::Refused { detail }))
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
    use atoll_jail::{CgroupVersion, DiskQuota, MissingFeature, Support};

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
