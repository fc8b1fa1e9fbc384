//! What the server still has to do for a sandbox.

use crate::words;

words! {
    /// What a job does. One of each kind may wait per sandbox.
    "job kind"
    JobKind {
        /// Ask the provider to make the sandbox.
        Create = "create",
        /// Fail the sandbox if it has not started.
        CreateTimeout = "create_timeout",
        /// Fail the sandbox when its own time is over.
        Timeout = "timeout",
        /// Complete the sandbox when its worker's grace for flushing is over.
        FlushGrace = "flush_grace",
        /// Take the results out of a sandbox whose worker has left.
        Results = "results",
        /// Remove the provider's sandbox.
        Remove = "remove",
        /// End the worker's token.
        EndDrain = "end_drain",
        /// Check the work of a continuous run, or go on after one that failed.
        Validate = "validate",
        /// End a continuous run whose time is over.
        ContinuousDeadline = "continuous_deadline",
    }
}
