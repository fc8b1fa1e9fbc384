//! Whether a sandbox on this machine has the tools of a set-up plan.

use atoll_core::setup::{SetupPlan, remedy_for_tool};
use atoll_jail::{ProgramVisibility, VisiblePrograms};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolStatus {
    Visible,
    /// On this machine, in a directory that sandboxes do not see.
    Hidden,
    Missing,
}

/// A tool of a set-up plan on this machine.
#[derive(Debug, Serialize)]
pub struct ToolReport {
    pub name: String,
    pub status: ToolStatus,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

pub fn report_tools(plan: &SetupPlan, programs: &VisiblePrograms) -> Vec<ToolReport> {
    plan.tools().into_iter().map(|name| report_tool(name, programs.find_program(name))).collect()
}

fn report_tool(name: &str, visibility: ProgramVisibility) -> ToolReport {
    let (status, path, remedy) = match visibility {
        ProgramVisibility::Visible(path) => (ToolStatus::Visible, Some(path), None),
        ProgramVisibility::Hidden(path) => {
            let remedy = format!("add its directory to local.tools, or {}", remedy_for_tool(name));
            (ToolStatus::Hidden, Some(path), Some(remedy))
        }
        ProgramVisibility::Missing => (ToolStatus::Missing, None, Some(remedy_for_tool(name))),
    };
    ToolReport { name: name.to_owned(), status, path: path.map(|path| path.display().to_string()), remedy }
}

impl ToolReport {
    /// One line for people.
    pub fn describe(&self) -> String {
        let path = self.path.as_deref().unwrap_or_default();
        match self.status {
            ToolStatus::Visible => format!("{}: {path}", self.name),
            ToolStatus::Hidden => format!("{} is at {path}, which sandboxes do not see", self.name),
            ToolStatus::Missing => format!("this machine lacks {}", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_a_sandbox_lacks_has_a_remedy() {
        let visible = report_tool("npm", ProgramVisibility::Visible("/usr/bin/npm".into()));
        assert_eq!((visible.describe().as_str(), visible.remedy), ("npm: /usr/bin/npm", None));
        let hidden = report_tool("uv", ProgramVisibility::Hidden("/srv/bin/uv".into()));
        assert_eq!(hidden.describe(), "uv is at /srv/bin/uv, which sandboxes do not see");
        assert!(
            hidden.remedy.is_some_and(|remedy| remedy.starts_with("add its directory to local.tools, or install it"))
        );
        let missing = report_tool("uv", ProgramVisibility::Missing);
        assert_eq!(missing.describe(), "this machine lacks uv");
        assert!(missing.remedy.is_some_and(|remedy| remedy.contains("`pipx install --global uv`")));
    }
}
