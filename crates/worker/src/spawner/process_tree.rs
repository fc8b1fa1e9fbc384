//! Finds all processes of a command, also those that changed their process group or session or lost their parent.
//!
//! Matches by ancestors, group, session, and a mark in the environment. A process that drops all of these escapes until the sandbox ends.

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::thread::sleep;
use std::time::Duration;

/// Environment variable that marks the processes of a command.
pub(super) const MARK: &str = "ATOLL_EXEC";
/// Maximum number of scans. Each finds processes that started during the one before.
const MAX_SCANS: u32 = 200;
const SCAN_PAUSE: Duration = Duration::from_millis(1);
/// Larger than the kernel's limit.
const MAX_ENVIRONMENT_BYTES: u64 = 8 << 20;

/// A process in `/proc`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessEntry {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// Foreground group of its terminal.
    in_front: i32,
    /// Start time: unique together with the pid.
    began: u64,
    is_dead: bool,
}

/// Kills the command `pid` with the mark `id` and everything that it started. Pauses them first, so that none starts
/// another during the scan.
pub(super) fn kill_tree(pid: Pid, id: u64) {
    pause_tree(pid, id);
    let mark = format!("{MARK}={id}");
    for _ in 0..MAX_SCANS {
        let left = scan_tree(pid, &mark);
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|process| send_signal(process, Signal::KILL));
        sleep(SCAN_PAUSE);
    }
}

/// Pauses all processes of a command.
pub(super) fn pause_tree(pid: Pid, id: u64) {
    let mark = format!("{MARK}={id}");
    let mut stopped = HashSet::new();
    for _ in 0..MAX_SCANS {
        let running: Vec<ProcessEntry> =
            scan_tree(pid, &mark).into_iter().filter(|process| !stopped.contains(&identity_of(process))).collect();
        if running.is_empty() {
            break;
        }
        for process in &running {
            send_signal(process, Signal::STOP);
            stopped.insert(identity_of(process));
        }
    }
}

/// Resumes all processes of a command. Paused processes start no others, so one scan is enough.
pub(super) fn resume_tree(pid: Pid, id: u64) {
    let mark = format!("{MARK}={id}");
    scan_tree(pid, &mark).iter().for_each(|process| send_signal(process, Signal::CONT));
}

/// The foreground group of the terminal of `pid`, if it is not its own group.
pub(super) fn foreground_group(pid: Pid) -> Option<Pid> {
    let process = read_stat(pid.as_raw_nonzero().get())?;
    // -1 without a terminal.
    let group = Some(process.in_front).filter(|group| *group > 1).and_then(Pid::from_raw)?;
    (group != pid).then_some(group)
}

const fn identity_of(process: &ProcessEntry) -> (i32, u64) {
    (process.pid, process.began)
}

/// Signals this process, and no other that reused its pid.
fn send_signal(process: &ProcessEntry, signal: Signal) {
    let Some(pid) = Pid::from_raw(process.pid) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if read_stat(process.pid).is_some_and(|now| identity_of(&now) == identity_of(process)) {
        // Fails only if it has exited in between.
        let _ = pidfd_send_signal(descriptor, signal);
    }
}

fn scan_tree(pid: Pid, mark: &str) -> Vec<ProcessEntry> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<(ProcessEntry, bool)> = numbers
        .filter_map(read_stat)
        .map(|process| (process, !process.is_dead && is_marked(process.pid, mark)))
        .collect();
    filter_tree(&all, pid.as_raw_nonzero().get(), getpid().as_raw_nonzero().get())
}

/// Filters the live processes of the command `root`; each comes with its mark.
fn filter_tree(all: &[(ProcessEntry, bool)], root: i32, own: i32) -> Vec<ProcessEntry> {
    let is_ours = |process: &ProcessEntry| process.pid != own && process.pid > 1;
    let begins = |process: &ProcessEntry, marked: bool| {
        marked || process.pid == root || process.group == root || process.session == root
    };
    let first = all.iter().filter(|(process, marked)| begins(process, *marked));
    let mut caught: HashSet<i32> = first.map(|(process, _)| process.pid).collect();
    loop {
        let before = caught.len();
        let children = all.iter().filter(|(process, _)| is_ours(process) && caught.contains(&process.parent));
        let children: Vec<i32> = children.map(|(process, _)| process.pid).collect();
        caught.extend(children);
        if caught.len() == before {
            break;
        }
    }
    let alive = all.iter().map(|(process, _)| *process).filter(|process| !process.is_dead && is_ours(process));
    alive.filter(|process| caught.contains(&process.pid)).collect()
}

fn read_stat(pid: i32) -> Option<ProcessEntry> {
    parse_stat(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses a stat line. The name may contain anything, so the numbers begin after the last bracket.
fn parse_stat(pid: i32, stat: &[u8]) -> Option<ProcessEntry> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(stat.get(after..)?).ok()?;
    let fields: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    Some(ProcessEntry {
        pid,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        in_front: number(5)?,
        began: fields.get(19)?.parse().ok()?,
        is_dead: matches!(*fields.first()?, "Z" | "X" | "x"),
    })
}

fn is_marked(pid: i32, mark: &str) -> bool {
    let mut environment = Vec::new();
    let read = File::open(format!("/proc/{pid}/environ"))
        .and_then(|file| file.take(MAX_ENVIRONMENT_BYTES).read_to_end(&mut environment));
    read.is_ok() && environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_entry(pid: i32, parent: i32, group: i32, session: i32) -> ProcessEntry {
        ProcessEntry { pid, parent, group, session, in_front: -1, began: 5, is_dead: false }
    }

    #[test]
    fn parses_names_with_brackets() {
        let stat = b"42 (a) Z 9 9 (\xff) S 7 40 39 34816 41 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1000";
        let found = parse_stat(42, stat).unwrap();
        let expected =
            ProcessEntry { pid: 42, parent: 7, group: 40, session: 39, in_front: 41, began: 12345, is_dead: false };
        assert_eq!(found, expected);
        assert!(parse_stat(1, b"1 (x").is_none() && parse_stat(1, b"1 (x) S 1").is_none());
    }

    #[test]
    fn finds_all_relatives_and_no_others() {
        let (root, spawner) = (10, 2);
        let mut dead = new_entry(16, 10, 10, 2);
        dead.is_dead = true;
        let all = [
            (new_entry(1, 0, 1, 1), false),
            (new_entry(spawner, 1, 1, 1), false),
            (new_entry(root, spawner, root, 2), true),
            (new_entry(11, root, 11, 11), false), // own session, parent alive
            (new_entry(12, 11, 11, 11), false),
            (new_entry(13, 1, 13, 13), true),   // an orphan with the mark
            (new_entry(14, 13, 14, 14), false), // its child
            (new_entry(15, 1, root, 2), false), // an orphan without the mark, in the group
            (dead, true),
            (new_entry(20, spawner, 20, 2), false), // another command
            (new_entry(21, 20, 20, 2), false),
            (new_entry(22, 1, 22, 22), false), // an orphan of a third command
        ];
        let found: Vec<i32> = filter_tree(&all, root, spawner).iter().map(|process| process.pid).collect();
        assert_eq!(found, [10, 11, 12, 13, 14, 15]);
    }
}
