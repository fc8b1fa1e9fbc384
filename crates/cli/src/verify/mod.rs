//! `atoll verify`: runs a small task on a temporary server and repository, and checks Atoll's guarantees.

mod fixture;
mod isolation;
mod leftovers;
mod log_checks;
mod promise;
mod trial_sandbox;

use crate::arguments::parse_word;
use crate::connect::ConnectedClient;
use crate::embedded::EmbeddedServerSetup;
use crate::event_log::log_event::{LogEvent, reported_message};
use crate::failure::{Failure, Result, WORK_FAILED};
use crate::output::Output;
use crate::render::time;
use crate::runtime::build_runtime;
use crate::settings::{self, ConfigFiles};
use atoll_api::NewSandbox;
use atoll_api::events::EventData;
use atoll_core::provider::capabilities::{Isolation, WorkerHost};
use atoll_core::sandbox::{EndPolicy, Outcome, ProviderKind, Repo};
use atoll_providers::capabilities_of;
use fixture::Fixture;
use leftovers::Leftovers;
use promise::{Promise, PromiseReport, PromiseVerdict};
use std::time::{Duration, Instant};
use tokio::runtime::Builder;
use trial_sandbox::{TrialSandbox, WaitOutcome};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll verify
  atoll verify --json | jq -c 'select(.held == false)'

The command uses its own temporary server, data directory and repository, and does not touch running
servers. The exit code is 1 if a guarantee does not hold.")]
pub struct Verify {
    /// Provider of the sandboxes [default: provider.default]
    #[arg(long, value_name = "NAME", value_parser = parse_word::<ProviderKind>)]
    provider: Option<ProviderKind>,
    #[command(flatten)]
    files: ConfigFiles,
}

/// The demo agent waits for an answer in the middle of this turn.
const PROMPT: &str = "say I begin\nedit hello.txt one\nrun id -u\nedit hello.txt two\nask may I go on?\nsay I am done";
const ANSWER: &str = "approve\nsay I heard you";
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

pub fn run(verify: &Verify, output: &Output) -> Result {
    let fixture = Fixture::create()?;
    let data = fixture.data_dir().display().to_string();
    let flags = [("data_dir", data.clone()), ("database_url", format!("sqlite:{data}/atoll.db"))];
    let flags = flags.map(|(key, value)| (key.to_owned(), value)).to_vec();
    let loaded = settings::load_config(flags, &verify.files)?;
    let provider = verify.provider.unwrap_or(loaded.config.provider.default);
    if capabilities_of(provider).worker == WorkerHost::Person {
        return Err(Failure::input(format!(
            "the provider `{provider}` starts no agent, so there is nothing to verify"
        ))
        .with_hint("Choose another --provider."));
    }
    let prepared = EmbeddedServerSetup::new("atoll verify", &loaded.config);
    let runtime = build_runtime(Builder::new_multi_thread())?;
    let (mut report, mut leftovers) = (PromiseReport::new(output), Leftovers::default());
    let done = runtime.block_on(async {
        let trial = TrialRun { fixture: &fixture, provider, report: &mut report, leftovers: &mut leftovers };
        tokio::select! {
            done = Box::pin(run_trial(prepared, trial)) => done,
            _ = tokio::signal::ctrl_c() => Err(Failure::interrupted()),
        }
    });
    // This ends the tasks of the embedded server.
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    done?;
    report.skip_remaining()?;
    report.add(Promise::Clean, &leftovers.wait_until_gone(&fixture.dir, &fixture.data_dir().join("sandboxes")))?;
    if report.finish()? { Ok(()) } else { Err(Failure::Silent(WORK_FAILED)) }
}

async fn run_trial(prepared: EmbeddedServerSetup, mut trial: TrialRun<'_, '_>) -> Result {
    let server = prepared.start().await?;
    let client = server.connect_client()?;
    let result = trial.run_all(&client).await;
    server.stop(&client, &[]).await;
    result
}

struct TrialRun<'a, 'b> {
    fixture: &'a Fixture,
    provider: ProviderKind,
    report: &'a mut PromiseReport<'b>,
    leftovers: &'a mut Leftovers,
}

impl TrialRun<'_, '_> {
    async fn run_all(&mut self, client: &ConnectedClient) -> Result {
        let mut trial = TrialSandbox::create(client, &self.sandbox_request(PROMPT, true)).await?;
        let worked = self.run_task(client, &mut trial).await?;
        trial.remove().await?;
        if worked {
            self.check_crash(client).await?;
        }
        Ok(())
    }

    /// The provider runs real processes; checks of a simulated sandbox would prove nothing.
    fn has_processes(&self) -> bool {
        capabilities_of(self.provider).isolation != Isolation::Simulated
    }

    fn sandbox_request(&self, prompt: &str, with_repository: bool) -> NewSandbox {
        let path = self.fixture.repository_dir().display().to_string();
        let repo = Repo { path: Some(path), ..Repo::default() };
        NewSandbox {
            provider: Some(self.provider),
            agent: Some("demo".to_owned()),
            prompt: Some(prompt.to_owned()),
            end: Some(EndPolicy::WhenDone),
            repo: (with_repository && self.has_processes()).then_some(repo),
            ..NewSandbox::default()
        }
    }

