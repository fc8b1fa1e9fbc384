//! `atoll doctor`: checks the requirements of a server and its sandboxes.

mod agent_check;
mod clock_check;
mod database_check;
mod disk_check;
mod isolation_check;
mod process_check;
mod project_check;
mod server_check;

use crate::agents::agent_list;
use crate::connect::Connect;
use crate::failure::{Failure, Result, WORK_FAILED};
use crate::output::Output;
use crate::render::{style, text};
use crate::settings::{self, ConfigFiles};
use serde::Serialize;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll doctor
  atoll doctor --repo .
  atoll doctor --data-dir /srv/atoll --json | jq -c 'select(.status != \"ok\")'

The exit code is 1 if a check fails. The command removes the files and the test sandbox that it creates.")]
pub struct Doctor {
    /// Data directory to check [default: ATOLL_DATA_DIR, or the user's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Also check what the project in this directory would lack in a sandbox
    #[arg(long, value_name = "PATH")]
    repo: Option<PathBuf>,
    #[command(flatten)]
    files: ConfigFiles,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// The result of one check.
#[derive(Debug, Serialize)]
struct Check {
    #[serde(rename = "type")]
    kind: &'static str,
    check: &'static str,
    status: Status,
    detail: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn new(check: &'static str, status: Status, detail: impl Into<String>, remedy: Option<String>) -> Self {
        Self { kind: "check", check, status, detail: detail.into(), remedy }
    }

    fn ok(check: &'static str, detail: impl Into<String>) -> Self {
        Self::new(check, Status::Ok, detail, None)
    }

    fn warn(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Status::Warn, detail, Some(remedy.into()))
    }

    fn fail(check: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::new(check, Status::Fail, detail, Some(remedy.into()))
    }
}

/// Prints each check as soon as it is done.
struct Report<'a> {
    output: &'a Output,
    failed: usize,
}

impl Report<'_> {
    fn add(&mut self, check: Check) -> Result {
        self.failed += usize::from(check.status == Status::Fail);
        if self.output.json {
            self.output.print_object(&check)?;
        } else {
            let word = match check.status {
                Status::Ok => "ok",
                Status::Warn => "warn",
                Status::Fail => "fail",
            };
            let status = self.output.apply_style(style::state_style(word), &format!("{word:<4}"));
            self.output.print_line(&format!("{status}  {:<14}  {}", check.check, text::escape_line(&check.detail)))?;
            if let Some(remedy) = &check.remedy {
                self.output.print_line(&format!("{:22}{}", "", text::escape_line(remedy)))?;
            }
        }
        self.output.flush()
    }
}

pub async fn run(doctor: &Doctor, output: &Output) -> Result {
    let mut report = Report { output, failed: 0 };
    match settings::load_with_data_dir(doctor.data_dir.as_deref(), &doctor.files) {
        Ok(loaded) => {
            let files: Vec<_> = loaded.files.iter().map(|file| file.display().to_string()).collect();
            let from = if files.is_empty() { "no file".to_owned() } else { files.join(", ") };
            report.add(Check::ok("configuration", format!("valid, from {from}")))?;
            for warning in &loaded.warnings {
                report.add(Check::warn(
                    "configuration",
                    warning.to_string(),
                    "Remove the key, or ignore this warning.",
                ))?;
            }
            run_checks(&loaded.config, &mut report).await?;
            if let Some(repo) = &doctor.repo {
                project_check::check_project(repo, &loaded.config, &mut report)?;
            }
            if rustix::process::geteuid().is_root() {
                report.add(process_check::check_server_user(&loaded.config))?;
            }
        }
        Err(Failure::Reported(failure)) => {
            report.add(Check::fail(
                "configuration",
                failure.detail,
                "Fix the configuration; the other checks need it.",
            ))?;
        }
        Err(other) => return Err(other),
    }
    process_check::check_process(&mut report)?;
    if report.failed > 0 { Err(Failure::Silent(WORK_FAILED)) } else { Ok(()) }
}

async fn run_checks(config: &atoll_config::Config, report: &mut Report<'_>) -> Result {
    let usable = disk_check::check_data_dir(&config.data_dir, report)?;
    if usable {
        clock_check::check_clock(&config.data_dir, report)?;
        database_check::measure_commits(&config.data_dir, report).await?;
        database_check::check_database(&config.database(), report).await?;
    }
    // Asking agents for their version and creating a sandbox both take time: do them concurrently.
    let nowhere = Connect::default();
    let (listed, checked) =
        tokio::join!(agent_list::list_agents(&nowhere, config), isolation_check::check_isolation(config, report));
    checked?;
    agent_check::check_agents(&listed?, report)?;
    server_check::check_server(config, report).await
}
