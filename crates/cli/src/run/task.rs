//! One run: opens the server, creates the sandbox, watches it and prints the summary.

use super::run_server::{RunServer, ServerChoice};
use super::run_summary::{RunSummary, reattach_lines};
use super::signals::Signals;
use super::step::ViewStep;
use super::task_input::{self, DEMO_AGENT, TaskInput};
use super::view;
use super::watch::{RunWatcher, WatchEnd, WatchResult, WatchTarget};
use super::{Run, approval_notice, branch_diff, terminal};
use crate::agents::agent_list;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::references::short_reference;
use crate::render::text;
use crate::sandbox::create::describe_repository;
use crate::sandbox::readiness::{require_created, wait_until_created};
use atoll_api::{ErrorCode, NewSandbox, Sandbox, StopSandbox};
use atoll_config::Config;
use atoll_core::id::SandboxId;
use atoll_core::provider::capabilities::WorkerHost;
use atoll_core::sandbox::ResultsAction;
use atoll_providers::capabilities_of;
use serde_json::json;
use std::path::Path;
use tokio::time::Instant;

pub async fn run_task(run: &Run, input: &TaskInput, choice: ServerChoice, config: &Config, output: &Output) -> Result {
    let started_at = Instant::now();
    let mut signals = Signals::listen()?;
    let server = tokio::select! {
        server = RunServer::open(choice) => server?,
        _ = signals.next() => return Err(Failure::interrupted()),
    };
    let task = RunTask { run, config, input, server: &server, output, started_at };
    let mut sandbox = None;
    match task.run_to_end(&mut sandbox, &mut signals).await {
        Ok((WatchEnd::Aborted, exit)) => {
            server.abandon(sandbox).await;
            exit_with(exit)
        }
        Ok((_, exit)) => {
            output.flush()?;
            tokio::select! {
                () = server.shut_down(sandbox, |others| output.print_note(&waiting_note(others))) => {}
                _ = signals.next() => {}
            }
            exit_with(exit)
        }
        Err(failure) => {
            server.shut_down_now(sandbox).await;
            Err(failure)
        }
    }
}

/// Adds a hint to the error that no agent is usable.
fn creation_failure(error: atoll_client::Error) -> Failure {
    let has_no_agent = error.code() == Some(ErrorCode::NoAgent);
    let failure = Failure::from(error);
    if has_no_agent {
        return failure
            .with_hint("`atoll agents` shows what each agent lacks; `atoll run --agent demo …` needs no model.");
    }
    failure
}

/// The repository of a sandbox, which a session brings along.
fn repository_path(created: &Sandbox) -> Option<&Path> {
    created.settings.repo.as_ref()?.path.as_deref().map(Path::new)
}

const fn exit_with(exit: u8) -> Result {
    if exit == 0 { Ok(()) } else { Err(Failure::Silent(exit)) }
}

fn waiting_note(others: usize) -> String {
    let (uses, it) = if others == 1 { ("other run uses", "it") } else { ("other runs use", "them") };
    format!("{others} {uses} this command's server; waiting for {it} (Ctrl-C stops the server now)")
}

struct RunTask<'a> {
    run: &'a Run,
    config: &'a Config,
    input: &'a TaskInput,
    server: &'a RunServer,
    output: &'a Output,
    started_at: Instant,
}