    /// Runs the task and checks most promises; returns whether the task succeeded.
    async fn run_task(&mut self, client: &ConnectedClient, trial: &mut TrialSandbox<'_>) -> Result<bool> {
        let began = Instant::now();
        let requested = trial.wait_for(|data| matches!(data, EventData::ApprovalRequested(_))).await?;
        self.leftovers.record_descendants();
        if !matches!(requested, WaitOutcome::Matched(_)) {
            self.report.add(Promise::Works, &PromiseVerdict::Broken(requested.describe()))?;
            return Ok(false);
        }
        let (isolated, hidden) = self.check_inside(client, trial).await?;
        let steered = self.check_steering(trial).await?;
        let end = trial.wait_for(|data| matches!(data, EventData::SandboxCompleted(_))).await?;
        let outcome = match &end {
            WaitOutcome::Matched(event) => {
                let outcome = match &event.data {
                    EventData::SandboxCompleted(change) => change.outcome,
                    _ => None,
                };
                let duration = time::format_duration(began.elapsed());
                let word = outcome.map_or("unknown", |outcome| outcome.as_str());
                PromiseVerdict::of(outcome == Some(Outcome::Succeeded), format!("{word} after {duration}"))
            }
            WaitOutcome::SandboxEnded(_) | WaitOutcome::TimedOut => PromiseVerdict::Broken(end.describe()),
        };
        let worked = matches!(outcome, PromiseVerdict::Held(_));
        let (events, last_seq) = trial.read_log().await?;
        let seqs: Vec<i64> = events.iter().map(|event| event.event.seq).collect();
        let isolated = match (isolated, log_checks::check_agent_uid(&events)) {
            (PromiseVerdict::Held(_), Err(why)) => PromiseVerdict::Broken(why),
            (verdict, _) => verdict,
        };
        self.report.add(Promise::Works, &outcome)?;
        self.report.add(Promise::Isolated, &isolated)?;
        self.report.add(Promise::Hidden, &hidden)?;
        self.report.add(Promise::Steered, &steered)?;
        self.report.add(Promise::Logged, &log_checks::check_sequence(&seqs, last_seq))?;
        self.report.add(Promise::Edits, &log_checks::check_edits(&events, "hello.txt", &["one", "two"]))?;
        let branch = events.iter().find_map(|event| match &event.data {
            EventData::GitBranchCreated(branch) => Some(branch.branch.as_str()),
            _ => None,
        });
        let on_branch = self.check_branch(branch)?;
        self.report.add(Promise::Branch, &on_branch)?;
        Ok(worked)
    }

    async fn check_inside(
        &self,
        client: &ConnectedClient,
        trial: &TrialSandbox<'_>,
    ) -> Result<(PromiseVerdict, PromiseVerdict)> {
        if !self.has_processes() {
            let skipped = PromiseVerdict::Skipped(format!("the provider `{}` runs no processes", self.provider));
            return Ok((skipped.clone(), skipped));
        }
        let isolated = isolation::check_isolated(client, trial.sandbox).await?;
        Ok((isolated, isolation::check_hidden(client, trial.sandbox, self.fixture).await?))
    }

    async fn check_steering(&self, trial: &mut TrialSandbox<'_>) -> Result<PromiseVerdict> {
        let began = Instant::now();
        let sent = trial.send_message(ANSWER).await?;
        let outcome = trial.wait_for(|data| reported_message(data) == Some(sent.id)).await?;
        Ok(match &outcome {
            WaitOutcome::Matched(event) => log_checks::check_steered(event, began.elapsed().as_millis()),
            WaitOutcome::SandboxEnded(_) | WaitOutcome::TimedOut => PromiseVerdict::Broken(outcome.describe()),
        })
    }

    fn check_branch(&self, branch: Option<&str>) -> Result<PromiseVerdict> {
        if !self.has_processes() {
            return Ok(PromiseVerdict::Skipped(format!("the provider `{}` has no repositories", self.provider)));
        }
        let Some(branch) = branch else { return Ok(PromiseVerdict::Broken("there is no result branch".to_owned())) };
        let file = match self.fixture.run_git(&["show", &format!("refs/heads/{branch}:hello.txt")]) {
            Ok(file) => file,
            Err(failure) => return Ok(PromiseVerdict::Broken(failure.to_text(false).unwrap_or_default())),
        };
        if file != "two" {
            return Ok(PromiseVerdict::Broken(format!("hello.txt on {branch} contains {file:?}")));
        }
        let untouched = self.fixture.is_checkout_untouched()?;
        Ok(PromiseVerdict::of(untouched, if untouched { branch } else { "the checkout has changed" }))
    }

    async fn check_crash(&mut self, client: &ConnectedClient) -> Result {
        if !self.has_processes() {
            let skipped = PromiseVerdict::Skipped(format!("the provider `{}` runs no processes", self.provider));
            return self.report.add(Promise::Crash, &skipped);
        }
        let mut trial = TrialSandbox::create(client, &self.sandbox_request("say I will crash\ncrash", false)).await?;
        let outcome = trial.wait_for(|data| matches!(data, EventData::SandboxFailed(_))).await?;
        self.leftovers.record_descendants();
        let verdict = match &outcome {
            WaitOutcome::Matched(event) => judge_crash(event),
            WaitOutcome::SandboxEnded(_) | WaitOutcome::TimedOut => PromiseVerdict::Broken(outcome.describe()),
        };
        trial.remove().await?;
        self.report.add(Promise::Crash, &verdict)
    }
}

fn judge_crash(event: &LogEvent) -> PromiseVerdict {
    let reason = match &event.data {
        EventData::SandboxFailed(change) => change.reason.as_ref(),
        _ => None,
    };
    let Some(reason) = reason else { return PromiseVerdict::Broken(event.event_type().to_owned()) };
    PromiseVerdict::of(reason.code == "agent_crashed", format!("{} ({})", reason.detail, reason.code))
}
