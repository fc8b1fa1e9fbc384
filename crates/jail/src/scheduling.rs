//! Scheduling: short time slices for latency-sensitive processes, low priority for background work.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Short slices keep the CPU share and reduce latency.
const SLICE_NANOSECONDS: u64 = 100_000;

/// Nice value of background work: about a tenth of the normal CPU share under contention.
const BACKGROUND_NICE: i32 = 10;

/// Scheduling of the calling thread's children.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SliceInheritance {
    /// Children and threads get short slices too.
    Inherit,
    /// Children get default slices.
    Reset,
}

/// Requests short time slices for the calling thread: it is scheduled soon after it wakes, even on busy CPUs.
///
/// Kernels before 6.12 ignore it.
pub fn request_short_slices(inheritance: SliceInheritance) {
    change_sched_attributes(|attributes| {
        attributes.sched_runtime = SLICE_NANOSECONDS;
        attributes.sched_flags = match inheritance {
            SliceInheritance::Inherit => 0,
            SliceInheritance::Reset => libc::SCHED_FLAG_RESET_ON_FORK as u64,
        };
    });
}

/// Lowers the priority of the calling thread and its children, for background work.
pub(crate) fn lower_priority() {
    change_sched_attributes(|attributes| {
        attributes.sched_nice = attributes.sched_nice.max(BACKGROUND_NICE);
        attributes.sched_runtime = 0;
    });
}

fn change_sched_attributes(change: impl FnOnce(&mut libc::sched_attr)) {
    let mut attributes = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the kernel writes at most `size` bytes into the structure.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), size, 0) };
    if known != 0 {
        return;
    }
    // SAFETY: the structure has only integers; it was zeroed and filled by the kernel.
    let mut attributes = unsafe { attributes.assume_init() };
    attributes.size = size;
    change(&mut attributes);
    // SAFETY: the kernel reads `size` bytes of an initialised structure. A refusal changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
}

/// Makes a command start with short slices and its children with default ones.
///
/// The child requests them itself before exec: from outside it could be too late, after it has started others.
pub fn request_short_slices_for(command: &mut Command) -> &mut Command {
    let start = || {
        request_short_slices(SliceInheritance::Reset);
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it neither allocates nor locks.
    unsafe { command.pre_exec(start) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the slice from `/proc/<pid>/sched`; needs Linux 6.12.
    #[test]
    fn a_child_has_short_slices_and_its_children_do_not() {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
        let version: Vec<u32> = release.split('.').take(2).filter_map(|part| part.parse().ok()).collect();
        if version < vec![6, 12] || !std::path::Path::new("/proc/self/sched").exists() {
            println!("skipped: Linux {} takes no wishes for slices, or tells of none", release.trim());
            return;
        }
        // The first line is the shell's own slice, the second that of its child.
        let script = "grep se.slice /proc/$$/sched; grep se.slice /proc/self/sched; true";
        let slices = |command: &mut Command| -> Vec<u64> {
            let output = command.args(["-c", script]).output().unwrap().stdout;
            let output = String::from_utf8(output).unwrap();
            output.lines().filter_map(|line| line.split_whitespace().last()?.parse().ok()).collect()
        };
        let ordinary = slices(&mut Command::new("sh"))[1];
        assert_ne!(ordinary, SLICE_NANOSECONDS);
        assert_eq!(slices(request_short_slices_for(&mut Command::new("sh"))), [SLICE_NANOSECONDS, ordinary]);
    }

    #[test]
    fn lower_priority_resets_short_slices() {
        let nice_value = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            stat.rsplit(')').next().unwrap().split_whitespace().nth(16).unwrap().parse::<i32>().unwrap()
        };
        let lower_and_read = move || {
            request_short_slices(SliceInheritance::Inherit);
            let before = nice_value();
            lower_priority();
            let mut slice = 0;
            change_sched_attributes(|attributes| slice = attributes.sched_runtime);
            (before, nice_value(), slice)
        };
        // In a thread of its own: a thread cannot raise its priority again.
        let (before, after, slice) = std::thread::spawn(lower_and_read).join().unwrap();
        assert_eq!(after, BACKGROUND_NICE.max(before));
        assert_ne!(slice, SLICE_NANOSECONDS);
    }
}
