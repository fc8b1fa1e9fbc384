//! Names of tools. Settings use those of Claude Code for what every agent has; an agent's own name means the same.

use super::Ignored;
use crate::heartbeat::Settings;
use std::collections::BTreeSet;

/// What a tool is, whatever its agent calls it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Tool {
    Read,
    Write,
    Edit,
    Notebook,
    /// Writes and edits alike.
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

impl Tool {
    pub(crate) fn named(name: &str) -> Option<Self> {
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

    /// Claude Code's own names.
    pub(super) const fn of_claude(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["Read"],
            Self::Write => &["Write"],
            Self::Edit => &["Edit"],
            Self::Notebook => &["NotebookEdit"],
            Self::Patch => &["Write", "Edit", "NotebookEdit"],
            Self::Bash => &["Bash"],
            Self::Glob => &["Glob"],
            Self::Grep => &["Grep"],
            Self::List => &["LS"],
            Self::Task => &["Task", "Agent"],
            Self::Skill => &["Skill"],
            Self::WebFetch => &["WebFetch"],
            Self::WebSearch => &["WebSearch"],
            Self::Todo => &["TodoWrite"],
            Self::Image => &[],
        }
    }

    /// Those of OpenCode's permissions: one for everything that changes files.
    pub(super) const fn of_opencode(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["read"],
            Self::Write | Self::Edit | Self::Patch => &["edit"],
            Self::Bash => &["bash"],
            Self::Glob => &["glob"],
            Self::Grep => &["grep"],
            Self::List => &["list"],
            Self::Task => &["task"],
            Self::Skill => &["skill"],
            Self::WebFetch => &["webfetch"],
            Self::WebSearch => &["websearch"],
            Self::Todo => &["todowrite", "todoread"],
            Self::Notebook | Self::Image => &[],
        }
    }

    pub(super) const fn of_gemini(self) -> &'static [&'static str] {
        match self {
            Self::Read => &["read_file", "read_many_files"],
            Self::Write => &["write_file"],
            Self::Edit => &["replace"],
            Self::Patch => &["write_file", "replace"],
            Self::Bash => &["run_shell_command"],
            Self::Glob => &["glob"],
            Self::Grep => &["grep_search", "search_file_content"],
            Self::List => &["list_directory"],
            Self::Task => &["invoke_agent"],
            Self::Skill => &["activate_skill"],
            Self::WebFetch => &["web_fetch"],
            Self::WebSearch => &["google_web_search"],
            Self::Todo => &["write_todos"],
            Self::Notebook | Self::Image => &[],
        }
    }
}

/// The names of tools as an agent has them; what is unknown here is passed on as it is.
pub(super) fn translated<'a>(
    names: impl IntoIterator<Item = &'a String>,
    of: impl Fn(Tool) -> &'static [&'static str],
) -> Vec<String> {
    let mut all = BTreeSet::new();
    for name in names {
        match Tool::named(name) {
            Some(tool) => all.extend(of(tool).iter().map(|own| (*own).to_owned())),
            None => drop(all.insert(name.clone())),
        }
    }
    all.into_iter().collect()
}

/// Everything that is denied: by name, and what is switched off as a whole.
pub(crate) fn denied(settings: &Settings) -> Vec<String> {
    let mut denied = settings.denied_tools.clone();
    if settings.enable_subagents == Some(false) {
        denied.push("Task".to_owned());
    }
    if settings.enable_skills == Some(false) {
        denied.push("Skill".to_owned());
    }
    denied
}

/// Whether the settings forbid a tool that an agent is about to use.
pub(crate) fn is_denied(settings: &Settings, name: &str) -> bool {
    let tool = Tool::named(name);
    let same = |other: &String| match (tool, Tool::named(other)) {
        (Some(Tool::Patch), Some(Tool::Write | Tool::Edit)) | (Some(Tool::Write | Tool::Edit), Some(Tool::Patch)) => {
            true
        }
        (Some(one), Some(other)) => one == other,
        (_, _) => other.eq_ignore_ascii_case(name),
    };
    if denied(settings).iter().any(same) {
        return true;
    }
    // A list of what it has says nothing of tools that nobody here knows: those are the agent's own housekeeping.
    tool.is_some() && settings.tools.as_ref().is_some_and(|tools| !tools.iter().any(same))
}

/// For an agent that can't be told which tools it has.
pub(super) fn ignored(settings: &Settings, agent: &str) -> Vec<Ignored> {
    let mut ignored = Vec::new();
    let asked = "a call is refused only where it asks before it";
    let mut say = |setting: &str| {
        ignored.push(Ignored::new(setting, format!("{agent} can't be told which tools it has; {asked}")));
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