impl RunTask<'_> {
    /// Runs the task; returns how the watch ended and the exit code. Sets `known` as soon as the sandbox exists.
    async fn run_to_end(&self, known: &mut Option<SandboxId>, signals: &mut Signals) -> Result<(WatchEnd, u8)> {
        self.check_keep()?;
        // A session keeps its agent.
        let default = self.config.agent.default.clone().filter(|_| self.run.placement.session.is_none());
        let named = self.run.settings.agent().map(str::to_owned).or(default);
        let is_chosen_by_server = named.is_none() && self.run.placement.session.is_none();
        // A provider that runs the worker itself runs only the demo agent.
        let provider = self.run.settings.provider().unwrap_or(self.config.provider.default);
        let is_demo = capabilities_of(provider).worker == WorkerHost::Provider;
        let agent = named.or_else(|| is_demo.then(|| DEMO_AGENT.to_owned()));
        let request = task_input::sandbox_request(self.run, self.input, agent.as_deref(), &self.server.client).await?;
        self.warn_of_approvals(&request).await?;
        let created = self.server.client.create_sandbox(&request).await.map_err(creation_failure)?;
        let sandbox = created.id;
        *known = Some(sandbox);
        self.require_agent(&created).await?;
        let agent = created.agent.clone().unwrap_or_else(|| DEMO_AGENT.to_owned());
        let choice = match (is_chosen_by_server, self.output.json) {
            (true, false) => Some(self.describe_choice(&agent).await),
            (true, true) | (false, _) => None,
        };
        self.print_start(&created, choice.as_deref())?;
        if self.run.detach {
            self.print_detached(created).await?;
            return Ok((WatchEnd::Kept, 0));
        }
        let target = WatchTarget {
            sandbox,
            reference: short_reference(&created),
            attached_at: None,
            agent,
            has_repo: repository_path(&created).is_some(),
            keep: self.run.keep,
            is_embedded: self.server.is_embedded(),
            delegated: None,
        };
        let watcher = RunWatcher::new(&target, &self.server.client, self.output, self.started_at);
        let result = Box::pin(watcher.run(&self.server.client, signals)).await?;
        let exit = self.print_summary(&result, &created).await?;
        Ok((result.end, exit))
    }

    /// Waits until the sandbox runs, and prints the next commands.
    async fn print_detached(&self, created: Sandbox) -> Result {
        let client = &self.server.client;
        require_created(&wait_until_created(created.id, client, self.output).await?)?;
        if self.output.json {
            return Ok(());
        }
        for line in reattach_lines(&short_reference(&created)) {
            self.output.print_line(&line.to_ansi(self.output.colour))?;
        }
        Ok(())
    }

    fn check_keep(&self) -> Result {
        if self.run.keep && self.server.is_embedded() && !terminal::is_interactive(self.output) {
            return Err(Failure::input("--keep needs a terminal or a running server")
                .with_hint("Start a server with `atoll serve` and try again."));
        }
        Ok(())
    }

    /// Reports, before the sandbox exists, that its agent may wait for approvals that this run cannot answer.
    async fn warn_of_approvals(&self, request: &NewSandbox) -> Result {
        if terminal::is_interactive(self.output) {
            return Ok(());
        }
        // A request that cannot be previewed fails when the sandbox is created.
        let Ok(preview) = self.server.client.preview_sandbox(request).await else { return Ok(()) };
        // The demo agent asks by messages.
        let asks = preview.agent.as_deref() != Some(DEMO_AGENT);
        match approval_notice::describe_unattended_approvals(&preview.settings).filter(|_| asks) {
            Some(notice) if self.output.json => self.output.print_note(&notice),
            Some(notice) => view::print_steps(&[ViewStep::warning(&notice)], self.output)?,
            None => {}
        }
        self.output.flush()
    }

    /// Rejects a sandbox whose worker a person starts: Atoll does not start its agent.
    async fn require_agent(&self, created: &Sandbox) -> Result {
        if created.worker.is_none() {
            return Ok(());
        }
        self.server.client.stop_sandbox(created.id, &StopSandbox { results: ResultsAction::Discard }).await?;
        Err(Failure::input(format!("the provider `{}` starts no agent", created.provider))
            .with_hint("Choose another --provider, or use `atoll sandbox new`."))
    }

    /// Describes the agent that the server chose.
    async fn describe_choice(&self, agent: &str) -> String {
        if agent == DEMO_AGENT {
            return "no agent is configured: using the demo agent, which needs no model".to_owned();
        }
        let all = agent_list::list_from_server(&self.server.client).await.unwrap_or_default();
        let found = all.into_iter().find(|listed| listed.name == agent);
        let (version, path) = found.map_or((None, None), |found| (found.version, found.path));
        let version = version.map(|version| format!(" {version}")).unwrap_or_default();
        let path = path.map(|path| format!(" ({path})")).unwrap_or_default();
        text::escape_line(&format!("using {agent}{version}{path}; choose another with --agent"))
    }

    fn print_start(&self, created: &Sandbox, choice: Option<&str>) -> Result {
        let Sandbox { id, session_id, provider, agent, .. } = created;
        if self.output.json {
            self.output.print_object(&json!({ "type": "started", "sandbox": id, "session": session_id }))?;
            return self.output.flush();
        }
        let server = if self.server.is_embedded() {
            String::new()
        } else {
            format!(" on {}", text::escape_line(self.server.client.address.base_url()))
        };
        let agent = text::escape_line(agent.as_deref().unwrap_or_default());
        let mut steps = vec![ViewStep::note(&format!("{id} ({provider}, agent {agent}){server}"))];
        steps.extend(choice.map(ViewStep::note));
        steps.push(ViewStep::note(
            &describe_repository(created)
                .unwrap_or_else(|| "no repository: the workspace is empty (use --repo PATH)".to_owned()),
        ));
        view::print_steps(&steps, self.output)
    }

    /// Prints the summary and returns the exit code.
    async fn print_summary(&self, result: &WatchResult, created: &Sandbox) -> Result<u8> {
        let repo = repository_path(created);
        let patch = match (&result.progress.branch, repo, self.output.json) {
            (Some(branch), Some(repo), false) => branch_diff::read_patch(repo, branch).await,
            _ => None,
        };
        let here = std::env::current_dir().ok().and_then(|dir| dir.canonicalize().ok());
        // The usage is complete only at the end; without it, the summary omits the line.
        let usage = self.server.client.get_sandbox(created.id).await.ok().and_then(|sandbox| sandbox.usage);
        let summary = RunSummary {
            end: result.end,
            progress: &result.progress,
            interrupted: result.interrupted,
            sandbox: &created.id.to_string(),
            reference: &short_reference(created),
            usage: usage.as_ref(),
            elapsed: self.started_at.elapsed(),
            repo,
            in_repo: repo.zip(here).is_some_and(|(repo, here)| here.starts_with(repo)),
            patch: patch.as_deref(),
            data_dir: self.server.is_embedded().then_some(self.config.data_dir.as_path()),
        };
        if self.output.json {
            self.output.print_object(&summary.to_json())?;
        } else {
            for line in summary.lines() {
                self.output.print_line(&line.to_ansi(self.output.colour))?;
            }
        }
        self.output.flush()?;
        Ok(summary.exit_code())
    }
}
