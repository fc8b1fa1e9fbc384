//! Tool names. Settings use Claude Code's names for common tools; names of other agents are equivalent.

use super::UnsupportedSetting;
use crate::settings::AgentSettings;
use std::collections::BTreeSet;

/// A common tool, independent of the agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ToolKind {
    Read,
    Write,
    Edit,
    Notebook,
    /// Both writes and edits.
    Patch,
    Bash,
    Glob,
    Grep,
    List,
    Task,
    Skill,
    WebFetch,
    WebSearch,
    Todo,
    Image,
}

impl ToolKind {
    pub(crate) fn from_name(name: &str) -> Option<Self> {
        Some(match name.to_ascii_lowercase().as_str() {
            "read" | "read_file" | "read_many_files" => Self::Read,
            "write" | "write_file" => Self::Write,
            "edit" | "multiedit" | "replace" => Self::Edit,
            "notebookedit" => Self::Notebook,
            "apply_patch" | "patch" | "file_change" | "filechange" => Self::Patch,
            "bash" | "shell" | "exec_command" | "run_shell_command" => Self::Bash,
            "glob" => Self::Glob,
            "grep" | "grep_search" | "search_file_content" => Self::Grep,
            "list" | "ls" | "list_directory" => Self::List,
            "task" | "agent" | "invoke_agent" | "spawn_agent" => Self::Task,
            "skill" | "activate_skill" => Self::Skill,
            "webfetch" | "web_fetch" => Self::WebFetch,
            "websearch" | "web_search" | "google_web_search" => Self::WebSearch,
            "todowrite" | "todoread" | "write_todos" => Self::Todo,
            "view_image" => Self::Image,
            _ => return None,
        })
    }

    pub(super) const fn changes_files(self) -> bool {
        match self {
            Self::Write | Self::Edit | Self::Patch => true,
            Self::Read
            | Self::Notebook
            | Self::Bash
            | Self::Glob
            | Self::Grep
            | Self::List
            | Self::Task
            | Self::Skill
            | Self::WebFetch
            | Self::WebSearch
            | Self::Todo
            | Self::Image => false,
        }
    }
}

/// Translates tool names to the agent's own; unknown names stay as they are.
pub(super) fn translate_names<'a>(
    names: impl IntoIterator<Item = &'a String>,
    of: impl Fn(ToolKind) -> &'static [&'static str],
) -> Vec<String> {
    let mut all = BTreeSet::new();
    for name in names {
        match ToolKind::from_name(name) {
            Some(tool) => all.extend(of(tool).iter().map(|own| (*own).to_owned())),
            None => drop(all.insert(name.clone())),
        }
    }
    all.into_iter().collect()
}

/// Lists the denied tools: by name, and through `enable_subagents` and `enable_skills`.
pub(crate) fn list_denied_tools(settings: &AgentSettings) -> Vec<String> {
    let mut denied = settings.denied_tools.clone();
    if settings.enable_subagents == Some(false) {
        denied.push("Task".to_owned());
    }
    if settings.enable_skills == Some(false) {
        denied.push("Skill".to_owned());
    }
    denied
}

/// Returns true if the settings deny the tool.
pub fn is_tool_denied(settings: &AgentSettings, name: &str) -> bool {
    let tool = ToolKind::from_name(name);
    let same = |other: &String| match (tool, ToolKind::from_name(other)) {
        (Some(ToolKind::Patch), Some(ToolKind::Write | ToolKind::Edit))
        | (Some(ToolKind::Write | ToolKind::Edit), Some(ToolKind::Patch)) => true,
        (Some(one), Some(other)) => one == other,
        (_, _) => other.eq_ignore_ascii_case(name),
    };
    if list_denied_tools(settings).iter().any(same) {
        return true;
    }
    // An allow list does not affect unknown tools: they are the agent's internal tools.
    tool.is_some() && settings.tools.as_ref().is_some_and(|tools| !tools.iter().any(same))
}

/// Settings that an agent without tool configuration cannot follow.
pub(super) fn unsupported_tool_settings(settings: &AgentSettings, agent: &str) -> Vec<UnsupportedSetting> {
    let mut ignored = Vec::new();
    let explanation = "Atoll can only deny calls that it asks about";
    let mut say = |setting: &str| {
        ignored.push(crate::unsupported(setting, format!("{agent} has no setting for its tools; {explanation}")));
    };
    if settings.tools.is_some() {
        say("tools");
    }
    if !settings.denied_tools.is_empty() {
        say("denied_tools");
    }
    for (setting, value) in [("enable_subagents", settings.enable_subagents), ("enable_skills", settings.enable_skills)]
    {
        if value == Some(false) {
            say(setting);
        }
    }
    ignored
}
