//! Everything that a command started, wherever it went: into another process group, into a session of its own, away
//! from a parent that has ended. It is found by its ancestors, its group, its session, and by a mark in its
//! environment. Who throws all of that away is not found; the sandbox's end finds everybody.

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::thread::sleep;
use std::time::Duration;

/// The variable that marks what belongs to a command.
pub(super) const MARK: &str = "ATOLL_EXEC";
/// How often one looks again. Each look finds what was started during the one before.
const LOOKS: u32 = 200;
const PAUSE: Duration = Duration::from_millis(1);
/// More than the kernel lets anybody hand over.
const LONGEST_ENVIRONMENT: u64 = 8 << 20;

/// A process, as `/proc` shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    pid: i32,
    parent: i32,
    group: i32,
    session: i32,
    /// The group in front on its terminal.
    in_front: i32,
    /// When it began: with its id, this names it for ever.
    began: u64,
    is_dead: bool,
}

/// Ends all of it: the command is `pid`, and its mark has `id`. They are stopped first, so that none starts another
/// while the rest is looked for.
pub(super) fn end(pid: Pid, id: u64) {
    stop(pid, id);
    let mark = format!("{MARK}={id}");
    for _ in 0..LOOKS {
        let left = look(pid, &mark);
        if left.is_empty() {
            return;
        }
        left.iter().for_each(|seen| send(seen, Signal::KILL));
        sleep(PAUSE);
    }
}

/// Lets all of it stand still.
pub(super) fn stop(pid: Pid, id: u64) {
    let mark = format!("{MARK}={id}");
    let mut stopped = HashSet::new();
    for _ in 0..LOOKS {
        let running: Vec<Seen> = look(pid, &mark).into_iter().filter(|seen| !stopped.contains(&name(seen))).collect();
        if running.is_empty() {
            break;
        }
        for seen in &running {
            send(seen, Signal::STOP);
            stopped.insert(name(seen));
        }
    }
}

/// Lets all of it go on. Nothing of it could start another meanwhile, so one look finds everything.
pub(super) fn go_on(pid: Pid, id: u64) {
    let mark = format!("{MARK}={id}");
    look(pid, &mark).iter().for_each(|seen| send(seen, Signal::CONT));
}

/// The process group in front on the terminal of `pid`, if that is another than its own.
pub(super) fn in_front(pid: Pid) -> Option<Pid> {
    let seen = read(pid.as_raw_nonzero().get())?;
    // Without a terminal it is -1.
    let group = Some(seen.in_front).filter(|group| *group > 1).and_then(Pid::from_raw)?;
    (group != pid).then_some(group)
}

const fn name(seen: &Seen) -> (i32, u64) {
    (seen.pid, seen.began)
}

/// To this process and no other that got its id since.
fn send(seen: &Seen, signal: Signal) {
    let Some(pid) = Pid::from_raw(seen.pid) else { return };
    let Ok(descriptor) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if read(seen.pid).is_some_and(|now| name(&now) == name(seen)) {
        // It has ended in between, then.
        let _ = pidfd_send_signal(descriptor, signal);
    }
}

fn look(pid: Pid, mark: &str) -> Vec<Seen> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let all: Vec<(Seen, bool)> =
        numbers.filter_map(read).map(|seen| (seen, !seen.is_dead && is_marked(seen.pid, mark))).collect();
    belonging(&all, pid.as_raw_nonzero().get(), getpid().as_raw_nonzero().get())
}

/// Those alive that belong to the command `root`; each comes with whether it is marked.
fn belonging(all: &[(Seen, bool)], root: i32, own: i32) -> Vec<Seen> {
    let is_ours = |seen: &Seen| seen.pid != own && seen.pid > 1;
    let begins = |seen: &Seen, marked: bool| marked || seen.pid == root || seen.group == root || seen.session == root;
    let first = all.iter().filter(|(seen, marked)| begins(seen, *marked));
    let mut caught: HashSet<i32> = first.map(|(seen, _)| seen.pid).collect();
    loop {
        let before = caught.len();
        let children = all.iter().filter(|(seen, _)| is_ours(seen) && caught.contains(&seen.parent));
        let children: Vec<i32> = children.map(|(seen, _)| seen.pid).collect();
        caught.extend(children);
        if caught.len() == before {
            break;
        }
    }
    let alive = all.iter().map(|(seen, _)| *seen).filter(|seen| !seen.is_dead && is_ours(seen));
    alive.filter(|seen| caught.contains(&seen.pid)).collect()
}

fn read(pid: i32) -> Option<Seen> {
    parse(pid, &std::fs::read(format!("/proc/{pid}/stat")).ok()?)
}

/// The name in the middle may hold anything, so the numbers begin after its last bracket.
fn parse(pid: i32, stat: &[u8]) -> Option<Seen> {
    let after = stat.iter().rposition(|byte| *byte == b')')? + 1;
    let text = std::str::from_utf8(stat.get(after..)?).ok()?;
    let fields: Vec<&str> = text.split_whitespace().collect();
    let number = |at: usize| fields.get(at)?.parse::<i32>().ok();
    Some(Seen {
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
        .and_then(|file| file.take(LONGEST_ENVIRONMENT).read_to_end(&mut environment));
    read.is_ok() && environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(pid: i32, parent: i32, group: i32, session: i32) -> Seen {
        Seen { pid, parent, group, session, in_front: -1, began: 5, is_dead: false }
    }

    #[test]
    fn a_name_can_t_shift_the_numbers() {
        let stat = b"42 (a) Z 9 9 (\xff) S 7 40 39 34816 41 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 1000";
        let found = parse(42, stat).unwrap();
        let wanted = Seen { pid: 42, parent: 7, group: 40, session: 39, in_front: 41, began: 12345, is_dead: false };
        assert_eq!(found, wanted);
        assert!(parse(1, b"1 (x").is_none() && parse(1, b"1 (x) S 1").is_none());
    }

    #[test]
    fn relatives_by_every_way_and_nobody_else() {
        let (root, hands) = (10, 2);
        let mut dead = seen(16, 10, 10, 2);
        dead.is_dead = true;
        let all = [
            (seen(1, 0, 1, 1), false),
            (seen(hands, 1, 1, 1), false),
            (seen(root, hands, root, 2), true),
            (seen(11, root, 11, 11), false), // a session of its own, its parent alive
            (seen(12, 11, 11, 11), false),
            (seen(13, 1, 13, 13), true),   // an orphan with the mark
            (seen(14, 13, 14, 14), false), // what that one started
            (seen(15, 1, root, 2), false), // an orphan without it, still in the group
            (dead, true),
            (seen(20, hands, 20, 2), false), // another command
            (seen(21, 20, 20, 2), false),
            (seen(22, 1, 22, 22), false), // what yet another one left behind
        ];
        let found: Vec<i32> = belonging(&all, root, hands).iter().map(|seen| seen.pid).collect();
        assert_eq!(found, [10, 11, 12, 13, 14, 15]);
    }
}
