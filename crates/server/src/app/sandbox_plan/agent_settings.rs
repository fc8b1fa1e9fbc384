//! The agent's part of the settings. Each field comes from the first source that sets it: the request, the project's
//! settings for the mode, the project's defaults, the mode's standard settings.

use crate::problem::{Problem, Result};
use atoll_api::NewSandbox;
use atoll_core::bounds;
use atoll_core::continuous::Continuous;
use atoll_core::continuous::check::announce_checks;
use atoll_core::mode::{ModeSettings, join_prompts};
use atoll_core::sandbox::{ApprovalMode, Mode};
use std::collections::BTreeMap;

/// Longest system prompt.
pub const MAX_SYSTEM_PROMPT_BYTES: usize = 100 * bounds::KB;
const MAX_NAMES: usize = 200;

/// The agent's part of a sandbox's settings.
#[derive(Debug, Default, PartialEq)]
pub struct AgentSettings {
    pub model: Option<String>,
    pub mode: Option<Mode>,
    pub approvals: Option<ApprovalMode>,
    pub tools: Option<Vec<String>>,
    pub denied_tools: Vec<String>,
    pub system_prompt: Option<String>,
    pub enable_subagents: Option<bool>,
    pub enable_skills: Option<bool>,
    pub deliver: Option<bool>,
    /// Present only if it is enabled.
    pub continuous: Option<Continuous>,
}

/// Chooses the settings. `server` holds the server's defaults for continuous mode.
pub fn choose_agent_settings(
    new: &mut NewSandbox,
    project: &mut NewSandbox,
    server: &Continuous,
    has_repository: bool,
) -> AgentSettings {
    let mode = new.mode.or(project.mode);
    let named = mode.and_then(|mode| project.modes.remove(&mode)).unwrap_or_default();
    let own = named.clone();
    let standard = mode.map(ModeSettings::built_in).unwrap_or_default();
    let of_mode = mode.map_or_else(ModeSettings::default, |mode| named.or_built_in(mode));

    let deliver = new.deliver.or(own.deliver).or(project.deliver).or(standard.deliver);
    let continuous = merge_continuous(
        [new.continuous.take(), own.continuous, project.continuous.take(), standard.continuous],
        server,
    );
    let mut denied_tools: Vec<String> = std::mem::take(&mut new.denied_tools);
    denied_tools.extend(of_mode.denied_tools.into_iter().flatten());
    denied_tools.append(&mut project.denied_tools);
    denied_tools.sort();
    denied_tools.dedup();
    let task = new.system_prompt.take().or(project.system_prompt.take());
    let announced = continuous.as_ref().map(|on| announce_checks(on, has_repository && deliver != Some(false)));
    let parts = [task.as_deref(), of_mode.system_prompt.as_deref(), announced.as_deref()];
    AgentSettings {
        model: new.model.take().or(own.model).or(project.model.take()),
        mode,
        approvals: new.approvals.or(own.approvals).or(project.approvals).or(standard.approvals),
        tools: new.tools.take().or(own.tools).or(project.tools.take()).or(standard.tools),
        denied_tools,
        system_prompt: join_prompts(parts.into_iter().flatten()),
        enable_subagents: new.enable_subagents.or(own.enable_subagents).or(project.enable_subagents),
        enable_skills: new.enable_skills.or(own.enable_skills).or(project.enable_skills),
        deliver,
        continuous,
    }
}

/// Merges continuous settings: the first source decides whether it is enabled, and later ones fill the open fields.
fn merge_continuous(layers: [Option<Continuous>; 4], server: &Continuous) -> Option<Continuous> {
    let mut layers = layers.into_iter().flatten();
    let mut all = layers.next()?;
    for further in layers {
        all = all.or(Some(further));
    }
    all = all.or(Some(server.clone()));
    all.is_enabled().then_some(all)
}

/// Checks that there is something to check, and that Atoll can run checks in the sandbox.
pub fn check_continuous(continuous: &Continuous, runs_agents: bool, delivers: bool) -> Result<()> {
    if !runs_agents {
        return Err(Problem::invalid(
            "continuous: Atoll cannot run checks in sandboxes of this provider; choose another",
        ));
    }
    if continuous.checks.as_ref().is_none_or(Vec::is_empty) && continuous.requirements(delivers).is_empty() {
        return Err(Problem::invalid("continuous: there is nothing to check; set `checks` or `require`"));
    }
    Ok(())
}

/// Checks the bounds of these settings.
pub fn check_agent_settings(new: &NewSandbox) -> Result<()> {
    check_names("denied_tools", &new.denied_tools)?;
    if let Some(continuous) = &new.continuous {
        continuous.check_bounds()?;
    }
    check_modes(&new.modes)
}

