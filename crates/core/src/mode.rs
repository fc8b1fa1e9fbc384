//! Modes: what an agent is asked to do chooses among its settings.

use crate::continuous::Continuous;
use crate::sandbox::{Approvals, Mode};
use serde::{Deserialize, Serialize};

/// What a mode chooses; where it is silent, the project's defaults hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModeSettings {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvals: Option<Approvals>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tools: Option<Vec<String>>,
    /// Beside those that the project and the request deny.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub denied_tools: Option<Vec<String>>,
    /// Said after the system prompt of the task.
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
    /// What a mode means where the project says nothing else.
    pub fn standard(mode: Mode) -> Self {
        let looking = |words: &str| Self {
            denied_tools: Some(["Write", "Edit", "NotebookEdit"].map(str::to_owned).to_vec()),
            system_prompt: Some(words.to_owned()),
            continuous: Some(Continuous { enabled: Some(false), ..Continuous::default() }),
            deliver: Some(false),
            ..Self::default()
        };
        match mode {
            Mode::Exploration => looking("Look around and say what you find and what you would do. Change no files."),
            Mode::Validation => looking(
                "Check the work that is there: read what was changed, run its tests. Say what is right, what is \
                 wrong, and how you know. Change no files.",
            ),
            // What an agent does anyway.
            Mode::Implementation => Self::default(),
        }
    }

    /// What the project says of this mode, and where it is silent the standard.
    #[must_use]
    pub fn or_standard(self, mode: Mode) -> Self {
        let standard = Self::standard(mode);
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

/// The parts of a system prompt, one below the other.
pub fn joined<'a>(parts: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let parts: Vec<&str> = parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect();
    (!parts.is_empty()).then(|| parts.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_looks_has_no_tools_for_edits_and_delivers_nothing() {
        for mode in [Mode::Exploration, Mode::Validation] {
            let standard = ModeSettings::standard(mode);
            assert!(standard.denied_tools.unwrap().contains(&"Edit".to_owned()));
            assert_eq!((standard.deliver, standard.continuous.map(|it| it.is_on())), (Some(false), Some(false)));
        }
        assert_eq!(ModeSettings::standard(Mode::Implementation), ModeSettings::default());
    }

    #[test]
    fn a_project_s_word_counts_more_than_the_standard() {
        let own = ModeSettings { denied_tools: Some(Vec::new()), deliver: Some(true), ..ModeSettings::default() };
        let all = own.or_standard(Mode::Exploration);
        assert_eq!((all.denied_tools, all.deliver), (Some(Vec::new()), Some(true)));
        assert!(all.system_prompt.unwrap().contains("Change no files"), "what it leaves open stays");
    }

    #[test]
    fn prompts_stand_below_each_other() {
        assert_eq!(joined(["a", " ", "b\n"]).as_deref(), Some("a\n\nb"));
        assert_eq!(joined([]), None);
    }
}
