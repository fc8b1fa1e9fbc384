//! What is chosen for the agent: by the request, else by what the project says of its mode, else by the project, else
//! by the mode itself.

use super::sandboxes::NewSandbox;
use crate::problem::{Problem, Result};
use atoll_core::bounds;
use atoll_core::continuous::Continuous;
use atoll_core::continuous::check::announcement;
use atoll_core::mode::{ModeSettings, joined};
use atoll_core::sandbox::{Approvals, Mode, ProviderKind};
use std::collections::BTreeMap;

/// What a system prompt may have.
pub const PROMPT: usize = 100 * bounds::KB;
const MOST_NAMES: usize = 200;

/// The agent's part of a sandbox's settings.
#[derive(Debug, Default, PartialEq)]
pub struct Chosen {
    pub model: Option<String>,
    pub mode: Option<Mode>,
    pub approvals: Option<Approvals>,
    pub tools: Option<Vec<String>>,
    pub denied_tools: Vec<String>,
    pub system_prompt: Option<String>,
    pub enable_subagents: Option<bool>,
    pub enable_skills: Option<bool>,
    pub deliver: Option<bool>,
    /// There only if it is on.
    pub continuous: Option<Continuous>,
}

/// `server` is what holds where nobody says anything about continuous mode.
pub fn choose(new: &mut NewSandbox, project: &mut NewSandbox, server: &Continuous, has_repository: bool) -> Chosen {
    let mode = new.mode.or(project.mode);
    let named = mode.and_then(|mode| project.modes.remove(&mode)).unwrap_or_default();
    let own = named.clone();
    let standard = mode.map(ModeSettings::standard).unwrap_or_default();
    let of_mode = mode.map_or_else(ModeSettings::default, |mode| named.or_standard(mode));

    let deliver = new.deliver.or(own.deliver).or(project.deliver).or(standard.deliver);
    let continuous =
        continuous([new.continuous.take(), own.continuous, project.continuous.take(), standard.continuous], server);
    let mut denied_tools: Vec<String> = std::mem::take(&mut new.denied_tools);
    denied_tools.extend(of_mode.denied_tools.into_iter().flatten());
    denied_tools.append(&mut project.denied_tools);
    denied_tools.sort();
    denied_tools.dedup();
    let task = new.system_prompt.take().or(project.system_prompt.take());
    let announced = continuous.as_ref().map(|on| announcement(on, has_repository && deliver != Some(false)));
    let parts = [task.as_deref(), of_mode.system_prompt.as_deref(), announced.as_deref()];
    Chosen {
        model: new.model.take().or(own.model).or(project.model.take()),
        mode,
        approvals: new.approvals.or(own.approvals).or(project.approvals).or(standard.approvals),
        tools: new.tools.take().or(own.tools).or(project.tools.take()).or(standard.tools),
        denied_tools,
        system_prompt: joined(parts.into_iter().flatten()),
        enable_subagents: new.enable_subagents.or(own.enable_subagents).or(project.enable_subagents),
        enable_skills: new.enable_skills.or(own.enable_skills).or(project.enable_skills),
        deliver,
        continuous,
    }
}

/// The first that says anything decides whether it is on; what it leaves open comes from those after it.
fn continuous(said: [Option<Continuous>; 4], server: &Continuous) -> Option<Continuous> {
    let mut said = said.into_iter().flatten();
    let mut all = said.next()?;
    for further in said {
        all = all.or(Some(further));
    }
    all = all.or(Some(server.clone()));
    all.is_on().then_some(all)
}

/// Whether it can be done at all. Said before anything is made.
pub fn check_continuous(continuous: &Continuous, provider: ProviderKind, delivers: bool) -> Result<()> {
    if !provider.is_on_this_machine() {
        return Err(Problem::invalid(format!(
            "continuous: checks are commands in the sandbox, and Atoll runs none with the provider {provider}; \
             use local or docker"
        )));
    }
    if continuous.checks.as_ref().is_none_or(Vec::is_empty) && continuous.required(delivers).is_empty() {
        return Err(Problem::invalid(
            "continuous: there is nothing to check; name commands in `checks`, or something in `require`",
        ));
    }
    Ok(())
}

/// The bounds of all this, in a request and in a project's defaults.
pub fn check(new: &NewSandbox) -> Result<()> {
    names("denied_tools", &new.denied_tools)?;
    if let Some(continuous) = &new.continuous {
        continuous.bounds()?;
    }
    of_modes(&new.modes)
}

