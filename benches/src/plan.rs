//! How large everything is.

use std::time::Duration;

#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Floor and figure take turns so many times.
    pub rounds: usize,
    /// How long one turn lasts.
    pub turn: Duration,
    /// Appends in one measurement of the disk.
    pub appends: usize,
    /// Messages in one turn.
    pub messages: usize,
    pub readers: usize,
    pub reading: Duration,
    /// The long log of the trajectory and of the memory.
    pub events: i64,
    /// How long a server is left alone before its memory is looked at.
    pub settle: Duration,
    /// How often each page is asked for.
    pub pages: usize,
    /// Sandboxes made one after another in one turn.
    pub sandboxes: usize,
    /// Commands run one after another in one turn.
    pub commands: usize,
    /// Sandboxes that are left alone, for their memory.
    pub idle: usize,
    /// How long those are watched for what wakes them.
    pub watched: Duration,
    /// Sandboxes that are made at once.
    pub at_once: usize,
    /// Commands of a neighbour in one turn, in quiet and beside bombs.
    pub neighbour: usize,
    /// Forks made one after another in one turn.
    pub forks: usize,
    /// In the large sandbox that is forked.
    pub files: usize,
    /// Steps of the agent whose events are timed.
    pub steps: usize,
    /// Tools that the agent uses whose worker's memory is looked at.
    pub calls: usize,
    /// What is said to a working agent, and how often its turn is broken off.
    pub steered: usize,
    pub interrupted: usize,
    /// Of the tree that is moved in and out: files of some kilobytes, and of 8 MB.
    pub small_files: usize,
    pub large_files: usize,
}

impl Plan {
    pub const fn full() -> Self {
        Self {
            rounds: 3,
            turn: Duration::from_millis(3500),
            appends: 1000,
            messages: 170,
            readers: 200,
            reading: Duration::from_secs(10),
            events: 1_000_000,
            settle: Duration::from_secs(10),
            pages: 300,
            sandboxes: 30,
            commands: 100,
            idle: 300,
            watched: Duration::from_secs(90),
            at_once: 100,
            neighbour: 1000,
            forks: 10,
            files: 100_000,
            steps: 500,
            calls: 10_000,
            steered: 40,
            interrupted: 20,
            small_files: 2000,
            large_files: 20,
        }
    }

    pub const fn quick() -> Self {
        Self {
            rounds: 1,
            turn: Duration::from_secs(1),
            appends: 100,
            messages: 20,
            readers: 20,
            reading: Duration::from_secs(2),
            events: 20_000,
            settle: Duration::from_secs(1),
            pages: 30,
            sandboxes: 5,
            commands: 10,
            idle: 5,
            watched: Duration::from_secs(10),
            at_once: 10,
            neighbour: 50,
            forks: 3,
            files: 2000,
            steps: 50,
            calls: 300,
            steered: 5,
            interrupted: 3,
            small_files: 200,
            large_files: 4,
        }
    }
}
