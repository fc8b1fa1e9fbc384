//! How well sandboxes must be kept apart: where this machine gives less, none is made.

use super::Local;
use crate::locked;
use atoll_core::provider::Error;
use atoll_core::sandbox::IsolationTier;
use atoll_jail::{Report, Tier};
use std::sync::Mutex;

/// What is demanded of every sandbox here, and the best tier that this machine has shown.
#[derive(Default)]
pub(super) struct Demand {
    of_all: Option<IsolationTier>,
    shown: Mutex<Option<Tier>>,
}

impl Demand {
    pub fn of(of_all: Option<IsolationTier>) -> Self {
        Self { of_all, ..Self::default() }
    }
}

impl Local {
    /// The best tier that this machine gives.
    pub(super) async fn given_tier(&self) -> Option<IsolationTier> {
        let shown = *locked(&self.tier.shown);
        let shown = match shown {
            Some(shown) => shown,
            None => {
                let report = self.ask(|launcher| launcher.probe()).await.ok()?;
                *locked(&self.tier.shown) = Some(report.tier);
                report.tier
            }
        };
        [IsolationTier::Strong, IsolationTier::Standard].into_iter().find(|one| shown >= tier(*one))
    }

    /// Refuses before anything is made. What a machine lacked may have been mended: only what it has is remembered.
    pub(super) async fn has_tier(&self, asked: Option<IsolationTier>) -> Result<(), Error> {
        let Some(demanded) = asked.max(self.tier.of_all) else { return Ok(()) };
        if locked(&self.tier.shown).is_some_and(|shown| shown >= tier(demanded)) {
            return Ok(());
        }
        let report = self.ask(|launcher| launcher.probe()).await?;
        *locked(&self.tier.shown) = Some(report.tier);
        refusal(demanded, &report).map_or(Ok(()), |detail| Err(Error::Refused { detail }))
    }
}

const fn tier(demanded: IsolationTier) -> Tier {
    match demanded {
        IsolationTier::Standard => Tier::Standard,
        IsolationTier::Strong => Tier::Strong,
    }
}

fn refusal(demanded: IsolationTier, report: &Report) -> Option<String> {
    let lacks = report.lacks(tier(demanded))?;
    let given = report.tier.as_str();
    Some(format!("isolation `{demanded}` is demanded, and this machine gives `{given}`: {lacks}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_jail::{Ability, DiskBound, GroupVersion, Missing};

    fn report(tier: Tier, missing: Vec<Missing>) -> Report {
        Report {
            tier,
            kernel: "6.1".into(),
            architecture: "x86_64".into(),
            root: true,
            isolation: Ability::Yes,
            user_namespaces: Ability::Yes,
            id_ranges: Ability::Yes,
            seccomp: Ability::Yes,
            landlock: Ability::Yes,
            overlay: Ability::Yes,
            freezer: Ability::Yes,
            groups: GroupVersion::V2,
            enforced: None,
            disk: DiskBound::Watched,
            visible: Vec::new(),
            inotify_instances: None,
            missing,
        }
    }

    #[test]
    fn a_refusal_names_what_is_missing_and_the_remedy() {
        let missing = |what: &str, keeps_from| Missing { what: what.into(), remedy: "Do it.".into(), keeps_from };
        let found = report(
            Tier::Standard,
            vec![missing("the disk is watched", Some(Tier::Strong)), missing("no Landlock", None)],
        );
        assert_eq!(refusal(IsolationTier::Standard, &found), None);
        let said = "isolation `strong` is demanded, and this machine gives `standard`: the disk is watched. Do it.";
        assert_eq!(refusal(IsolationTier::Strong, &found).as_deref(), Some(said));
        assert_eq!(refusal(IsolationTier::Strong, &report(Tier::Strong, Vec::new())), None);
        let found = report(Tier::None, vec![missing("no namespaces", Some(Tier::Standard))]);
        let said = refusal(IsolationTier::Standard, &found).unwrap();
        assert!(said.ends_with("gives `none`: no namespaces. Do it."), "{said}");
    }
}
