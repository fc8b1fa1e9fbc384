//! The section `orchestrator`: how tasks are dispatched, retried and ended.

use crate::format::{Integer, SWITCH, TIME};
use crate::key::section;
use crate::sections::Config;
use atoll_core::task::{DispatchLimits, RetryPolicy};
use std::time::Duration;

const fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

section! {
    /// Dispatch, time limits and retries of tasks.
    Orchestrator at [orchestrator] {
        /// Dispatch tasks; without it, tasks stay in the queue
        enabled: bool = true => SWITCH, env(&["ORCHESTRATOR_ENABLED"]);
        /// Tasks that run at the same time, in all projects
        max_running: usize = 20 => Integer(1, 10_000);
        /// Tasks of one project that run at the same time
        max_running_per_project: usize = 5 => Integer(1, 10_000);
        /// Tasks of one user or service that run at the same time
        max_running_per_user: usize = 10 => Integer(1, 10_000);
        /// Time after which a claim without a sandbox returns to the queue; a working server renews it
        claim_timeout: Duration = seconds(60) => TIME;
        /// Time without a sign of the worker after which an assigned task counts as not picked up
        pick_up_timeout: Duration = seconds(180) => TIME;
        /// Default time limit of one attempt at a task
        task_timeout: Duration = seconds(3600) => TIME;
        /// Time between the interrupt at a task's time limit and the end of its sandbox
        timeout_grace: Duration = seconds(30) => TIME;
        /// Interval of the task dispatcher's safety check, beside the changes that wake it
        check_interval: Duration = seconds(30) => TIME;
        /// Wait after a provider's quota error that names no time
        quota_pause: Duration = seconds(60) => TIME;
        /// Revisions of a task whose validation fails
        max_revisions: u32 = 3 => Integer(0, 100);
        section retries: Retries;
    }
}

section! {
    /// Retries of failed tasks.
    Retries at [orchestrator.retries] {
        /// Default retries of a task, of all classes together
        max: u32 = 3 => Integer(0, 10);
        /// Retries after a failure of the provider
        provider: u32 = 5 => Integer(0, 10);
        /// Retries after a failed set-up
        set_up: u32 = 1 => Integer(0, 10);
        /// Retries after a crash of the agent
        agent_crash: u32 = 3 => Integer(0, 10);
        /// Retries after the sandbox ran out of memory
        out_of_memory: u32 = 1 => Integer(0, 10);
        /// Retries after the task's time limit
        timeout: u32 = 0 => Integer(0, 10);
        /// Retries after the agent failed at the task itself
        task: u32 = 0 => Integer(0, 10);
        /// Pause before the first retry; it doubles with each
        first_pause: Duration = seconds(10) => TIME;
        /// Longest pause before a retry
        max_pause: Duration = seconds(600) => TIME;
    }
}

impl Orchestrator {
    pub const fn limits(&self) -> DispatchLimits {
        DispatchLimits {
            overall: self.max_running,
            per_project: self.max_running_per_project,
            per_user: self.max_running_per_user,
        }
    }

    pub const fn retry_policy(&self) -> RetryPolicy {
        let Retries { provider, set_up, agent_crash, out_of_memory, timeout, task, first_pause, max_pause, .. } =
            self.retries;
        RetryPolicy { provider, set_up, agent_crash, out_of_memory, timeout, task, first_pause, max_pause }
    }
}
