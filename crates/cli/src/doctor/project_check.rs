//! Checks what a project would lack in a sandbox on this machine.

use super::{Check, Report};
use crate::failure::Result;
use crate::setup::{ProjectFiles, ToolReport, ToolStatus, report_tools};
use atoll_config::Config;
use atoll_core::setup::{
    RequiredVersion, VersionRule, find_version, list_required_versions, plan_setup, remedy_for_tool,
};
use atoll_jail::{ProgramVisibility, VisiblePrograms};
use std::path::Path;

const CHECK: &str = "set-up";

pub fn check_project(path: &Path, config: &Config, report: &mut Report<'_>) -> Result {
    let project = ProjectFiles::read(path)?;
    let programs = VisiblePrograms::new(&config.local.tools, &config.data_dir);
    match plan_setup(None, None, &project.files) {
        Ok(None) => report.add(Check::ok(CHECK, "nothing to run: no package manager found in the project"))?,
        Ok(Some(plan)) => {
            let commands: Vec<_> = plan.steps.iter().map(|step| step.command.to_string()).collect();
            let commands = if commands.is_empty() { "nothing to run".to_owned() } else { commands.join("; ") };
            report.add(Check::ok(CHECK, format!("{commands} (source: {})", plan.source)))?;
            for note in &plan.notes {
                report.add(Check::warn(CHECK, note.clone(), "See `atoll setup`."))?;
            }
            for tool in report_tools(&plan, &programs) {
                report.add(judge_tool(&tool))?;
            }
        }
        Err(error) => {
            report.add(Check::fail(
                CHECK,
                error.to_string(),
                "Name the commands in `.atoll/setup`, or use --no-setup.",
            ))?;
        }
    }
    let required = list_required_versions(&project.files);
    required
        .iter()
        .try_for_each(|required| report.add(judge_version(required, &installed_version(required.program, &programs))))
}

fn judge_tool(tool: &ToolReport) -> Check {
    match tool.status {
        ToolStatus::Visible => Check::ok("tool", tool.describe()),
        ToolStatus::Hidden | ToolStatus::Missing => {
            Check::fail("tool", tool.describe(), tool.remedy.clone().unwrap_or_default())
        }
    }
}

/// The output of a program's version command, else its path, which often has the version.
fn installed_version(program: &str, programs: &VisiblePrograms) -> Option<String> {
    let ProgramVisibility::Visible(path) = programs.find_program(program) else { return None };
    let argument = if program == "go" { "version" } else { "--version" };
    let output =
        atoll_agents::version::query_version_text(&path, argument).filter(|output| find_version(output).is_some());
    output.or_else(|| Some(path.display().to_string()))
}

fn judge_version(required: &RequiredVersion, installed: &Option<String>) -> Check {
    const CHECK: &str = "version";
    let RequiredVersion { file, program, version, rule } = required;
    let least = match rule {
        VersionRule::Prefix => "",
        VersionRule::Minimum => "at least ",
    };
    let wanted = format!("{file} asks for {program} {least}{version}");
    let Some(installed) = installed else {
        return Check::warn(CHECK, format!("{wanted}; sandboxes have none"), remedy_for_tool(program));
    };
    let found = find_version(installed).unwrap_or("an unknown version");
    match required.is_met_by(installed) {
        Some(true) => Check::ok(CHECK, format!("{wanted}; sandboxes have {found}")),
        Some(false) => Check::warn(
            CHECK,
            format!("{wanted}; sandboxes have {found}"),
            "Install that version system-wide, or give the project an image that has it (`atoll image import`).",
        ),
        None => Check::warn(CHECK, format!("{wanted}; sandboxes have {found}"), format!("Run {installed} --version.")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;

    #[test]
    fn compares_required_with_installed_versions() {
        let required =
            |version: &str, rule| RequiredVersion { file: ".nvmrc", program: "node", version: version.into(), rule };
        for (version, rule, installed, status, detail) in [
            ("20", VersionRule::Prefix, Some("v20.1.0"), Status::Ok, ".nvmrc asks for node 20; sandboxes have 20.1.0"),
            (
                "22",
                VersionRule::Prefix,
                Some("v20.1.0"),
                Status::Warn,
                ".nvmrc asks for node 22; sandboxes have 20.1.0",
            ),
            ("22", VersionRule::Minimum, None, Status::Warn, ".nvmrc asks for node at least 22; sandboxes have none"),
            (
                "22",
                VersionRule::Prefix,
                Some("/opt/node"),
                Status::Warn,
                ".nvmrc asks for node 22; sandboxes have an unknown version",
            ),
        ] {
            let check = judge_version(&required(version, rule), &installed.map(str::to_owned));
            assert_eq!((check.status, check.detail.as_str()), (status, detail));
            assert_eq!(check.remedy.is_none(), status == Status::Ok);
        }
    }

    #[test]
    fn a_missing_tool_fails_with_a_remedy() {
        let tool = ToolReport {
            name: "uv".into(),
            status: ToolStatus::Missing,
            path: None,
            remedy: Some("install it".into()),
        };
        let check = judge_tool(&tool);
        assert_eq!((check.status, check.detail.as_str()), (Status::Fail, "this machine lacks uv"));
        assert_eq!(check.remedy.as_deref(), Some("install it"));
    }
}
