//! Runs a project's set-up in its sandbox: the steps in order, as the agent, with their output as events.

use super::sandbox_command::{CommandTarget, RunningCommand, command_spec};
use super::setup_cache::SetupCache;
use super::setup_failure::{FailedStep, FailureContext, failure_reason, report_failed_step, report_refused_host};
use super::setup_output::OutputLog;
use super::setup_plan::PlannedSetup;
use crate::app::lifecycle::truncate_text;
use crate::app::{caches, setup};
use crate::egress::RefusedHost;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::events::{EventData, SetupCompleted, SetupFailed, SetupStarted, SetupStepCompleted};
use atoll_core::id::SandboxId;
use atoll_core::provider::{CacheUse, CommandExit, Error, ExecCommand, ExecEvent, ExecSpec, GitOperation, GitResult};
use atoll_core::sandbox::NetworkPolicy;
use atoll_core::setup::SetupStep;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Interval of the output events.
const OUTPUT_INTERVAL: Duration = Duration::from_secs(1);
/// Refusals of one host after which set-up ends: some package managers retry for ever.
const MAX_REFUSALS: u64 = 50;
const REFUSAL_CHECK_INTERVAL: Duration = Duration::from_millis(250);
/// Time for a new worker to accept its first command.
const WORKER_START_TIMEOUT: Duration = Duration::from_secs(20);
const WORKER_START_POLL: Duration = Duration::from_millis(20);
const TOOL_CHECK_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_COMMAND_CHARS: usize = 1000;
/// Programs of one step that are looked for after its failure.
const MAX_CHECKED_TOOLS: usize = 8;

/// Marks the processes of a set-up, so that those it leaves in the background can be ended.
const PROCESS_MARK: &str = "ATOLL_SETUP";
const END_PROCESSES_TIMEOUT: Duration = Duration::from_secs(30);
/// Kills all processes whose environment has the line `$1`, until there is none.
const END_PROCESSES_SCRIPT: &str = r#"
round=0
while [ $round -lt 100 ]; do
    found=
    for process in /proc/[0-9]*; do
        if tr '\0' '\n' < "$process/environ" 2>/dev/null | grep -qxF "$1"; then
            kill -9 "${process#/proc/}" 2>/dev/null && found=1
        fi
    done
    [ -z "$found" ] && exit 0
    round=$((round + 1))
    sleep 0.02
done
exit 1
"#;

/// Writes the text `$2` to the file `$1` of the agent's home.
const WRITE_FILE_SCRIPT: &str = r#"cd && mkdir -p "$(dirname "$1")" && printf %s "$2" > "$1""#;

/// How a set-up ended.
pub(super) enum SetupEnd {
    Completed,
    Failed(Box<SetupFailed>),
    /// The sandbox has ended, or another server sets it up.
    Abandoned,
    /// The server stops: the next one starts over.
    Stopping,
}

/// One run of a set-up.
pub(super) struct SetupRun<'a> {
    app: &'a Arc<App>,
    id: SandboxId,
    target: CommandTarget,
    setup: &'a PlannedSetup,
    cache: Option<SetupCache>,
    has_repository: bool,
    began: Instant,
}

/// The reason why a step did not end by itself.
enum Interruption {
    Refused(RefusedHost),
    SandboxEnded,
    Stopping,
}

impl<'a> SetupRun<'a> {
    pub(super) fn new(
        app: &'a Arc<App>,
        id: SandboxId,
        target: CommandTarget,
        setup: &'a PlannedSetup,
        cache: Option<SetupCache>,
        has_repository: bool,
    ) -> Self {
        Self { app, id, target, setup, cache, has_repository, began: Instant::now() }
    }