fn of_modes(modes: &BTreeMap<Mode, ModeSettings>) -> Result<()> {
    for (mode, settings) in modes {
        let field = |name: &str| format!("modes.{mode}.{name}");
        if let Some(text) = &settings.system_prompt {
            bounds::content(&field("system_prompt"), text, PROMPT)?;
        }
        if let Some(model) = &settings.model {
            bounds::line(&field("model"), model, bounds::TITLE_CHARS)?;
        }
        names(&field("tools"), settings.tools.as_deref().unwrap_or_default())?;
        names(&field("denied_tools"), settings.denied_tools.as_deref().unwrap_or_default())?;
        if let Some(continuous) = &settings.continuous {
            continuous.bounds()?;
        }
    }
    Ok(())
}

fn names(field: &str, names: &[String]) -> Result<()> {
    if names.len() > MOST_NAMES {
        return Err(Problem::invalid(format!("{field}: at most {MOST_NAMES}")));
    }
    for name in names {
        bounds::line(field, name, bounds::NAME_CHARS)?;
        // Agents take lists with commas.
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

    fn chosen(new: serde_json::Value, project: serde_json::Value) -> Chosen {
        choose(&mut read(new), &mut read(project), &Continuous::default(), true)
    }

    #[test]
    fn nothing_said_is_nothing_chosen() {
        assert_eq!(chosen(json!({}), json!({})), Chosen::default());
    }

    #[test]
    fn a_request_counts_more_than_the_project_s_mode_and_that_more_than_the_project() {
        let project = json!({
            "model": "of-project", "approvals": "ask", "deliver": true, "system_prompt": "be brief",
            "denied_tools": ["WebFetch"],
            "modes": {"exploration": {"model": "of-mode", "deliver": false, "tools": ["Read"]}},
        });
        let plain = chosen(json!({}), project.clone());
        assert_eq!((plain.model.as_deref(), plain.deliver), (Some("of-project"), Some(true)));
        assert_eq!(plain.denied_tools, ["WebFetch"]);
        let exploring = chosen(json!({"mode": "exploration"}), project.clone());
        assert_eq!((exploring.model.as_deref(), exploring.deliver), (Some("of-mode"), Some(false)));
        assert_eq!(exploring.denied_tools, ["Edit", "NotebookEdit", "WebFetch", "Write"], "denials add up");
        assert_eq!((exploring.approvals, exploring.tools.unwrap().len()), (Some(Approvals::Ask), 1));
        let prompt = exploring.system_prompt.unwrap();
        assert!(prompt.starts_with("be brief\n\n") && prompt.contains("Change no files"), "{prompt}");
        let own =
            chosen(json!({"mode": "exploration", "model": "mine", "deliver": true, "denied_tools": ["Bash"]}), project);
        assert_eq!((own.model.as_deref(), own.deliver), (Some("mine"), Some(true)));
        assert!(own.denied_tools.contains(&"Bash".to_owned()));
    }

    #[test]
    fn continuous_is_on_when_the_nearest_word_says_so_and_is_filled_from_the_others() {
        let project = json!({"continuous": {"enabled": false, "checks": ["make test"], "iterations": 4}});
        assert_eq!(chosen(json!({}), project.clone()).continuous, None);
        let on = chosen(json!({"continuous": {"errors": 1}}), project.clone());
        let settings = on.continuous.unwrap();
        assert_eq!((settings.limits().iterations, settings.limits().errors), (4, 1));
        assert_eq!(settings.checks.unwrap(), ["make test"]);
        assert!(on.system_prompt.unwrap().contains("make test"), "the agent knows it beforehand");
        let always = json!({"continuous": {"checks": ["true"]}});
        assert!(chosen(json!({}), always.clone()).continuous.is_some());
        assert_eq!(chosen(json!({"continuous": {"enabled": false}}), always.clone()).continuous, None);
        assert!(chosen(json!({"mode": "implementation"}), always).continuous.is_some());
        assert!(chosen(json!({"mode": "exploration", "continuous": {}}), project).continuous.is_some());
    }

    #[test]
    fn what_can_t_be_checked_is_refused() {
        let some = Continuous { checks: Some(vec!["true".into()]), ..Continuous::default() };
        assert!(check_continuous(&some, ProviderKind::Local, false).is_ok());
        assert!(check_continuous(&some, ProviderKind::External, true).is_err());
        assert!(check_continuous(&Continuous::default(), ProviderKind::Local, true).is_ok());
        assert!(check_continuous(&Continuous::default(), ProviderKind::Local, false).is_err());
        for bad in [
            json!({"denied_tools": ["a,b"]}),
            json!({"continuous": {"iterations": 0}}),
            json!({"modes": {"validation": {"tools": [""]}}}),
            json!({"modes": {"validation": {"continuous": {"errors": 0}}}}),
        ] {
            assert!(check(&read(bad.clone())).is_err(), "{bad}");
        }
    }
}
