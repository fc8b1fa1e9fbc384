//! `atoll setup`: shows how a project would be prepared in its sandbox.

mod plan_text;
mod project_files;
mod tool_report;

pub use project_files::ProjectFiles;
pub use tool_report::{ToolReport, ToolStatus, report_tools};

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::settings::{self, ConfigFiles};
use atoll_core::setup::{SetupPlan, plan_setup};
use atoll_jail::VisiblePrograms;
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll setup
  atoll setup ~/src/app
  atoll setup --json | jq -r '.plan.steps[].command'

Shows the commands that Atoll runs in a new sandbox before the agent starts, and the reason for each. In a git
repository, it reads the checked-out commit, because sandboxes start from that. It runs nothing.")]
pub struct Setup {
    /// Directory of the project
    #[arg(default_value = ".")]
    path: PathBuf,
    #[command(flatten)]
    files: ConfigFiles,
}

#[derive(Debug, Serialize)]
struct SetupReport<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    directory: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit: Option<&'a str>,
    /// Null if there is nothing to set up.
    plan: Option<&'a SetupPlan>,
    tools: &'a [ToolReport],
}

pub fn run(setup: &Setup, output: &Output) -> Result {
    let config = settings::load_with_data_dir(None, &setup.files)?.config;
    let project = ProjectFiles::read(&setup.path)?;
    let plan = plan_setup(None, None, &project.files).map_err(|error| Failure::setup("setup", error))?;
    let programs = VisiblePrograms::new(&config.local.tools, &config.data_dir);
    let tools = plan.as_ref().map(|plan| report_tools(plan, &programs)).unwrap_or_default();
    if output.json {
        let directory = project.directory.display().to_string();
        let (commit, plan) = (project.commit.as_deref(), plan.as_ref());
        return output.print_object(&SetupReport { kind: "setup", directory: &directory, commit, plan, tools: &tools });
    }
    plan_text::print_plan(output, &project, plan.as_ref(), &tools)
}
