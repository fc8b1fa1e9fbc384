//! One call: finds the sandbox, syncs in, sends the prompt, watches the turn and syncs out.

use super::report::{CallPhase, CallReport};
use super::sync::{fetch_work, lock_worktree, sync_in};
use super::worktree_sandbox::{create_sandbox, end_removed_worktrees, find_sandbox};
use super::{ApplyMode, Code, describe_holder};
use crate::confirm::Confirm;
use crate::connect::ConnectedClient;
use crate::failure::{Failure, INTERRUPTED, Result, SETUP_FAILED, WORK_FAILED};
use crate::output::Output;
use crate::references::short_reference;
use crate::render::patch;
use crate::run::run_server::{RunServer, ServerChoice};
use crate::run::signals::Signals;
use crate::run::watch::{DelegatedTurn, RunWatcher, TurnEnd, WatchEnd, WatchResult, WatchTarget};
use atoll_api::{NewMessage, Sandbox};
use atoll_config::Config;
use atoll_core::id::SessionId;
use atoll_core::sandbox::Activity;
use atoll_forge::worktree::{ApplyOutcome, FetchedWork, Worktree, WorktreeState, worktree_labels};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

pub async fn run_call(
    code: &Code,
    prompt: Option<String>,
    worktree: Worktree,
    choice: ServerChoice,
    config: &Config,
    report: &CallReport<'_>,
    output: &Output,
) -> Result<u8> {
    let mut signals = Signals::listen()?;
    let first_line = prompt.as_deref().and_then(|prompt| prompt.lines().next()).unwrap_or("atoll code");
    let holder = describe_holder(&first_line.chars().take(60).collect::<String>());
    let worktree = Arc::new(worktree);
    // A signal also ends the wait for another command.
    let _lock = tokio::select! {
        lock = lock_worktree(Arc::clone(&worktree), holder, code.wait) => lock?,
        _ = signals.next() => return Ok(INTERRUPTED),
    };
    let server = tokio::select! {
        server = RunServer::open(choice) => server?,
        _ = signals.next() => return Ok(INTERRUPTED),
    };
    let call = Call { code, prompt, worktree, client: &server.client, config, report, output };
    let done = call.run(&mut signals).await;
    // Other worktrees: a failure must not hide the call's own result.
    drop(end_removed_worktrees(&server.client, &config.data_dir).await);
    output.flush()?;
    tokio::select! {
        () = server.shut_down(None, |_| {}) => {}
        _ = signals.next() => {}
    }
    done
}

struct Call<'a> {
    code: &'a Code,
    prompt: Option<String>,
    worktree: Arc<Worktree>,
    client: &'a ConnectedClient,
    config: &'a Config,
    report: &'a CallReport<'a>,
    output: &'a Output,
}

/// The end of the agent's turn.
enum TurnOutcome {
    Succeeded,
    /// The work stays in the sandbox; the exit code says why.
    Unfinished(u8),
}

