//! Whether the kernel killed something because the sandbox's memory ran out.

use crate::hands::Ending;
use rustix::io::pread;
use rustix::process::Signal;
use std::os::fd::OwnedFd;

/// What a shell says of a command that was killed.
const KILLED_BELOW_A_SHELL: i32 = 128 + 9;

/// The counters of the agent's cgroup; empty where memory is not bounded by one.
#[derive(Debug, Default)]
pub struct Memory {
    /// A file with a line `oom_kill N`.
    pub kills: Option<OwnedFd>,
    /// A file with the highest use in bytes.
    pub peak: Option<OwnedFd>,
    pub limit: Option<u64>,
}

impl Memory {
    /// How often the kernel has killed something.
    pub fn kills(&self) -> Option<u64> {
        count(&read(self.kills.as_ref()?)?)
    }

    pub fn peak(&self) -> Option<u64> {
        read(self.peak.as_ref()?)?.trim().parse().ok()
    }

    /// Whether a process that started when the count was `before` ended by it.
    pub fn ended_it(&self, before: Option<u64>, ending: Ending) -> bool {
        let killed = match ending {
            Ending::Signalled(signal) => signal == Signal::KILL.as_raw(),
            Ending::Exited(code) => code == KILLED_BELOW_A_SHELL,
            Ending::Lost => true,
        };
        killed && self.kills_since(before)
    }

    /// The same of an agent's program. The kernel may have killed a process below it, and it exits by itself then, with
    /// nothing more said than when the count was `heard`.
    pub fn ended_agent(&self, before: Option<u64>, heard: Option<u64>, ending: Ending) -> bool {
        let failed = matches!(ending, Ending::Exited(code) if code != 0);
        self.ended_it(before, ending) || (failed && self.kills_since(heard))
    }

    fn kills_since(&self, before: Option<u64>) -> bool {
        before.zip(self.kills()).is_some_and(|(before, now)| now > before)
    }
}

fn read(file: &OwnedFd) -> Option<String> {
    let mut buffer = [0; 512];
    let length = pread(file, &mut buffer, 0).ok()?;
    String::from_utf8(buffer.get(..length)?.to_vec()).ok()
}

fn count(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn both_forms_of_the_counter_are_read() {
        assert_eq!(count("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 0\n"), Some(2));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\noom_kill 7\n"), Some(7));
        assert_eq!(count("oom_kill_disable 0\nunder_oom 0\n"), None);
    }

    #[test]
    fn only_a_kill_while_the_count_rose_is_one() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"oom_kill 4\n").unwrap();
        let memory = Memory { kills: Some(file.into()), ..Memory::default() };
        assert!(memory.ended_it(Some(3), Ending::Signalled(9)));
        assert!(memory.ended_it(Some(3), Ending::Exited(137)), "a shell says it so");
        for (before, ending) in [
            (Some(4), Ending::Signalled(9)),
            (Some(3), Ending::Signalled(6)),
            (Some(3), Ending::Exited(1)),
            (None, Ending::Signalled(9)),
        ] {
            assert!(!memory.ended_it(before, ending), "{before:?} {ending:?}");
        }
        assert!(!Memory::default().ended_it(None, Ending::Signalled(9)));
        assert!(
            memory.ended_agent(Some(3), Some(3), Ending::Exited(1)),
            "what waited for the killed one left silently"
        );
        assert!(memory.ended_agent(Some(3), Some(4), Ending::Signalled(9)), "it was the last to be killed");
        for (before, heard, ending) in [
            (Some(3), Some(4), Ending::Exited(1)),
            (Some(3), Some(3), Ending::Exited(0)),
            (Some(4), Some(4), Ending::Exited(1)),
            (None, None, Ending::Exited(1)),
        ] {
            assert!(!memory.ended_agent(before, heard, ending), "{before:?} {heard:?} {ending:?}");
        }
    }
}
