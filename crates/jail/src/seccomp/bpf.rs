//! Compiles verdicts to a BPF program: a binary search over ranges of call numbers.
//!
//! The kernel evaluates every call number when it installs a filter, so a linear chain would add a third of a
//! millisecond to each start of a sandbox.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum SyscallVerdict {
    Allow,
    Errno(i32),
    Check(ArgumentCheck),
}

/// A check of the lower 32 bits of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ArgumentCheck {
    /// Allows only these values.
    Only { argument: u32, values: Vec<u32>, errno: i32 },
    /// Forbids these values and a family of ioctls with some exceptions.
    IoctlRequests { argument: u32, forbidden: Vec<u32>, family: u32, exceptions: Vec<u32> },
    /// Forbids these bits.
    NoneOf { argument: u32, bits: u32, errno: i32 },
}

impl ArgumentCheck {
    pub fn only_values(argument: u32, values: Vec<i32>, errno: i32) -> Self {
        Self::Only { argument, values: values.into_iter().map(i32::cast_unsigned).collect(), errno }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in the kernel's `struct seccomp_data`.
const SYSCALL_OFFSET: u32 = 0;
const ARCHITECTURE_OFFSET: u32 = 4;
const fn argument_offset(argument: u32) -> u32 {
    let low_half = if cfg!(target_endian = "big") { 4 } else { 0 };
    16 + 8 * argument + low_half
}

const LOAD: u16 = 0x20;
const JUMP: u16 = 0x05;
const IF_EQUAL: u16 = 0x15;
const IF_AT_LEAST: u16 = 0x35;
const IF_ANY_BIT: u16 = 0x45;
const AND: u16 = 0x54;
const RETURN: u16 = 0x06;

/// The byte of an ioctl number that names its family.
const FAMILY_MASK: u32 = 0xff00;

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn return_value(value: u32) -> sock_filter {
    instruction(RETURN, 0, 0, value)
}

fn return_errno(number: i32) -> sock_filter {
    return_value(libc::SECCOMP_RET_ERRNO | number.cast_unsigned())
}

/// Compiles the rules; a call without a rule fails with `ENOSYS`.
pub(super) fn assemble(rules: &BTreeMap<u32, SyscallVerdict>) -> BpfProgram {
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE_OFFSET),
        instruction(IF_EQUAL, 1, 0, ARCHITECTURE),
        return_value(libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, 0, 0, SYSCALL_OFFSET),
    ];
    program.extend(emit_tree(&build_segments(rules)));
    program
}

/// Splits the call numbers into ranges with equal verdicts: start and verdict of each.
fn build_segments(rules: &BTreeMap<u32, SyscallVerdict>) -> Vec<(u32, SyscallVerdict)> {
    let unknown = SyscallVerdict::Errno(libc::ENOSYS);
    let mut segments: Vec<(u32, SyscallVerdict)> = Vec::new();
    let mut add = |from: u32, verdict: &SyscallVerdict| {
        if segments.last().is_none_or(|(_, last)| last != verdict) {
            segments.push((from, verdict.clone()));
        }
    };
    let mut next = 0;
    for (call, verdict) in rules {
        if *call > next {
            add(next, &unknown);
        }
        add(*call, verdict);
        next = call.saturating_add(1);
    }
    add(next, &unknown);
    segments
}

fn emit_tree(segments: &[(u32, SyscallVerdict)]) -> BpfProgram {
    match segments {
        [] => vec![return_errno(libc::ENOSYS)],
        [(_, verdict)] => emit_leaf(verdict),
        _ => {
            let (low, high) = segments.split_at(segments.len() / 2);
            let (low, border, high) = (emit_tree(low), high[0].0, emit_tree(high));
            let mut program = match u8::try_from(low.len()) {
                Ok(offset) => vec![instruction(IF_AT_LEAST, offset, 0, border)],
                Err(_) => {
                    let offset = u32::try_from(low.len()).unwrap_or(u32::MAX);
                    vec![instruction(IF_AT_LEAST, 0, 1, border), instruction(JUMP, 0, 0, offset)]
                }
            };
            program.extend(low);
            program.extend(high);
            program
        }
    }
}