impl Call<'_> {
    async fn run(&self, signals: &mut Signals) -> Result<u8> {
        let state = self.worktree.read_state()?;
        let session = match &self.code.session {
            Some(session) => Some(session.resolve(self.client).await?),
            None => None,
        };
        let prepared = tokio::select! {
            prepared = self.prepare_sandbox(&state, session) => prepared?,
            _ = signals.next() => return Ok(INTERRUPTED),
        };
        let Some((sandbox, is_new)) = prepared else {
            return Err(Failure::setup("no_sandbox", "this worktree has no sandbox")
                .with_hint("Start one with atoll code \"PROMPT\"."));
        };
        self.report.print_started(&sandbox, is_new)?;
        let mut state = state;
        if let Some(prompt) = &self.prompt {
            self.report.print_phase(CallPhase::SyncIn)?;
            let (synced, warnings) = tokio::select! {
                synced = sync_in(&self.worktree, self.client, sandbox.id, state) => synced?,
                _ = signals.next() => return Ok(INTERRUPTED),
            };
            state = synced;
            warnings.iter().for_each(|warning| self.report.print_note(&format!("not copied: {warning}")));
            self.report.print_phase(CallPhase::Agent)?;
            let after_seq = self.client.get_sandbox(sandbox.id).await?.last_seq;
            self.client.send_message(sandbox.id, &NewMessage::new(prompt)).await?;
            if let TurnOutcome::Unfinished(exit) = self.watch_turn(&sandbox, after_seq, false, signals).await? {
                return Ok(exit);
            }
        } else if !self.code.pull && is_working(&sandbox) {
            self.report.print_phase(CallPhase::Agent)?;
            let watched = self.watch_turn(&sandbox, sandbox.last_seq, true, signals).await?;
            if let TurnOutcome::Unfinished(exit) = watched {
                return Ok(exit);
            }
        }
        if self.code.apply == ApplyMode::Never && self.code.as_branch.is_none() && !self.code.pull {
            return self.report.print_left();
        }
        self.report.print_phase(CallPhase::SyncOut)?;
        let fetched = tokio::select! {
            fetched = fetch_work(&self.worktree, self.client, sandbox.id, &state) => fetched?,
            _ = signals.next() => return Ok(INTERRUPTED),
        };
        let (state, work) = fetched;
        match work {
            Some(work) => self.bring_back(&state, &work).await,
            None => self.report.print_applied(self.worktree.root(), atoll_forge::worktree::ChangeCounts::default()),
        }
    }

    /// Finds or creates the sandbox; `None` if a pull has nothing to pull from.
    async fn prepare_sandbox(
        &self,
        state: &WorktreeState,
        session: Option<SessionId>,
    ) -> Result<Option<(Sandbox, bool)>> {
        let needs_agent = self.prompt.is_some();
        let found = match self.code.new {
            true => None,
            false => find_sandbox(self.client, &state.identity, session, needs_agent).await?,
        };
        if let Some(found) = found {
            return Ok(Some((found, false)));
        }
        if !needs_agent {
            return Ok(None);
        }
        let labels = worktree_labels(&state.identity, &self.worktree.identity_path(), &self.config.data_dir);
        let created =
            create_sandbox(self.client, self.code, labels, (session, self.prompt.as_deref()), self.output).await?;
        Ok(Some((created, true)))
    }

    async fn watch_turn(
        &self,
        sandbox: &Sandbox,
        after_seq: i64,
        has_started: bool,
        signals: &mut Signals,
    ) -> Result<TurnOutcome> {
        let deadline = Instant::now() + Duration::from_secs(self.code.timeout.into());
        let target = WatchTarget {
            sandbox: sandbox.id,
            reference: short_reference(sandbox),
            attached_at: None,
            agent: sandbox.agent.clone().unwrap_or_default(),
            has_repo: false,
            keep: true,
            // The sandbox outlives this command in any case.
            is_embedded: false,
            delegated: Some(DelegatedTurn { after_seq, has_started, deadline }),
        };
        let watcher = RunWatcher::new(&target, self.client, self.output, Instant::now());
        let watched = Box::pin(watcher.run(self.client, signals)).await?;
        self.judge_turn(&watched)
    }

    /// Reports a turn that did not succeed: nothing is applied then.
    fn judge_turn(&self, watched: &WatchResult) -> Result<TurnOutcome> {
        const HINT: &str = "Nothing was applied. The work stays in the sandbox: atoll code --pull";
        let (failure, kind, exit) = if watched.timed_out {
            let detail = format!("the agent did not finish within {} s", self.code.timeout);
            (Failure::work("timeout", detail), "work", WORK_FAILED)
        } else if watched.interrupted {
            (Failure::work("interrupted", "the agent was interrupted"), "work", INTERRUPTED)
        } else {
            match (watched.end, &watched.turn_end) {
                (WatchEnd::Kept, Some(TurnEnd::Completed)) => return Ok(TurnOutcome::Succeeded),
                (WatchEnd::Kept | WatchEnd::Detached | WatchEnd::Aborted, Some(TurnEnd::Failed { detail })) => {
                    (Failure::work("agent_failed", detail), "work", WORK_FAILED)
                }
                (WatchEnd::Kept, Some(TurnEnd::Interrupted)) => {
                    (Failure::work("interrupted", "the agent was interrupted"), "work", INTERRUPTED)
                }
                (WatchEnd::Ended, _) => {
                    let end = watched.progress.end.as_ref();
                    let code = end.and_then(|end| end.code.clone()).unwrap_or_else(|| "sandbox_ended".to_owned());
                    let detail = end.and_then(|end| end.detail.clone());
                    let detail = detail.unwrap_or_else(|| "the sandbox ended before the agent was done".to_owned());
                    (Failure::setup(&code, detail), "provider", SETUP_FAILED)
                }
                (WatchEnd::Kept | WatchEnd::Detached | WatchEnd::Aborted, _) => {
                    (Failure::work("interrupted", "the command left the agent"), "work", INTERRUPTED)
                }
            }
        };
        self.report.print_error(&failure.with_hint(HINT), kind)?;
        Ok(TurnOutcome::Unfinished(exit))
    }

    /// Applies the work, or makes a branch of it.
    async fn bring_back(&self, state: &WorktreeState, work: &FetchedWork) -> Result<u8> {
        if let Some(name) = &self.code.as_branch {
            let message = self.prompt.clone().unwrap_or_else(|| "Work of an agent".to_owned());
            let exported = tokio::task::block_in_place(|| {
                self.worktree.export_branch(&work.commit, name, &format!("{}\n", message.trim()))
            });
            return self.report.print_branch(&exported?);
        }
        if self.code.apply == ApplyMode::Ask && !self.confirm_changes(state, work).await? {
            return self.report.print_left();
        }
        let applied =
            tokio::task::block_in_place(|| self.worktree.apply_work(state, &work.commit, self.code.resolution()));
        match applied? {
            ApplyOutcome::Applied(counts) => self.report.print_applied(self.worktree.root(), counts),
            ApplyOutcome::Conflicts(conflicts) => self.report.print_conflicts(&conflicts, false),
        }
    }

    async fn confirm_changes(&self, state: &WorktreeState, work: &FetchedWork) -> Result<bool> {
        let shown = tokio::task::block_in_place(|| self.worktree.preview_patch(state, &work.commit));
        let shown = shown?;
        for line in patch::patch_lines(&String::from_utf8_lossy(&shown)) {
            self.output.print_line(&line.to_ansi(self.output.colour))?;
        }
        let action = format!("applies these changes to {}", self.worktree.root().display());
        match Confirm::default().require(&action, self.output).await {
            Ok(()) => Ok(true),
            Err(failure) if failure.has_code("not_confirmed") => Ok(false),
            Err(failure) => Err(failure),
        }
    }
}

/// The agent is in a turn that a call can watch.
const fn is_working(sandbox: &Sandbox) -> bool {
    matches!(
        sandbox.activity,
        Activity::Working | Activity::WaitingApproval | Activity::RateLimited | Activity::Stalled
    )
}
