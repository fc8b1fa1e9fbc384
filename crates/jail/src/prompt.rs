//! Being scheduled soon, for the processes that stand between a person and an agent.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The share of the processor stays what it was; it is only given in smaller pieces, and so sooner.
const SLICE_NANOSECONDS: u64 = 100_000;

/// What nobody waits for goes on with a tenth of what others get, where they want it.
const PATIENCE: i32 = 10;

/// What the processes get that the calling one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heirs {
    /// The same: also its threads.
    Same,
    /// What everybody has.
    Ordinary,
}

/// Lets the calling thread be chosen soon after it wakes, also where others keep all processors busy: the scheduler
/// lets short slices go before long ones. An older kernel knows no such wish and leaves all as it was.
pub fn prompt(heirs: Heirs) {
    wish(|attributes| {
        attributes.sched_runtime = SLICE_NANOSECONDS;
        attributes.sched_flags = match heirs {
            Heirs::Same => 0,
            Heirs::Ordinary => libc::SCHED_FLAG_RESET_ON_FORK as u64,
        };
    });
}

/// Lets the calling thread, and what it starts, give way to all others: for work that nobody waits for.
pub(crate) fn give_way() {
    wish(|attributes| {
        attributes.sched_nice = attributes.sched_nice.max(PATIENCE);
        attributes.sched_runtime = 0;
    });
}

fn wish(change: impl FnOnce(&mut libc::sched_attr)) {
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the kernel writes at most `size` bytes into the structure.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0) };
    if known != 0 {
        return;
    }
    // SAFETY: integers only, zeroed before and filled by the kernel.
    let mut attributes = unsafe { attributes.assume_init() };
    attributes.size = size;
    change(&mut attributes);
    // SAFETY: the kernel reads `size` bytes of an initialised structure. A refusal changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Lets what a command starts be prompt from its first moment; what that starts in its turn is ordinary. It is said by
/// the new process itself: said from outside it may come too late, after that has started others.
pub fn prompt_child(command: &mut Command) -> &mut Command {
    let start = || {
        prompt(Heirs::Ordinary);
        Ok(())
    };
    // SAFETY: between fork and exec it makes system calls only; it neither allocates nor locks.
    unsafe { command.pre_exec(start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the kernel's own account, where it gives one; wishes are heard since 6.12.
    #[test]
    fn a_child_is_prompt_and_what_it_starts_is_not() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let version: Vec<u32> = release.split('.').take(2).filter_map(|part| part.parse().ok()).collect();
        if version < vec![6, 12] || !std::path::Path::new("/proc/self/sched").exists() {
            println!("skipped: Linux {} takes no wishes for slices, or tells of none", release.trim());
            return;
        }
        // The first line is the shell's own, the second that of a program which it starts.
        let script = "grep se.slice /proc/$$/sched; grep se.slice /proc/self/sched; true";
        let slices = |command: &mut Command| -> Vec<u64> {
            let told = command.args(["-c", script]).output().unwrap().stdout;
            let told = String::from_utf8(told).unwrap();
            told.lines().filter_map(|line| line.split_whitespace().last()?.parse().ok()).collect()
        };
        let ordinary = slices(&mut Command::new("sh"))[1];
        assert_ne!(ordinary, SLICE_NANOSECONDS);
        assert_eq!(slices(prompt_child(&mut Command::new("sh"))), [SLICE_NANOSECONDS, ordinary]);
    }

    #[test]
    fn what_gives_way_is_no_longer_prompt() {
        let worth = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse::<i32>().unwrap()
        };
        let gave_way = move || {
            prompt(Heirs::Same);
            let before = worth();
            give_way();
            let mut slice = 0;
            wish(|attributes| slice = attributes.sched_runtime);
            (before, worth(), slice)
        };
        // On a thread of its own: there is no way back for everybody.
        let (before, after, slice) = std::thread::spawn(gave_way).join().unwrap();
        assert_eq!(after, PATIENCE.max(before));
        assert_ne!(slice, SLICE_NANOSECONDS);
    }
}
