//! The table of all event types.
//!
//! This is the one list of event types. `kind` has a constant for each, and `atoll_api::events` generates from the same
//! table the enum of typed data, the schemas of the OpenAPI document and `docs/events.md`. The structs of the data live in
//! `atoll_api`, because only the edges of the system need them; this crate needs the names.
//!
//! To add an event type: add a row here, a struct in one of the data modules of `atoll_api::events` and an example in
//! `atoll_api::events::examples`.

/// Calls the macro `$callback` with the whole table: constant, type, variant, struct of its data, description.
#[macro_export]
macro_rules! for_each_event_type {
    ($callback:ident) => {
        $callback! {
            AGENT_STARTED = "agent.started", AgentStarted(AgentStarted), "A turn of the agent began.";
            AGENT_COMPLETED = "agent.completed", AgentCompleted(AgentCompleted), "A turn of the agent ended by itself.";
            AGENT_FAILED = "agent.failed", AgentFailed(AgentFailed), "The agent failed: it reported an error, exited or crashed.";
            AGENT_WAITING = "agent.waiting", AgentWaiting(Empty), "The agent is idle and waits for a message.";
            AGENT_SHUTDOWN = "agent.shutdown", AgentShutdown(AgentShutdown), "The worker has sent all its events and leaves.";
            AGENT_HEARTBEAT = "agent.heartbeat", AgentHeartbeat(Empty), "The worker is alive. The server counts heartbeats and does not store them as events.";
            AGENT_MESSAGE = "agent.message", AgentMessage(AgentText), "Text that the agent wrote.";
            AGENT_ASSISTANT_MESSAGE = "agent.assistant_message", AgentAssistantMessage(AssistantMessage), "A complete response of the agent's model, as a list of its parts. Each part has an event of its own with its content.";
            AGENT_USER_TOOL_RESULT = "agent.user_tool_result", AgentUserToolResult(UserToolResult), "Tool results that the agent's model receives together.";
            AGENT_MESSAGE_INJECTED = "agent.message_injected", AgentMessageInjected(MessageInjected), "A message reached the agent during its turn.";
            AGENT_INTERRUPTED = "agent.interrupted", AgentInterrupted(AgentInterrupted), "An interrupt ended the agent's turn.";
            AGENT_UNPARSED = "agent.unparsed", AgentUnparsed(AgentUnparsed), "The worker did not understand a line of the agent's output.";
            AGENT_THINKING = "agent.thinking", AgentThinking(AgentText), "Reasoning text of the agent's model.";
            AGENT_SYSTEM_MESSAGE = "agent.system_message", AgentSystemMessage(AgentSystemMessage), "A notice of the agent program or of the worker about the agent.";
            AGENT_STREAM_ERROR = "agent.stream_error", AgentStreamError(AgentStreamError), "A request to the agent's model failed, and the agent retries it.";
            AGENT_RATE_LIMITED = "agent.rate_limited", AgentRateLimited(AgentRateLimited), "The agent's model asked it to wait.";
            AGENT_ERROR = "agent.error", AgentError(AgentError), "The agent reported an error.";
            AGENT_PLAN = "agent.plan", AgentPlan(AgentPlan), "The agent's plan, as a list of steps.";
            AGENT_SUBAGENT_INVOKED = "agent.subagent_invoked", AgentSubagentInvoked(SubagentInvoked), "The agent started a subagent.";
            AGENT_SUBAGENT_COMPLETED = "agent.subagent_completed", AgentSubagentCompleted(DelegationCompleted), "A subagent ended.";
            AGENT_SKILL_INVOKED = "agent.skill_invoked", AgentSkillInvoked(SkillInvoked), "The agent used a skill.";
            AGENT_SKILL_COMPLETED = "agent.skill_completed", AgentSkillCompleted(DelegationCompleted), "A skill ended.";
            AGENT_USAGE = "agent.usage", AgentUsage(AgentUsage), "Tokens that the agent used since its last report.";
            AGENT_TRANSCRIPT = "agent.transcript", AgentTranscript(AgentTranscript), "The worker stored the agent's transcript as a blob.";
            AGENT_TRANSCRIPT_FAILED = "agent.transcript_failed", AgentTranscriptFailed(TranscriptFailed), "The worker could not store the agent's transcript.";
            AGENT_TOOL_USE = "agent.tool_use", AgentToolUse(ToolUse), "The agent called a tool.";
            AGENT_TOOL_COMPLETED = "agent.tool_completed", AgentToolCompleted(ToolCompleted), "A tool call ended.";
            AGENT_FILE_EDITED = "agent.file_edited", AgentFileEdited(FileEdited), "A file of the workspace changed.";
            AGENT_SETTINGS_IGNORED = "agent.settings_ignored", AgentSettingsIgnored(SettingsIgnored), "Settings that the agent does not support.";
            APPROVAL_REQUESTED = "approval.requested", ApprovalRequested(ApprovalRequested), "A tool call or a question waits for a person's decision.";
            APPROVAL_ANSWERED = "approval.answered", ApprovalAnswered(ApprovalAnswered), "A person decided; the agent may not know it yet.";
            APPROVAL_RESOLVED = "approval.resolved", ApprovalResolved(ApprovalResolved), "The agent received the decision, or no longer waits for it.";
            CONTINUOUS_STARTED = "continuous.started", ContinuousStarted(ContinuousStarted), "A sandbox started to work in continuous mode.";
            CONTINUOUS_VALIDATING = "continuous.validating", ContinuousValidating(ContinuousValidating), "The server runs the checks.";
            CONTINUOUS_CHECK = "continuous.check", ContinuousCheck(ContinuousCheck), "One check ended.";
            CONTINUOUS_CHECKED = "continuous.checked", ContinuousChecked(ContinuousChecked), "All checks of a round ended.";
            CONTINUOUS_RUN_FAILED = "continuous.run_failed", ContinuousRunFailed(ContinuousRunFailed), "A run of the agent failed.";
            CONTINUOUS_PASSED = "continuous.passed", ContinuousPassed(ContinuousPassed), "All checks passed.";
            CONTINUOUS_STOPPED = "continuous.stopped", ContinuousStopped(ContinuousStopped), "Continuous mode ended before all checks passed.";
            WORKER_REJECTED = "worker.rejected", WorkerRejected(WorkerRejected), "The server rejected an event of the worker and stored this one in its place.";
            LOG_TRUNCATED = "log.truncated", LogTruncated(LogTruncated), "The log reached its quota. The server only counts further events of the worker: see `dropped_events` of the sandbox.";
            WORKER_LOST = "worker.lost", WorkerLost(WorkerLost), "Events of the worker are lost.";
            WORKER_UNREACHABLE = "worker.unreachable", WorkerUnreachable(WorkerSilence), "A heartbeat of the worker is missing.";
            WORKER_REACHABLE = "worker.reachable", WorkerReachable(WorkerSilence), "The worker sends heartbeats again.";
            WORKER_RESTARTED = "worker.restarted", WorkerRestarted(WorkerRestarted), "The server ended the processes of the sandbox, whose worker was silent, and started the worker again.";
            SANDBOX_PENDING = "sandbox.pending", SandboxPending(SandboxPending), "A client created the sandbox.";
            SANDBOX_CREATING = "sandbox.creating", SandboxCreating(SandboxTransition), "The provider creates the sandbox.";
            SANDBOX_RUNNING = "sandbox.running", SandboxRunning(SandboxTransition), "The worker of the sandbox runs.";
            SANDBOX_COMPLETING = "sandbox.completing", SandboxCompleting(SandboxTransition), "The sandbox ends, and the server exports its results.";
            SANDBOX_COMPLETED = "sandbox.completed", SandboxCompleted(SandboxTransition), "The sandbox ended.";
            SANDBOX_FAILED = "sandbox.failed", SandboxFailed(SandboxTransition), "The sandbox failed.";
            SANDBOX_PAUSED = "sandbox.paused", SandboxPaused(SandboxActivity), "A person paused the sandbox, or the server because it was idle.";
            SANDBOX_RESUMED = "sandbox.resumed", SandboxResumed(SandboxActivity), "A person resumed the sandbox, or the server because an idle one is in use again.";
            SANDBOX_SNAPSHOT = "sandbox.snapshot", SandboxSnapshot(SandboxSnapshot), "A person saved the sandbox's files as a snapshot.";
            SANDBOX_STALLED = "sandbox.stalled", SandboxStalled(SandboxStalled), "The agent reports that it works, but sends no work event.";
            SANDBOX_IDLE = "sandbox.idle", SandboxIdle(SandboxIdle), "The agent waited, and no person used the sandbox: the server pauses or ends it.";
            SANDBOX_WORK_SAVED = "sandbox.work_saved", SandboxWorkSaved(SavedWork), "The server stored the work before it ended the sandbox or removed its files.";
            SANDBOX_PROVIDER_REPLACED = "sandbox.provider_replaced", SandboxProviderReplaced(ProviderReplaced), "The provider fails, so the project's fallback creates the sandbox.";
            PROVIDER_CIRCUIT_OPENED = "provider.circuit_opened", ProviderCircuitOpened(CircuitOpened), "The provider failed repeatedly: the server asks it for no sandbox until a later probe succeeds.";
            PROVIDER_CIRCUIT_CLOSED = "provider.circuit_closed", ProviderCircuitClosed(CircuitClosed), "The provider creates sandboxes again.";
            SANDBOX_NOTICE = "sandbox.notice", SandboxNotice(SandboxNotice), "Something that a user of the sandbox should know.";
            SANDBOX_DISK_FULL = "sandbox.disk_full", SandboxDiskFull(DiskFull), "The sandbox's files reached their disk limit.";
            SETUP_STARTED = "setup.started", SetupStarted(SetupStarted), "The project's set-up began in the sandbox.";
            SETUP_OUTPUT = "setup.output", SetupOutput(SetupOutput), "Output of a step of the set-up.";
            SETUP_STEP_COMPLETED = "setup.step_completed", SetupStepCompleted(SetupStepCompleted), "A step of the set-up ended.";
            SETUP_COMPLETED = "setup.completed", SetupCompleted(SetupCompleted), "The set-up succeeded, or a stored one replaced it.";
            SETUP_FAILED = "setup.failed", SetupFailed(SetupFailed), "The set-up failed, so the agent does not start.";
            SETUP_SKIPPED = "setup.skipped", SetupSkipped(SetupSkipped), "The sandbox starts without the project's set-up.";
            MESSAGE_QUEUED = "message.queued", MessageQueued(MessageContent), "A message entered the inbox.";
            MESSAGE_EDITED = "message.edited", MessageEdited(MessageContent), "A queued message changed.";
            MESSAGE_CANCELLED = "message.cancelled", MessageCancelled(MessageOutcome), "A queued message was cancelled.";
            MESSAGE_ACKNOWLEDGED = "message.acknowledged", MessageAcknowledged(MessageOutcome), "The agent has the message.";
            MESSAGE_UNDELIVERABLE = "message.undeliverable", MessageUndeliverable(MessageOutcome), "The message cannot reach the agent.";
            MESSAGE_UNCONFIRMED = "message.delivered_unconfirmed", MessageDeliveredUnconfirmed(MessageOutcome), "The worker handed the message to the agent, which did not confirm it.";
            NETWORK_CHANGED = "network.changed", NetworkChanged(NetworkChanged), "A person changed the sandbox's network policy.";
            NETWORK_REFUSED = "network.refused", NetworkRefused(NetworkRefused), "The egress proxy refused a connection.";
            MODEL_REFUSED = "model.refused", ModelRefused(ModelRefused), "The gateway refused a request to a model.";
            MODEL_USAGE = "model.usage", ModelUsageReport(ModelUsageReport), "What the sandbox has used of models until now, at most once a minute, and when a prompt fills a further tenth of the context window.";
            LIMIT_WARNED = "limit.warned", LimitWarned(LimitUse), "The agent has used most of a limit.";
            LIMIT_PAUSED = "limit.paused", LimitPaused(LimitUse), "A limit paused the agent until a person raises it.";
            LIMIT_RESUMED = "limit.resumed", LimitResumed(LimitResumed), "The agent continues after a limit paused it.";
            LIMIT_CHANGED = "limit.changed", LimitChanged(LimitChanged), "A person changed the agent's limits.";
            GUARDIAN_DENIED = "guardian.denied", GuardianDenied(GuardianDenied), "A rule denied a tool call.";
            GUARDIAN_CHANGED = "guardian.changed", GuardianChanged(GuardianChanged), "A rule changed the input of a tool call.";
            GUARDIAN_DETECTED = "guardian.detected", GuardianDetected(GuardianDetected), "The guardian found a problem, and chose an action.";
            GUARDIAN_NUDGED = "guardian.nudged", GuardianNudged(GuardianNudged), "The guardian sent the agent a nudge.";
            GUARDIAN_INTERVENED = "guardian.intervened", GuardianIntervened(GuardianIntervened), "The guardian denied a repeated call, interrupted the turn, paused the sandbox or restarts the session.";
            GUARDIAN_ESCALATED = "guardian.escalated", GuardianEscalated(GuardianEscalated), "The guardian shows a problem to people.";
            GUARDIAN_FOLLOWED_UP = "guardian.followed_up", GuardianFollowedUp(GuardianFollowedUp), "What happened after an intervention of the guardian.";
            GUARDIAN_JUDGED = "guardian.judged", GuardianJudged(GuardianJudged), "The judge reported about the agent's work.";
            GUARDIAN_PROTECTED_PATH = "guardian.protected_path", GuardianProtectedPath(ProtectedPaths), "The results change protected paths, so the server exported none of them.";
            PREVIEW_PORT_OPENED = "preview.port_opened", PreviewPortOpened(PortOpened), "A program in the sandbox listens on a port.";
            PREVIEW_PORT_CLOSED = "preview.port_closed", PreviewPortClosed(PortClosed), "No program in the sandbox listens on the port any more.";
            PREVIEW_CREATED = "preview.created", PreviewCreated(PreviewCreated), "A person created a link to a port of the sandbox.";
            PREVIEW_REVOKED = "preview.revoked", PreviewRevoked(PreviewRevoked), "A person revoked a link to a port of the sandbox.";
            FILES_WRITTEN = "files.written", FilesWritten(FilesWritten), "A person wrote files to the sandbox.";
            FILES_MADE = "files.made", FilesMade(FilePath), "A person created a directory in the sandbox.";
            FILES_MOVED = "files.moved", FilesMoved(FileMoved), "A person moved a file of the sandbox.";
            FILES_DELETED = "files.deleted", FilesDeleted(FilePath), "A person deleted a file of the sandbox.";
            GIT_CLONED = "git.cloned", GitCloned(GitCloned), "The server copied the repository into the sandbox.";
            GIT_BRANCH_CREATED = "git.branch_created", GitBranchCreated(GitBranchCreated), "The server exported the results as a branch.";
            GIT_NOTHING_CHANGED = "git.nothing_changed", GitNothingChanged(GitNothingChanged), "The results contain no changes.";
            WORKTREE_SYNCED_IN = "worktree.synced_in", WorktreeSyncedIn(WorktreeSyncedIn), "A user's worktree was copied into the workspace.";
            WORKTREE_SYNCED_OUT = "worktree.synced_out", WorktreeSyncedOut(WorktreeSyncedOut), "Changes of the workspace were sent to the user's worktree.";
            GIT_PR_MERGED = "git.pr_merged", GitPrMerged(GitPullRequestEnded), "The pull request of the session's branch was merged.";
            GIT_PR_CLOSED = "git.pr_closed", GitPrClosed(GitPullRequestEnded), "The pull request of the session's branch was closed without a merge.";
            GIT_REVIEWED = "git.reviewed", GitReviewed(GitReviewed), "A person reviewed the pull request, or commented on a line of it.";
            GIT_CHECK_FAILED = "git.check_failed", GitCheckFailed(GitCheckFailed), "A check of the session's branch failed at the forge.";
            GIT_BRANCH_MOVED = "git.branch_moved", GitBranchMoved(GitBranchMoved), "The session's branch got other commits at the forge.";
            GIT_BRANCH_DELETED = "git.branch_deleted", GitBranchDeleted(GitBranchDeleted), "The session's branch was deleted at the forge.";
            GIT_PUSH_FLAGGED = "git.push_flagged", GitPushFlagged(GitPushFlagged), "The branch changes files that decide what machines run or where more code comes from: CI files and URLs of submodules. The server pushes it anyway.";
            GIT_PUSHED = "git.pushed", GitPushed(GitPushed), "The server pushed the session's branch.";
            GIT_PUSH_FAILED = "git.push_failed", GitPushFailed(GitStepFailed), "The server could not push the session's branch.";
            GIT_BRANCH_UPDATED = "git.branch_updated", GitBranchUpdated(GitBranchUpdated), "The server added commits of the base or of the remote branch to the session's branch.";
            GIT_CONFLICT = "git.conflict", GitConflict(GitConflict), "The session's branch conflicts with its base. The agent gets the conflict as a message.";
            GIT_PR_CREATED = "git.pr_created", GitPrCreated(GitPullRequestOpened), "The server opened a pull request for the session's branch.";
            GIT_PR_UPDATED = "git.pr_updated", GitPrUpdated(GitPullRequestOpened), "The server updated the pull request of the session's branch.";
            GIT_PR_FAILED = "git.pr_failed", GitPrFailed(GitStepFailed), "The server could not open or update the pull request. The branch is pushed.";
            GIT_MERGE_WAITING = "git.merge_waiting", GitMergeWaiting(GitMergeWaiting), "The merge waits for the forge, for checks or for reviews.";
            GIT_MERGE_COMPLETED = "git.merge_completed", GitMergeCompleted(GitPullRequestEnded), "The pull request that the server merges is merged.";
            GIT_MERGE_FAILED = "git.merge_failed", GitMergeFailed(GitStepFailed), "The server could not merge the pull request, or could not finish the work after the merge.";
            GIT_BRANCH_REMOVED = "git.branch_removed", GitBranchRemoved(GitBranchDeleted), "The server deleted the merged branch.";
            SECRETS_EXPOSED = "secrets.exposed", SecretsExposed(SecretsExposed), "The sandbox holds the values of these secrets.";
            SERVICE_STARTED = "service.started", ServiceStarted(ServiceStarted), "The worker started a service.";
            SERVICE_READY = "service.ready", ServiceReady(ServiceReady), "A service passed its ready check.";
            SERVICE_EXITED = "service.exited", ServiceExited(ServiceExited), "A service ended, and the worker starts it again after a delay.";
            SERVICE_STOPPED = "service.stopped", ServiceStopped(ServiceStopped), "The worker ended a service, because a fork or a snapshot copies the sandbox's files or because the run failed.";
            SERVICE_FAILED = "service.failed", ServiceFailed(ServiceFailed), "A service did not become ready, or it ended too often. The worker does not start it again.";
            TASK_ASSIGNED = "task.assigned", TaskAssigned(TaskProgress), "The server gave the sandbox a task.";
            TASK_RUNNING = "task.running", TaskRunning(TaskProgress), "The agent began to work on its task.";
            TASK_WARNED = "task.warned", TaskWarned(TaskTimeLeft), "The task's time limit comes near. The agent gets a message.";
            TASK_INTERRUPTED = "task.interrupted", TaskInterrupted(TaskTimeLeft), "The task reached its time limit. The server interrupts the agent and then ends the sandbox.";
            TASK_VALIDATING = "task.validating", TaskValidating(TaskProgress), "The work on the task is done and waits for a verdict.";
            TASK_NEEDS_REVISION = "task.needs_revision", TaskNeedsRevision(TaskVerdict), "A validation refused the work on the task. Another attempt gets the feedback.";
            TASK_RETRYING = "task.retrying", TaskRetrying(TaskSetback), "The attempt failed, and the task is in the queue again.";
            TASK_COMPLETED = "task.completed", TaskCompleted(TaskProgress), "The task is completed. Tasks that depend on it may start.";
            TASK_FAILED = "task.failed", TaskFailed(TaskSetback), "The task failed. The server starts no further attempt.";
            TASK_CANCELLED = "task.cancelled", TaskCancelled(TaskProgress), "The task is cancelled.";
            SESSION_OPENED = "session.opened", SessionOpened(SessionOpened), "A session started with this sandbox.";
            SESSION_CHANGED = "session.changed", SessionChanged(SessionChanged), "A person changed the session.";
            SESSION_CLOSED = "session.closed", SessionClosed(SessionChanged), "A person closed the session.";
            SESSION_RESUMED = "session.resumed", SessionResumed(SessionResumed), "A session continues in this sandbox.";
            SESSION_RESTART_PLANNED = "session.restart_planned", SessionRestartPlanned(SessionRestartPlanned), "The sandbox failed with unfinished work: the session gets another one after a delay.";
            SESSION_ESCALATED = "session.escalated", SessionEscalated(SessionEscalated), "Atoll does not restart the session any more: a person has to look.";
            SESSION_FORKED = "session.forked", SessionForked(SessionForked), "A person forked the session.";
        }
    };
}

macro_rules! define_constants {
    ($($name:ident = $event_type:literal, $variant:ident($data:ident), $description:literal;)+) => {
        /// The event types that Atoll emits.
        pub mod kind {
            $(#[doc = $description] pub const $name: &str = $event_type;)+
        }
    };
}

for_each_event_type!(define_constants);
