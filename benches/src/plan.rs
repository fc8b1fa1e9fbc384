//! Sizes of the measurements.

use crate::figures::generated_repository::RepositorySize;
use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Alternations of floor and figure.
    pub rounds: usize,
    /// Length of one sample.
    pub sample_duration: Duration,
    /// Appends in one measurement of the disk.
    pub appends: usize,
    /// Messages in one sample.
    pub messages: usize,
    pub readers: usize,
    pub reading_duration: Duration,
    /// Length of the long log, for the trajectory and memory figures.
    pub log_events: i64,
    /// Idle time of a server before its memory is measured.
    pub settle_duration: Duration,
    /// Requests for each page.
    pub page_reads: usize,
    /// Sandboxes created sequentially in one sample.
    pub sandboxes: usize,
    /// Commands run sequentially in one sample.
    pub commands: usize,
    /// Idle sandboxes for the memory figure.
    pub idle_sandboxes: usize,
    /// Time over which the wake-ups of idle workers are counted.
    pub idle_watch_duration: Duration,
    /// Sandboxes created concurrently.
    pub concurrent_sandboxes: usize,
    /// Commands of the neighbour in one sample, with and without resource exhaustion in another sandbox.
    pub neighbour_commands: usize,
    /// Forks made sequentially in one sample.
    pub forks: usize,
    /// Files in the large sandbox that is forked.
    pub forked_files: usize,
    /// Agent steps whose events are timed.
    pub agent_steps: usize,
    /// Tool calls of the agent in the worker memory figure.
    pub tool_calls: usize,
    /// Messages sent to an agent during its turn.
    pub steered_messages: usize,
    pub interrupts: usize,
    /// Files of up to 40 KB in the copied tree.
    pub small_files: usize,
    /// Files of 8 MB in the copied tree.
    pub large_files: usize,
    /// The large repository.
    pub repository: RepositorySize,
    /// Files of 50 KB in the worktree that is sent as a whole.
    pub worktree_files: usize,
    pub page: PageSizes,
}

/// What the web page shows while it is measured.
#[derive(Debug, Clone, Copy)]
pub struct PageSizes {
    pub events: usize,
    pub files: usize,
    pub agents: usize,
    pub rounds: usize,
}

impl Plan {
    pub const fn full_size() -> Self {
        Self {
            rounds: 3,
            sample_duration: Duration::from_millis(3500),
            appends: 1000,
            messages: 170,
            readers: 200,
            reading_duration: Duration::from_secs(10),
            log_events: 1_000_000,
            settle_duration: Duration::from_secs(10),
            page_reads: 300,
            sandboxes: 30,
            commands: 100,
            idle_sandboxes: 300,
            idle_watch_duration: Duration::from_secs(90),
            concurrent_sandboxes: 100,
            neighbour_commands: 1000,
            forks: 10,
            forked_files: 100_000,
            agent_steps: 500,
            tool_calls: 10_000,
            steered_messages: 40,
            interrupts: 20,
            small_files: 2000,
            large_files: 20,
            repository: RepositorySize { files: 50_000, file_bytes: 6000, commits: 5000 },
            worktree_files: 10_000,
            page: PageSizes { events: 50_000, files: 300, agents: 300, rounds: 5 },
        }
    }

    pub const fn quick_size() -> Self {
        Self {
            rounds: 1,
            sample_duration: Duration::from_secs(1),
            appends: 100,
            messages: 20,
            readers: 20,
            reading_duration: Duration::from_secs(2),
            log_events: 20_000,
            settle_duration: Duration::from_secs(1),
            page_reads: 30,
            sandboxes: 5,
            commands: 10,
            idle_sandboxes: 5,
            idle_watch_duration: Duration::from_secs(10),
            concurrent_sandboxes: 10,
            neighbour_commands: 50,
            forks: 3,
            forked_files: 2000,
            agent_steps: 50,
            tool_calls: 300,
            steered_messages: 5,
            interrupts: 3,
            small_files: 200,
            large_files: 4,
            repository: RepositorySize { files: 1000, file_bytes: 6000, commits: 50 },
            worktree_files: 100,
            page: PageSizes { events: 2000, files: 30, agents: 20, rounds: 2 },
        }
    }
}