    /// True if the sandbox has the files of this set-up already.
    pub(super) fn is_cached(&self, started_from: Option<&CacheUse>) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.is_complete(started_from))
    }

    fn policy(&self) -> NetworkPolicy {
        self.setup.environment.network.as_ref().map_or(NetworkPolicy::None, |network| network.policy)
    }

    /// Runs all steps. An error is one of the server, worth a retry.
    pub(super) async fn run_steps(&self) -> Result<SetupEnd> {
        let plan = &self.setup.plan;
        let started = SetupStarted {
            source: plan.source.to_string(),
            steps: plan.steps.iter().map(show_command).collect(),
            network: self.policy(),
            notes: plan.notes.clone(),
        };
        self.app.egress.reset_refusals(self.id);
        let id = self.id;
        if !self.app.write(async move |work| setup::record_start(work, id, started).await).await? {
            return Ok(SetupEnd::Abandoned);
        }
        if !self.write_tool_files().await? {
            return Ok(SetupEnd::Abandoned);
        }
        let mut output = OutputLog::new();
        for (index, step) in plan.steps.iter().enumerate() {
            if let Some(end) = self.run_and_record_step(index, step, &mut output).await? {
                return Ok(end);
            }
        }
        Ok(SetupEnd::Completed)
    }

    /// Runs one step and stores its output and its end. Returns the end of the set-up if no further step runs.
    async fn run_and_record_step(
        &self,
        index: usize,
        step: &SetupStep,
        output: &mut OutputLog,
    ) -> Result<Option<SetupEnd>> {
        output.begin_step(index + 1);
        let began = Instant::now();
        let ended = tokio::select! {
            exit = self.run_step(step, output) => Ok(exit),
            interruption = self.wait_for_interruption() => Err(interruption),
        };
        let mut events: Vec<EventData> = output.take_events(true).into_iter().map(EventData::SetupOutput).collect();
        let ended = match ended {
            Ok(Ok(Some(exit))) => Ok(exit),
            Ok(Ok(None)) | Err(Interruption::SandboxEnded) => return Ok(Some(SetupEnd::Abandoned)),
            Ok(Err(problem)) => return Err(problem),
            Err(Interruption::Stopping) => return Ok(Some(SetupEnd::Stopping)),
            Err(Interruption::Refused(host)) => Err(host),
        };
        events.extend(ended.as_ref().ok().map(|exit| {
            EventData::SetupStepCompleted(SetupStepCompleted {
                step: index + 1,
                command: show_command(step),
                exit: *exit,
                seconds: round_seconds(began.elapsed()),
            })
        }));
        if !self.record_events(events).await? {
            return Ok(Some(SetupEnd::Abandoned));
        }
        let failed = match ended {
            Ok(CommandExit::Exited { code: 0 }) => return Ok(None),
            Ok(exit) => {
                let mut failed = describe_step(index, step, exit, output);
                failed.missing_tools = self.find_missing_tools(&step.tools).await;
                report_failed_step(failed, &self.failure_context())
            }
            Err(host) => {
                let failed = describe_step(index, step, CommandExit::Unknown, output);
                report_refused_host(failed, &host, &self.failure_context())
            }
        };
        Ok(Some(SetupEnd::Failed(Box::new(failed))))
    }

    /// Writes the files with which tools use the configured registries. Returns false if the sandbox is gone.
    async fn write_tool_files(&self) -> Result<bool> {
        for file in &self.setup.tool_files {
            let argv = ["/bin/sh", "-c", WRITE_FILE_SCRIPT, "sh", file.path, &file.text].map(str::to_owned).to_vec();
            let spec = command_spec(ExecCommand::Argv(argv), TOOL_CHECK_TIMEOUT);
            match self.start_command(&spec).await {
                Ok(command) => drop(command.collect_tail(0).await?),
                Err(Error::Gone) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(true)
    }

    fn failure_context(&self) -> FailureContext {
        FailureContext {
            policy: self.policy(),
            refused: self.app.egress.refused_hosts(self.id),
            time_limit: self.setup.time_limit,
        }
    }

    /// Stores events. Returns false if the sandbox is no longer set up by this run.
    async fn record_events(&self, events: Vec<EventData>) -> Result<bool> {
        let id = self.id;
        if events.is_empty() {
            return Ok(true);
        }
        self.app.write(async move |work| setup::record_events(work, id, events).await).await
    }

    /// Runs one step; `None` if the sandbox is gone.
    async fn run_step(&self, step: &SetupStep, output: &mut OutputLog) -> Result<Option<CommandExit>> {
        let left = self.setup.time_limit.saturating_sub(self.began.elapsed());
        if left.is_zero() {
            return Ok(Some(CommandExit::TimedOut));
        }
        let mut env = self.setup.variables.clone();
        env.insert(PROCESS_MARK.to_owned(), self.id.to_string());
        let spec = ExecSpec {
            cwd: Some(step.directory.clone()),
            env,
            ..command_spec(ExecCommand::Argv(step.command.to_argv()), left)
        };
        let mut command = match self.start_command(&spec).await {
            Ok(command) => command,
            Err(Error::Gone) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut tick = tokio::time::interval(OUTPUT_INTERVAL);
        loop {
            let is_due = tokio::select! {
                event = command.next_event() => match event.map_err(Problem::from)? {
                    ExecEvent::Output { stream, data, .. } => {
                        output.push(stream, &data);
                        output.is_full()
                    }
                    ExecEvent::Gap { .. } => false,
                    ExecEvent::Ended(exit) => return Ok(Some(exit)),
                },
                _ = tick.tick() => true,
            };
            if is_due {
                let events = output.take_events(false).into_iter().map(EventData::SetupOutput).collect();
                if !self.record_events(events).await? {
                    return Ok(None);
                }
            }
        }
    }

    /// Starts a command; the first one may have to wait for the worker.
    async fn start_command(&self, spec: &ExecSpec) -> std::result::Result<RunningCommand, Error> {
        let until = self.began + WORKER_START_TIMEOUT;
        loop {
            match RunningCommand::start(&self.target, spec).await {
                Err(Error::Unreachable { .. } | Error::Busy { .. }) if Instant::now() < until => {
                    tokio::time::sleep(WORKER_START_POLL).await;
                }
                started => return started,
            }
        }
    }

    async fn wait_for_interruption(&self) -> Interruption {
        let (mut states, mut stopping) = (self.app.hub.subscribe_states(), self.app.stopping.clone());
        let mut check = tokio::time::interval(REFUSAL_CHECK_INTERVAL);
        loop {
            tokio::select! {
                changed = states.recv() => if let Ok((id, state)) = changed && id == self.id && state.has_ended() {
                    return Interruption::SandboxEnded;
                },
                _ = stopping.wait_for(|stop| *stop) => return Interruption::Stopping,
                _ = check.tick() => {
                    let refused = self.app.egress.refused_hosts(self.id).into_iter().next();
                    if let Some(host) = refused.filter(|host| host.count >= MAX_REFUSALS) {
                        return Interruption::Refused(host);
                    }
                }
            }
        }
    }

    /// The programs that the sandbox lacks.
    async fn find_missing_tools(&self, tools: &[String]) -> Vec<String> {
        let mut missing = Vec::new();
        for tool in tools.iter().take(MAX_CHECKED_TOOLS) {
            let argv = ["/bin/sh", "-c", "command -v -- \"$1\"", "sh", tool].map(str::to_owned).to_vec();
            let spec = ExecSpec {
                env: self.setup.variables.clone(),
                ..command_spec(ExecCommand::Argv(argv), TOOL_CHECK_TIMEOUT)
            };
            let Ok(command) = RunningCommand::start(&self.target, &spec).await else { return missing };
            if let Ok(result) = command.collect_tail(0).await
                && matches!(result.exit, CommandExit::Exited { code } if code != 0)
            {
                missing.push(tool.clone());
            }
        }
        missing
    }

    /// Ends what the steps left in the background: an agent must not find it, and a stored layer must not change.
    async fn end_processes(&self) {
        let mark = format!("{PROCESS_MARK}={}", self.id);
        let argv = ["/bin/sh", "-c", END_PROCESSES_SCRIPT, "sh", &mark].map(str::to_owned).to_vec();
        let spec = command_spec(ExecCommand::Argv(argv), END_PROCESSES_TIMEOUT);
        let ended = match RunningCommand::start(&self.target, &spec).await {
            Ok(command) => command.collect_tail(0).await.map(|result| result.exit),
            Err(error) => Err(error),
        };
        if !matches!(ended, Ok(CommandExit::Exited { code: 0 })) {
            tracing::warn!(sandbox = %self.id, ?ended, "failed to end the processes that set-up left");
        }
    }

    /// Keeps the files that set-up left out of the agent's results.
    async fn exclude_untracked(&self) {
        if !self.has_repository {
            return;
        }
        let CommandTarget { provider, sandbox } = &self.target;
        let excluded = match std::fs::File::options().write(true).open("/dev/null") {
            Ok(output) => provider.git(sandbox, &GitOperation::ExcludeUntracked, output).await,
            Err(error) => Err(Error::Unreachable { detail: error.to_string() }),
        };
        let failure = match excluded {
            Ok(GitResult { exit: CommandExit::Exited { code: 0 }, .. }) => return,
            Ok(result) => result.error_output,
            Err(error) => error.to_string(),
        };
        tracing::warn!(sandbox = %self.id, failure, "failed to exclude the files of set-up from the results");
    }

    /// Stores the result as a layer if it is new, and lets the agent start.
    pub(super) async fn record_completion(&self, cached: bool) -> Result<bool> {
        let mut stored = false;
        if !cached {
            self.end_processes().await;
            self.exclude_untracked().await;
            if let Some(cache) = &self.cache {
                stored = cache.store(&*self.target.provider, &self.target.sandbox).await;
            }
            if stored {
                caches::start_eviction(self.app);
            }
        }
        let (key, key_parts) = self.cache.as_ref().map(|cache| (cache.key.clone(), cache.key_parts.clone())).unzip();
        let seconds = round_seconds(self.began.elapsed());
        let completed = SetupCompleted { seconds, cached, stored, key, key_parts: key_parts.unwrap_or_default() };
        let id = self.id;
        self.app.write(async move |work| setup::record_completion(work, id, completed).await).await
    }

    pub(super) async fn record_failure(&self, failed: SetupFailed) -> Result<bool> {
        let (id, reason) = (self.id, failure_reason(&failed));
        self.app.write(async move |work| setup::record_failure(work, id, Some(failed), reason).await).await
    }
}

/// The command of a step in events.
fn show_command(step: &SetupStep) -> String {
    truncate_text(&step.command.to_string(), MAX_COMMAND_CHARS)
}

fn describe_step(index: usize, step: &SetupStep, exit: CommandExit, output: &OutputLog) -> FailedStep {
    let command = show_command(step);
    FailedStep { number: index + 1, command, exit, tail: output.tail(), missing_tools: Vec::new() }
}

fn round_seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1000.0).round() / 1000.0
}
