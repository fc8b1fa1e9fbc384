//! A set-up plan as text for people.

use super::{ProjectFiles, ToolReport, ToolStatus};
use crate::failure::Result;
use crate::output::Output;
use crate::render::{style, text};
use atoll_core::setup::{SetupPlan, SetupSource, WORKSPACE_ROOT};

const SHOWN_KEY_FILES: usize = 12;

pub fn print_plan(output: &Output, project: &ProjectFiles, plan: Option<&SetupPlan>, tools: &[ToolReport]) -> Result {
    let name = |name: &str| output.apply_style(style::FAINT, &format!("{name:<9}"));
    let directory = text::escape_line(&project.directory.display().to_string());
    let commit = project.commit.as_deref().map(|commit| format!(" at {}", &commit[..commit.len().min(10)]));
    output.print_line(&format!("{}  {directory}{}", name("project"), commit.unwrap_or_default()))?;
    let Some(plan) = plan else {
        return output.print_line(&format!(
            "{}  nothing to run: no .atoll/setup, no devcontainer.json, no package manager found",
            name("set-up")
        ));
    };
    output.print_line(&format!("{}  {}", name("source"), describe_source(plan.source)))?;
    for (number, step) in plan.steps.iter().enumerate() {
        let place = if step.directory == WORKSPACE_ROOT {
            String::new()
        } else {
            format!(" in {}", text::escape_line(&step.directory))
        };
        let command = text::escape_line(&step.command.to_string());
        let because = output.apply_style(style::FAINT, &format!("({})", text::escape_line(&step.reason)));
        output.print_line(&format!("{}  {command}{place}  {because}", name(&format!("step {}", number + 1))))?;
    }
    for tool in tools {
        let (word, colour) = match tool.status {
            ToolStatus::Visible => ("ok", style::GOOD),
            ToolStatus::Hidden => ("hidden", style::BAD),
            ToolStatus::Missing => ("missing", style::BAD),
        };
        let word = output.apply_style(colour, &format!("{word:<7}"));
        output.print_line(&format!("{}  {word}  {}", name("tool"), text::escape_line(&tool.describe())))?;
        if let Some(remedy) = &tool.remedy {
            output.print_line(&format!("{:20}{}", "", text::escape_line(remedy)))?;
        }
    }
    for (variable, value) in &plan.env {
        output.print_line(&format!(
            "{}  {}",
            name("variable"),
            text::escape_clipped(&format!("{variable}={value}"), 200)
        ))?;
    }
    if !plan.ports.is_empty() {
        let ports: Vec<_> = plan.ports.iter().map(ToString::to_string).collect();
        output.print_line(&format!("{}  {}", name("ports"), ports.join(", ")))?;
    }
    output.print_line(&format!("{}  {}", name("cache key"), text::escape_line(&describe_key_files(plan))))?;
    plan.notes.iter().try_for_each(|note| output.print_line(&format!("{}  {}", name("note"), text::escape_line(note))))
}

const fn describe_source(source: SetupSource) -> &'static str {
    match source {
        SetupSource::Request => "the request",
        SetupSource::Project => "the project's `setup`",
        SetupSource::Repository => ".atoll/setup in the repository",
        SetupSource::Devcontainer => "devcontainer.json in the repository",
        SetupSource::Detected => "detected by manifests and lock files",
    }
}

/// The files whose change makes set-up run again.
fn describe_key_files(plan: &SetupPlan) -> String {
    let shown = plan.key_files.iter().take(SHOWN_KEY_FILES).map(String::as_str).collect::<Vec<_>>().join(", ");
    match plan.key_files.len().saturating_sub(SHOWN_KEY_FILES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
