//! Being scheduled soon, for the processes that stand between a person and an agent.

#![allow(unsafe_code)]

use std::mem::{MaybeUninit, size_of};

/// The share of the processor stays what it was; it is only given in smaller pieces, and so sooner.
const SLICE_NANOSECONDS: u64 = 100_000;

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
    ask(0, heirs);
}

/// The same for a process of the same user, as far as it runs by itself; what it starts is ordinary again.
pub fn prompt_alone(process: i32) {
    ask(process, Heirs::Ordinary);
}

fn ask(process: libc::pid_t, heirs: Heirs) {
    let mut wish = MaybeUninit::<libc::sched_attr>::zeroed();
    let size = size_of::<libc::sched_attr>() as libc::c_uint;
    // SAFETY: the kernel writes at most `size` bytes into the structure.
    let known = unsafe { libc::syscall(libc::SYS_sched_getattr, process, wish.as_mut_ptr(), size, 0) };
    if known != 0 {
        return;
    }
    // SAFETY: integers only, zeroed before and filled by the kernel.
    let mut wish = unsafe { wish.assume_init() };
    wish.size = size;
    wish.sched_runtime = SLICE_NANOSECONDS;
    wish.sched_flags = match heirs {
        Heirs::Same => 0,
        Heirs::Ordinary => libc::SCHED_FLAG_RESET_ON_FORK as u64,
    };
    // SAFETY: the kernel reads `size` bytes of an initialised structure. A refusal changes nothing.
    unsafe { libc::syscall(libc::SYS_sched_setattr, process, &raw const wish, 0) };
}
