//! `atoll doctor`: looks at everything that a server and its sandboxes need, and says what to mend.

mod agents;
mod clock;
mod database;
mod disk;
mod process;
mod sandbox;
mod server;

use crate::agents::show;
use crate::client::Connect;
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
  atoll doctor --data-dir /srv/atoll --json | jq -c 'select(.status != \"ok\")'

The exit code is 1 when something fails. It changes nothing: what it writes to measure, it removes, and the
sandbox that it makes to see how well sandboxes are isolated, it ends.")]
pub struct Doctor {
    /// The data directory to look at [default: ATOLL_DATA_DIR, else the user's]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
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

/// One thing that was looked at.
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

/// Tells each check as it is made.
struct Report<'a> {
    output: &'a Output,
    failed: usize,
}

impl Report<'_> {
    fn tell(&mut self, check: Check) -> Result {
        self.failed += usize::from(check.status == Status::Fail);
        if self.output.json {
            self.output.object(&check)?;
        } else {
            let word = match check.status {
                Status::Ok => "ok",
                Status::Warn => "warn",
                Status::Fail => "fail",
            };
            let status = self.output.paint(style::of_state(word), &format!("{word:<4}"));
            self.output.line(&format!("{status}  {:<14}  {}", check.check, text::inline(&check.detail)))?;
            if let Some(remedy) = &check.remedy {
                self.output.line(&format!("{:22}{}", "", text::inline(remedy)))?;
            }
        }
        self.output.flush()
    }
}

pub async fn run(doctor: &Doctor, output: &Output) -> Result {
    let mut report = Report { output, failed: 0 };
    let flag = doctor.data_dir.as_ref().map(|dir| ("data_dir".to_owned(), dir.display().to_string()));
    match settings::load(flag.into_iter().collect(), &doctor.files) {
        Ok(loaded) => {
            let files: Vec<_> = loaded.files.iter().map(|file| file.display().to_string()).collect();
            let from = if files.is_empty() { "no file".to_owned() } else { files.join(", ") };
            report.tell(Check::ok("configuration", format!("valid, from {from}")))?;
            for warning in &loaded.warnings {
                report.tell(Check::warn("configuration", warning.to_string(), "Remove it, or leave it for later."))?;
            }
            examine(&loaded.config, &mut report).await?;
            if rustix::process::geteuid().is_root() {
                report.tell(process::user(&loaded.config))?;
            }
        }
        Err(Failure::Told(told)) => {
            report.tell(Check::fail(
                "configuration",
                told.detail,
                "Mend what is named there; the rest was not looked at.",
            ))?;
        }
        Err(other) => return Err(other),
    }
    process::check(&mut report)?;
    if report.failed > 0 { Err(Failure::Silent(WORK_FAILED)) } else { Ok(()) }
}

async fn examine(config: &atoll_config::Config, report: &mut Report<'_>) -> Result {
    let usable = disk::check(&config.data_dir, report)?;
    if usable {
        clock::check(&config.data_dir, report)?;
        database::measure(&config.data_dir, report).await?;
        database::check(&config.database, report).await?;
    }
    // Programs that have to be started to be asked are, while a sandbox is made.
    let nowhere = Connect::default();
    let (listed, checked) = tokio::join!(show::known(&nowhere, config), sandbox::check(config, report));
    checked?;
    agents::tell(&listed?, report)?;
    server::check(config, report).await
}
