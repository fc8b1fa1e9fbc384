//! Detects out-of-memory kills in the sandbox.

use crate::spawner::ExitStatus;
use rustix::io::pread;
use rustix::process::Signal;
use std::os::fd::OwnedFd;

/// A shell's exit code for a command that got SIGKILL.
const SHELL_SIGKILL_CODE: i32 = 128 + 9;

/// The memory counters of the agent's cgroup; empty without one.
#[derive(Debug, Default)]
pub struct MemoryCounters {
    /// A file with a line `oom_kill N`.
    pub kills: Option<OwnedFd>,
    /// A file with the peak usage in bytes.
    pub peak: Option<OwnedFd>,
    pub limit: Option<u64>,
}

impl MemoryCounters {
    /// Number of out-of-memory kills.
    pub fn kills(&self) -> Option<u64> {
        parse_kills(&read_counter(self.kills.as_ref()?)?)
    }

    pub fn peak(&self) -> Option<u64> {
        read_counter(self.peak.as_ref()?)?.trim().parse().ok()
    }

    /// True if memory ran out for a process that started when the count was `before`.
    pub fn killed_process(&self, before: Option<u64>, ending: ExitStatus) -> bool {
        let killed = match ending {
            ExitStatus::Signalled(signal) => signal == Signal::KILL.as_raw(),
            ExitStatus::Exited(code) => code == SHELL_SIGKILL_CODE,
            ExitStatus::Lost => true,
        };
        killed && self.kills_since(before)
    }

    /// The same for an agent, which also counts if a child was killed and the agent then exited without further output.
    pub fn killed_agent(&self, before: Option<u64>, at_output: Option<u64>, ending: ExitStatus) -> bool {
        let failed = matches!(ending, ExitStatus::Exited(code) if code != 0);
        self.killed_process(before, ending) || (failed && self.kills_since(at_output))
    }

    fn kills_since(&self, before: Option<u64>) -> bool {
        before.zip(self.kills()).is_some_and(|(before, now)| now > before)
    }
}

fn read_counter(file: &OwnedFd) -> Option<String> {
    let mut buffer = [0; 512];
    let length = pread(file, &mut buffer, 0).ok()?;
    String::from_utf8(buffer.get(..length)?.to_vec()).ok()
}

fn parse_kills(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn parses_cgroup_v1_and_v2_counters() {
        assert_eq!(parse_kills("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(parse_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(parse_kills("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    #[test]
    fn counts_only_kills_while_the_counter_rose() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"oom_kill 4\n").unwrap();
        let memory = MemoryCounters { kills: Some(file.into()), ..MemoryCounters::default() };
        assert!(memory.killed_process(Some(3), ExitStatus::Signalled(9)));
        assert!(memory.killed_process(Some(3), ExitStatus::Exited(137)), "a shell says it so");
        for (before, ending) in [
            (Some(4), ExitStatus::Signalled(9)),
            (Some(3), ExitStatus::Signalled(6)),
            (Some(3), ExitStatus::Exited(1)),
            (None, ExitStatus::Signalled(9)),
        ] {
            assert!(!memory.killed_process(before, ending), "{before:?} {ending:?}");
        }
        assert!(!MemoryCounters::default().killed_process(None, ExitStatus::Signalled(9)));
        assert!(
            memory.killed_agent(Some(3), Some(3), ExitStatus::Exited(1)),
            "what waited for the killed one left silently"
        );
        assert!(memory.killed_agent(Some(3), Some(4), ExitStatus::Signalled(9)), "it was the last to be killed");
        for (before, at_output, ending) in [
            (Some(3), Some(4), ExitStatus::Exited(1)),
            (Some(3), Some(3), ExitStatus::Exited(0)),
            (Some(4), Some(4), ExitStatus::Exited(1)),
            (None, None, ExitStatus::Exited(1)),
        ] {
            assert!(!memory.killed_agent(before, at_output, ending), "{before:?} {at_output:?} {ending:?}");
        }
    }
}