fn emit_leaf(rule: &SyscallVerdict) -> BpfProgram {
    let allow = return_value(libc::SECCOMP_RET_ALLOW);
    match rule {
        SyscallVerdict::Allow => vec![allow],
        SyscallVerdict::Errno(number) => vec![return_errno(*number)],
        SyscallVerdict::Check(ArgumentCheck::NoneOf { argument, bits, errno: number }) => vec![
            instruction(LOAD, 0, 0, argument_offset(*argument)),
            instruction(IF_ANY_BIT, 0, 1, *bits),
            return_errno(*number),
            allow,
        ],
        SyscallVerdict::Check(ArgumentCheck::IoctlRequests { argument, forbidden, family, exceptions: but }) => {
            emit_ioctl_check(*argument, forbidden, *family, but, allow)
        }
        SyscallVerdict::Check(ArgumentCheck::Only { argument, values, errno: number }) => {
            emit_value_check(*argument, values, return_errno(*number), allow)
        }
    }
}

/// Returns `hit` if the argument is one of the values, else `otherwise`.
fn emit_value_check(argument: u32, values: &[u32], otherwise: sock_filter, hit: sock_filter) -> BpfProgram {
    let mut program = vec![instruction(LOAD, 0, 0, argument_offset(argument))];
    for (index, value) in values.iter().enumerate() {
        let offset = u8::try_from(values.len() - index).unwrap_or(u8::MAX);
        program.push(instruction(IF_EQUAL, offset, 0, *value));
    }
    program.extend([otherwise, hit]);
    program
}

/// Forbidden requests fail with `EPERM`, the family's other requests with `ENOTTY`, except some.
fn emit_ioctl_check(argument: u32, forbidden: &[u32], family: u32, but: &[u32], allow: sock_filter) -> BpfProgram {
    let offset = |instructions: usize| u8::try_from(instructions).unwrap_or(u8::MAX);
    let mut program = vec![instruction(LOAD, 0, 0, argument_offset(argument))];
    for (index, value) in forbidden.iter().enumerate() {
        program.push(instruction(IF_EQUAL, offset(forbidden.len() - index + but.len() + 2), 0, *value));
    }
    for (index, value) in but.iter().enumerate() {
        program.push(instruction(IF_EQUAL, offset(but.len() - index + 1), 0, *value));
    }
    program.extend([instruction(AND, 0, 0, FAMILY_MASK), instruction(IF_EQUAL, 2, 0, family)]);
    program.extend([allow, return_errno(libc::EPERM), return_errno(libc::ENOTTY)]);
    program
}

/// Evaluates the program as the kernel would.
#[cfg(test)]
pub(super) fn interpret(program: &[sock_filter], architecture: u32, call: u32, arguments: [u64; 6]) -> u32 {
    let mut data = Vec::new();
    data.extend(call.to_ne_bytes());
    data.extend(architecture.to_ne_bytes());
    data.extend(0_u64.to_ne_bytes());
    data.extend(arguments.iter().flat_map(|argument| argument.to_ne_bytes()));
    let (mut at, mut accumulator) = (0, 0);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let branch = |is_taken| usize::from(if is_taken { jt } else { jf });
        match code {
            LOAD => {
                let offset = k as usize;
                accumulator = u32::from_ne_bytes(data[offset..offset + 4].try_into().unwrap());
            }
            AND => accumulator &= k,
            JUMP => at += k as usize,
            IF_EQUAL => at += branch(accumulator == k),
            IF_AT_LEAST => at += branch(accumulator >= k),
            IF_ANY_BIT => at += branch(accumulator & k != 0),
            RETURN => return k,
            other => panic!("unknown instruction {other:#x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn the_search_tree_finds_each_rule(rules in prop::collection::btree_map(0..2000_u32, 0..3_i32, 0..900)) {
            let verdicts = rules.iter().map(|(call, kind)| {
                (*call, if *kind == 0 { SyscallVerdict::Allow } else { SyscallVerdict::Errno(*kind) })
            }).collect();
            let program = assemble(&verdicts);
            for call in 0..2100 {
                let expected = match rules.get(&call) {
                    Some(0) => libc::SECCOMP_RET_ALLOW,
                    Some(number) => libc::SECCOMP_RET_ERRNO | number.cast_unsigned(),
                    None => libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
                };
                prop_assert_eq!(interpret(&program, ARCHITECTURE, call, [0; 6]), expected);
            }
        }
    }
}
