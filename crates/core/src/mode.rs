//! Modes: presets of agent settings for kinds of tasks.

use crate::continuous::Continuous;
use crate::sandbox::{ApprovalMode, Mode};
use serde::{Deserialize, Serialize};

/// Settings of a mode. Absent fields fall back to the project's defaults.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModeSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<ApprovalMode>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Added to the tools denied by the project and the request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_tools: Option<Vec<String>>,
    /// Appended to the task's system prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system_prompt: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub continuous: Option<Continuous>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deliver: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_subagents: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enable_skills: Option<bool>,
}

impl ModeSettings {
    /// Returns the built-in settings of a mode.
    pub fn built_in(mode: Mode) -> Self {
        let looking = |words: &str| Self {
            denied_tools: Some(["Write", "Edit", "NotebookEdit"].map(str::to_owned).to_vec()),
            system_prompt: Some(words.to_owned()),
            continuous: Some(Continuous { enabled: Some(false), ..Continuous::default() }),
            deliver: Some(false),
            ..Self::default()
        };
        match mode {
            Mode::Exploration => looking("Explore, and report what you find and what you would do. Change no files."),
            Mode::Validation => looking(
                "Check the work that is there: read what was changed, run its tests. Say what is right, what is \
                 wrong, and how you know. Change no files.",
            ),
            // The agent's normal behaviour.
            Mode::Implementation => Self::default(),
        }
    }

    /// Fills the project's settings of this mode with the built-in ones.
    #[must_use]
    pub fn or_built_in(self, mode: Mode) -> Self {
        let standard = Self::built_in(mode);
        Self {
            model: self.model.or(standard.model),
            approvals: self.approvals.or(standard.approvals),
            tools: self.tools.or(standard.tools),
            denied_tools: self.denied_tools.or(standard.denied_tools),
            system_prompt: self.system_prompt.or(standard.system_prompt),
            continuous: self.continuous.or(standard.continuous),
            deliver: self.deliver.or(standard.deliver),
            enable_subagents: self.enable_subagents.or(standard.enable_subagents),
            enable_skills: self.enable_skills.or(standard.enable_skills),
        }
    }
}

/// Joins the parts of a system prompt with blank lines.
pub fn join_prompts<'a>(parts: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let parts: Vec<&str> = parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_only_modes_have_no_edit_tools_and_deliver_nothing() {
        for mode in [Mode::Exploration, Mode::Validation] {
            let standard = ModeSettings::built_in(mode);
            assert!(standard.denied_tools.unwrap().contains(&"Edit".to_owned()));
            assert_eq!((standard.deliver, standard.continuous.map(|it| it.is_enabled())), (Some(false), Some(false)));
        }
        assert_eq!(ModeSettings::built_in(Mode::Implementation), ModeSettings::default());
    }

    #[test]
    fn project_settings_override_the_built_in_ones() {
        let own = ModeSettings { denied_tools: Some(Vec::new()), deliver: Some(true), ..ModeSettings::default() };
        let all = own.or_built_in(Mode::Exploration);
        assert_eq!((all.denied_tools, all.deliver), (Some(Vec::new()), Some(true)));
        assert!(all.system_prompt.unwrap().contains("Change no files"), "what it leaves open stays");
    }

    #[test]
    fn prompts_are_joined() {
        assert_eq!(join_prompts(["a", " ", "b\n"]).as_deref(), Some("a\n\nb"));
        assert_eq!(join_prompts([]), None);
    }
}
