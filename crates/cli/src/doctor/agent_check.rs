//! Checks the agents on this machine.

use super::{Check, Report};
use crate::failure::Result;
use atoll_api::Agent;

const CHECK: &str = "agent";

/// Reports each agent on this machine.
pub fn check_agents(agents: &[Agent], report: &mut Report<'_>) -> Result {
    let mut checks: Vec<Check> = agents.iter().filter_map(judge_agent).collect();
    if checks.is_empty() {
        let remedy = "Install one with `atoll agents install claude`; `--agent demo` needs none.";
        checks.push(Check::warn(CHECK, "no agent on this machine", remedy));
    }
    checks.into_iter().try_for_each(|check| report.add(check))
}

/// Omits missing agents and the built-in one.
fn judge_agent(agent: &Agent) -> Option<Check> {
    let origin = agent.origin.as_deref().filter(|origin| *origin != "builtin")?;
    let version = agent.version.as_deref().unwrap_or("(unknown version)");
    let tested = if agent.tested { "tested" } else { "untested" };
    let key = match agent.key {
        _ if agent.keys.is_empty() => "no key needed",
        true => "has a key",
        false => "no key",
    };
    let path = agent.path.as_deref().unwrap_or(origin);
    let detail = format!("{} {version} ({tested}), {key}: {path}", agent.name);
    Some(if agent.usable {
        Check::ok(CHECK, detail)
    } else {
        let remedy = if agent.missing.is_empty() { "See `atoll agents`.".to_owned() } else { agent.missing.join("; ") };
        Check::warn(CHECK, detail, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    fn agent() -> Agent {
        Agent {
            name: "claude".into(),
            title: "Claude Code".into(),
            usable: true,
            path: Some("/usr/bin/claude".into()),
            origin: Some("path".into()),
            version: Some("2.1.0".into()),
            tested: true,
            key: true,
            keys: vec!["ANTHROPIC_API_KEY".into()],
            abilities: Default::default(),
            missing: vec![],
        }
    }

    #[test]
    fn reports_found_agents_and_what_they_lack() {
        let usable = judge_agent(&agent()).unwrap();
        assert_eq!(
            (usable.status, usable.detail.as_str()),
            (Status::Ok, "claude 2.1.0 (tested), has a key: /usr/bin/claude")
        );
        let missing = vec!["there is no key".to_owned()];
        let unusable = Agent { key: false, usable: false, missing, tested: false, version: None, ..agent() };
        let unusable = judge_agent(&unusable).unwrap();
        assert_eq!((unusable.status, unusable.remedy.as_deref()), (Status::Warn, Some("there is no key")));
        assert_eq!(unusable.detail, "claude (unknown version) (untested), no key: /usr/bin/claude");
        let without_key = judge_agent(&Agent { keys: vec![], path: None, ..agent() }).unwrap();
        assert_eq!(without_key.detail, "claude 2.1.0 (tested), no key needed: path");
        assert!(judge_agent(&Agent { origin: Some("builtin".into()), ..agent() }).is_none());
        assert!(judge_agent(&Agent { origin: None, ..agent() }).is_none());
    }
}