fn check_modes(modes: &BTreeMap<Mode, ModeSettings>) -> Result<()> {
    for (mode, settings) in modes {
        let field = |name: &str| format!("modes.{mode}.{name}");
        if let Some(text) = &settings.system_prompt {
            bounds::check_content(&field("system_prompt"), text, MAX_SYSTEM_PROMPT_BYTES)?;
        }
        if let Some(model) = &settings.model {
            bounds::check_line(&field("model"), model, bounds::MAX_TITLE_CHARS)?;
        }
        check_names(&field("tools"), settings.tools.as_deref().unwrap_or_default())?;
        check_names(&field("denied_tools"), settings.denied_tools.as_deref().unwrap_or_default())?;
        if let Some(continuous) = &settings.continuous {
            continuous.check_bounds()?;
        }
    }
    Ok(())
}

fn check_names(field: &str, names: &[String]) -> Result<()> {
    if names.len() > MAX_NAMES {
        return Err(Problem::invalid(format!("{field}: at most {MAX_NAMES}")));
    }
    for name in names {
        bounds::check_line(field, name, bounds::MAX_NAME_CHARS)?;
        // Agents take comma-separated lists.
        if name.contains(',') {
            return Err(Problem::invalid(format!("{field}: `{name}` has a comma; give one name at a time")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(value: serde_json::Value) -> NewSandbox {
        serde_json::from_value(value).unwrap()
    }

    fn choose(new: serde_json::Value, project: serde_json::Value) -> AgentSettings {
        choose_agent_settings(&mut read(new), &mut read(project), &Continuous::default(), true)
    }

    #[test]
    fn empty_requests_choose_nothing() {
        assert_eq!(choose(json!({}), json!({})), AgentSettings::default());
    }

    #[test]
    fn the_request_wins_over_the_mode_and_the_mode_over_the_project() {
        let project = json!({
            "model": "of-project", "approvals": "ask", "deliver": true, "system_prompt": "be brief",
            "denied_tools": ["WebFetch"],
            "modes": {"exploration": {"model": "of-mode", "deliver": false, "tools": ["Read"]}},
        });
        let plain = choose(json!({}), project.clone());
        assert_eq!((plain.model.as_deref(), plain.deliver), (Some("of-project"), Some(true)));
        assert_eq!(plain.denied_tools, ["WebFetch"]);
        let exploring = choose(json!({"mode": "exploration"}), project.clone());
        assert_eq!((exploring.model.as_deref(), exploring.deliver), (Some("of-mode"), Some(false)));
        assert_eq!(exploring.denied_tools, ["Edit", "NotebookEdit", "WebFetch", "Write"], "denials add up");
        assert_eq!((exploring.approvals, exploring.tools.unwrap().len()), (Some(ApprovalMode::Ask), 1));
        let prompt = exploring.system_prompt.unwrap();
        assert!(prompt.starts_with("be brief\n\n") && prompt.contains("Change no files"), "{prompt}");
        let own =
            choose(json!({"mode": "exploration", "model": "mine", "deliver": true, "denied_tools": ["Bash"]}), project);
        assert_eq!((own.model.as_deref(), own.deliver), (Some("mine"), Some(true)));
        assert!(own.denied_tools.contains(&"Bash".to_owned()));
    }

    #[test]
    fn the_first_source_enables_continuous_mode_and_later_ones_fill_it() {
        let project = json!({"continuous": {"enabled": false, "checks": ["make test"], "iterations": 4}});
        assert_eq!(choose(json!({}), project.clone()).continuous, None);
        let on = choose(json!({"continuous": {"errors": 1}}), project.clone());
        let settings = on.continuous.unwrap();
        assert_eq!((settings.loop_limits().max_iterations, settings.loop_limits().max_errors), (4, 1));
        assert_eq!(settings.checks.unwrap(), ["make test"]);
        assert!(on.system_prompt.unwrap().contains("make test"), "the system prompt announces the checks");
        let always = json!({"continuous": {"checks": ["true"]}});
        assert!(choose(json!({}), always.clone()).continuous.is_some());
        assert_eq!(choose(json!({"continuous": {"enabled": false}}), always.clone()).continuous, None);
        assert!(choose(json!({"mode": "implementation"}), always).continuous.is_some());
        assert!(choose(json!({"mode": "exploration", "continuous": {}}), project).continuous.is_some());
    }

    #[test]
    fn rejects_what_cannot_be_checked() {
        let some = Continuous { checks: Some(vec!["true".into()]), ..Continuous::default() };
        assert!(check_continuous(&some, true, false).is_ok());
        assert!(check_continuous(&some, false, true).is_err());
        assert!(check_continuous(&Continuous::default(), true, true).is_ok());
        assert!(check_continuous(&Continuous::default(), true, false).is_err());
        for bad in [
            json!({"denied_tools": ["a,b"]}),
            json!({"continuous": {"iterations": 0}}),
            json!({"modes": {"validation": {"tools": [""]}}}),
            json!({"modes": {"validation": {"continuous": {"errors": 0}}}}),
        ] {
            assert!(check_agent_settings(&read(bad.clone())).is_err(), "{bad}");
        }
    }
}
