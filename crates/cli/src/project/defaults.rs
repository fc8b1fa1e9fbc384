//! `atoll project set`: sets the defaults of a project's sandboxes.

use crate::arguments::{parse_json_file, parse_word};
use crate::connect::ConnectedClient;
use crate::failure::{Failure, Result};
use crate::setting_flags::SettingFlags;
use atoll_api::{ChangeProject, NewSandbox, Project, ProjectDefaults};
use atoll_core::id::ProjectId;
use atoll_core::mode::ModeSettings;
use atoll_core::sandbox::{EndPolicy, Mode};
use serde_json::Value;
use std::collections::BTreeMap;

/// Settings by mode. The alias keeps clap from taking it for a list.
type ModeMap = BTreeMap<Mode, ModeSettings>;

/// Defaults that a new value replaces as a whole; in other objects it replaces only the given fields.
const REPLACED_FIELDS: [&str; 4] = ["network", "policy", "mcp", "continuous"];

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll project set prj_… --agent claude --memory 8 --approvals full
  atoll project set prj_… --env CI=1 --secret NPM_TOKEN --network allow --allow-host registry.npmjs.org
  atoll project set prj_… --unset env.CI --unset network
  atoll project show prj_…

The project's sandboxes have these settings unless their request sets others. Lists and the settings of the
network, policy, MCP servers and continuous mode are replaced; variables, labels, limits and resources are added to.")]
pub struct SetDefaults {
    /// Project id (prj_…)
    id: ProjectId,
    /// Remove a default: a field of `atoll project show`, or one entry of it such as env.CI (repeatable)
    #[arg(long, value_name = "FIELD")]
    unset: Vec<String>,
    /// End of the sandboxes: when_done or keep
    #[arg(long, value_name = "WHEN", value_parser = parse_word::<EndPolicy>)]
    end: Option<EndPolicy>,
    /// Settings by mode: a file with JSON
    #[arg(long, value_name = "FILE", value_parser = parse_json_file::<ModeMap>)]
    modes: Option<ModeMap>,
    #[command(flatten)]
    settings: SettingFlags,
}

pub async fn set_defaults(set: &SetDefaults, client: &ConnectedClient) -> Result<Project> {
    let request =
        NewSandbox { end: set.end, modes: set.modes.clone().unwrap_or_default(), ..set.settings.to_request()? };
    let Value::Object(given) = serde_json::to_value(request).unwrap_or_default() else {
        return Err(Failure::input("the settings are not an object"));
    };
    if given.is_empty() && set.unset.is_empty() {
        return Err(Failure::input("there is nothing to set").with_hint("Name a setting, such as --agent NAME."));
    }
    let mut defaults = client.get_project(set.id).await?.defaults;
    for field in &set.unset {
        remove_default(&mut defaults, field)?;
    }
    merge_defaults(&mut defaults, given);
    let change = ChangeProject { defaults: Some(defaults), ..ChangeProject::default() };
    Ok(client.change_project(set.id, &change).await?)
}

fn merge_defaults(defaults: &mut ProjectDefaults, given: ProjectDefaults) {
    for (field, value) in given {
        match (defaults.get_mut(&field), value) {
            (Some(Value::Object(current)), Value::Object(new)) if !REPLACED_FIELDS.contains(&field.as_str()) => {
                current.extend(new);
            }
            (_, value) => {
                defaults.insert(field, value);
            }
        }
    }
}

fn remove_default(defaults: &mut ProjectDefaults, path: &str) -> Result {
    let removed = match path.split_once('.') {
        Some((field, entry)) => match defaults.get_mut(field) {
            Some(Value::Object(entries)) => {
                let removed = entries.remove(entry);
                if entries.is_empty() {
                    defaults.remove(field);
                }
                removed
            }
            _ => None,
        },
        None => defaults.remove(path),
    };
    match removed {
        Some(_) => Ok(()),
        None => Err(Failure::input(format!("--unset: the project has no default `{path}`"))
            .with_hint("`atoll project show` lists the defaults.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(value: Value) -> ProjectDefaults {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn given_settings_extend_the_defaults() {
        let mut defaults = object(json!({
            "agent": "demo", "env": {"A": "1"}, "network": {"policy": "allow", "allow": ["x"]}, "secrets": ["S"],
        }));
        let given = json!({
            "agent": "claude", "env": {"B": "2"}, "network": {"policy": "none"}, "secrets": ["T"], "limits": {"turns": 3},
        });
        merge_defaults(&mut defaults, object(given));
        let expected = json!({
            "agent": "claude", "env": {"A": "1", "B": "2"}, "network": {"policy": "none"}, "secrets": ["T"],
            "limits": {"turns": 3},
        });
        assert_eq!(Value::from(defaults), expected);
    }

    #[test]
    fn removes_a_field_or_one_entry() {
        let mut defaults = object(json!({"agent": "demo", "env": {"A": "1", "B": "2"}}));
        for path in ["env.A", "agent"] {
            remove_default(&mut defaults, path).unwrap();
        }
        assert_eq!(Value::from(defaults.clone()), json!({"env": {"B": "2"}}));
        remove_default(&mut defaults, "env.B").unwrap();
        assert!(defaults.is_empty());
        assert!(remove_default(&mut defaults, "env.B").is_err() && remove_default(&mut defaults, "agent").is_err());
    }
}
