//! Jobs: pending work of the server for a sandbox.

use crate::string_enum;

string_enum! {
    /// Kind of a job. A sandbox has at most one pending job of each kind.
    "job kind"
    JobKind {
        /// Request the sandbox from the provider.
        Create = "create",
        /// Fail the sandbox if it has not started.
        CreateTimeout = "create_timeout",
        /// Fail the sandbox when its timeout expires.
        Timeout = "timeout",
        /// Complete the sandbox when its worker's flush grace period is over.
        FlushGrace = "flush_grace",
        /// Collect the results of a sandbox whose worker has exited.
        Results = "results",
        /// Remove the provider's sandbox.
        Remove = "remove",
        /// Revoke the worker's token.
        EndDrain = "end_drain",
        /// Check the work of a continuous run, or continue after a failed one.
        Validate = "validate",
        /// End a continuous run whose time limit has expired.
        ContinuousDeadline = "continuous_deadline",
        /// Run the next step of the branch workflow that began with the sandbox.
        BranchWorkflow = "branch_workflow",
        /// Warn the agent that its task's time limit comes near.
        TaskWarning = "task_warning",
        /// Interrupt the agent at its task's time limit.
        TaskInterrupt = "task_interrupt",
        /// End the sandbox after its task's time limit.
        TaskEnd = "task_end",
        /// Find out what happened to a sandbox whose worker is silent, and recover it.
        RecoverWorker = "recover_worker",
        /// Pause or end an idle sandbox.
        EndIdle = "end_idle",
        /// Continue a paused sandbox that is in use again.
        Wake = "wake",
        /// Give the session of a failed sandbox another one.
        Restart = "restart",
    }
}
