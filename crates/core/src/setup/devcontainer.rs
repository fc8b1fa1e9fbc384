//! Commands, variables and ports of `devcontainer.json`.

use super::jsonc::parse_jsonc;
use super::{RepositoryFiles, SetupCommand, SetupPlan, SetupSource, SetupStep, WORKSPACE_ROOT, request};
use crate::bounds;
use serde_json::{Map, Value};
use std::collections::BTreeMap;

const PATHS: &[&str] = &[".devcontainer/devcontainer.json", ".devcontainer.json"];

/// In the order in which they run. `initializeCommand` is left out on purpose: it is meant for the host.
const COMMANDS: &[&str] = &["onCreateCommand", "updateContentCommand", "postCreateCommand"];

const UNSUPPORTED: &[&str] = &[
    "image",
    "build",
    "dockerFile",
    "dockerComposeFile",
    "features",
    "mounts",
    "workspaceMount",
    "runArgs",
    "appPort",
    "initializeCommand",
    "postStartCommand",
    "postAttachCommand",
];

const MAX_PORTS: usize = 20;
const WORKSPACE_VARIABLES: &[&str] = &["${containerWorkspaceFolder}", "${localWorkspaceFolder}"];
const WORKSPACE_PATH: &str = "/workspace";

/// Reads the plan of a repository's `devcontainer.json`. Its steps are empty if the file has no commands.
pub(super) fn read_devcontainer(files: &RepositoryFiles) -> Option<SetupPlan> {
    let path = PATHS.iter().find(|path| files.contains(path))?;
    let mut plan = super::plan_with_all_files(SetupSource::Devcontainer, Vec::new(), files);
    let Some(Value::Object(settings)) = files.text(path).and_then(parse_jsonc) else {
        plan.notes.push(format!("{path} is not valid JSON, so set-up ignores it."));
        return Some(plan);
    };
    for name in COMMANDS {
        if let Some(value) = settings.get(*name) {
            add_commands(&mut plan, path, name, value);
        }
    }
    read_variables(&settings, &mut plan, path);
    read_ports(&settings, &mut plan, path);
    let unsupported: Vec<_> =
        UNSUPPORTED.iter().filter(|key| settings.contains_key(**key)).map(|key| format!("`{key}`")).collect();
    if !unsupported.is_empty() {
        plan.notes.push(format!(
            "{path}: set-up does not use {}. Import an image with the tools (`atoll image import`) if this machine lacks some.",
            unsupported.join(", ")
        ));
    }
    Some(plan)
}

/// Adds one command, or the named commands of an object; these run one after the other.
fn add_commands(plan: &mut SetupPlan, path: &str, name: &str, value: &Value) {
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(parts) => parts.iter().map(|(part, value)| (format!("{name} `{part}`"), value)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            vec![(name.to_owned(), value)]
        }
    };
    for (part, value) in parts {
        match parse_command(value) {
            Some(command) if plan.steps.len() < request::MAX_COMMANDS => plan.steps.push(SetupStep {
                command,
                directory: WORKSPACE_ROOT.to_owned(),
                reason: format!("{part} in {path}"),
                tools: Vec::new(),
            }),
            Some(_) => {
                plan.notes.push(format!("{path}: set-up runs at most {} commands, not {part}.", request::MAX_COMMANDS))
            }
            None => plan
                .notes
                .push(format!("{path}: {part} is not a command of at most {} bytes.", request::MAX_COMMAND_BYTES)),
        }
    }
    plan.notes.truncate(request::MAX_COMMANDS);
}

fn parse_command(value: &Value) -> Option<SetupCommand> {
    let fits = |text: &str| bounds::check_content("command", text, request::MAX_COMMAND_BYTES).is_ok();
    match value {
        Value::String(text) => fits(text).then(|| SetupCommand::Shell(text.clone())),
        Value::Array(words) => {
            let argv: Vec<String> = words.iter().map(|word| word.as_str().map(str::to_owned)).collect::<Option<_>>()?;
            (fits(&argv.join(" ")) && argv.first().is_some_and(|program| !program.is_empty()))
                .then_some(SetupCommand::Argv(argv))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => None,
    }
}

fn read_variables(settings: &Map<String, Value>, plan: &mut SetupPlan, path: &str) {
    let mut refused = Vec::new();
    for (name, value) in
        ["containerEnv", "remoteEnv"].iter().filter_map(|key| settings.get(*key)?.as_object()).flatten()
    {
        let value = value.as_str().map(|text| {
            WORKSPACE_VARIABLES.iter().fold(text.to_owned(), |text, variable| text.replace(variable, WORKSPACE_PATH))
        });
        match value {
            Some(value)
                if !value.contains("${")
                    && is_valid_variable(name, &value)
                    && plan.env.len() < bounds::MAX_ENV_VARIABLES =>
            {
                plan.env.insert(name.clone(), value);
            }
            _ => refused.push(format!("`{}`", name.chars().take(64).collect::<String>())),
        }
    }
    refused.truncate(10);
    if !refused.is_empty() {
        plan.notes.push(format!(
            "{path}: set-up does not set {}: the name is reserved or not in capitals, or the value refers to another variable.",
            refused.join(", ")
        ));
    }
}

fn is_valid_variable(name: &str, value: &str) -> bool {
    bounds::check_env(&BTreeMap::from([(name.to_owned(), value.to_owned())])).is_ok()
}

/// Ports are numbers, or texts with a loopback host.
fn read_ports(settings: &Map<String, Value>, plan: &mut SetupPlan, path: &str) {
    let entries = settings.get("forwardPorts").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let mut ports: Vec<u16> = entries.iter().filter_map(parse_port).collect();
    if ports.len() < entries.len() {
        plan.notes.push(format!("{path}: `forwardPorts` has an entry that is not a port of the sandbox itself."));
    }
    ports.sort_unstable();
    ports.dedup();
    ports.truncate(MAX_PORTS);
    plan.ports = ports;
}

fn parse_port(entry: &Value) -> Option<u16> {
    let port = match entry {
        Value::Number(number) => u16::try_from(number.as_u64()?).ok()?,
        Value::String(text) => text.strip_prefix("localhost:").unwrap_or(text).parse().ok()?,
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => return None,
    };
    (port > 0).then_some(port)
}
