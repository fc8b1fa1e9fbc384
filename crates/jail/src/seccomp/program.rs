//! Makes a filter program of verdicts: a search tree over ranges of call numbers.
//!
//! The kernel tries every call number when a filter is installed, so a chain of comparisons, one for each call, would
//! cost each start of a sandbox a third of a millisecond more.

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, sock_filter};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    Allow,
    Errno(i32),
    Check(Check),
}

/// A look at the lower half of one argument.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Check {
    /// Allowed with these values.
    Only { argument: u32, values: Vec<u32>, errno: i32 },
    /// Allowed but with these values, and but for a family of requests, of which only some are let through.
    Requests { argument: u32, forbidden: Vec<u32>, family: u32, but: Vec<u32> },
    /// Allowed with none of these bits.
    NoneOf { argument: u32, bits: u32, errno: i32 },
}

impl Check {
    pub fn only(argument: u32, values: Vec<i32>, errno: i32) -> Self {
        Self::Only { argument, values: values.into_iter().map(i32::cast_unsigned).collect(), errno }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: u32 = 0xc000_00b7;

/// Offsets in the kernel's `struct seccomp_data`.
const NUMBER: u32 = 0;
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

/// The byte of a request's number that names its family.
const FAMILY: u32 = 0xff00;

fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

fn verdict(value: u32) -> sock_filter {
    instruction(RETURN, 0, 0, value)
}

fn errno(number: i32) -> sock_filter {
    verdict(libc::SECCOMP_RET_ERRNO | number.cast_unsigned())
}

/// The program for these rules; a call without one doesn't exist.
pub(super) fn assemble(rules: &BTreeMap<u32, Verdict>) -> BpfProgram {
    let mut program = vec![
        instruction(LOAD, 0, 0, ARCHITECTURE_OFFSET),
        instruction(IF_EQUAL, 1, 0, ARCHITECTURE),
        verdict(libc::SECCOMP_RET_KILL_PROCESS),
        instruction(LOAD, 0, 0, NUMBER),
    ];
    program.extend(tree(&segments(rules)));
    program
}

/// The numbers from which on another verdict holds, and that verdict.
fn segments(rules: &BTreeMap<u32, Verdict>) -> Vec<(u32, Verdict)> {
    let unknown = Verdict::Errno(libc::ENOSYS);
    let mut segments: Vec<(u32, Verdict)> = Vec::new();
    let mut add = |from: u32, verdict: &Verdict| {
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

fn tree(segments: &[(u32, Verdict)]) -> BpfProgram {
    match segments {
        [] => vec![errno(libc::ENOSYS)],
        [(_, verdict)] => leaf(verdict),
        _ => {
            let (low, high) = segments.split_at(segments.len() / 2);
            let (low, border, high) = (tree(low), high[0].0, tree(high));
            let mut program = match u8::try_from(low.len()) {
                Ok(over) => vec![instruction(IF_AT_LEAST, over, 0, border)],
                Err(_) => {
                    let over = u32::try_from(low.len()).unwrap_or(u32::MAX);
                    vec![instruction(IF_AT_LEAST, 0, 1, border), instruction(JUMP, 0, 0, over)]
                }
            };
            program.extend(low);
            program.extend(high);
            program
        }
    }
}

fn leaf(rule: &Verdict) -> BpfProgram {
    let allow = verdict(libc::SECCOMP_RET_ALLOW);
    match rule {
        Verdict::Allow => vec![allow],
        Verdict::Errno(number) => vec![errno(*number)],
        Verdict::Check(Check::NoneOf { argument, bits, errno: number }) => vec![
            instruction(LOAD, 0, 0, argument_offset(*argument)),
            instruction(IF_ANY_BIT, 0, 1, *bits),
            errno(*number),
            allow,
        ],
        Verdict::Check(Check::Requests { argument, forbidden, family, but }) => {
            requests(*argument, forbidden, *family, but, allow)
        }
        Verdict::Check(Check::Only { argument, values, errno: number }) => {
            compare(*argument, values, errno(*number), allow)
        }
    }
}

/// `otherwise`, unless the argument is one of the values.
fn compare(argument: u32, values: &[u32], otherwise: sock_filter, hit: sock_filter) -> BpfProgram {
    let mut program = vec![instruction(LOAD, 0, 0, argument_offset(argument))];
    for (index, value) in values.iter().enumerate() {
        let over = u8::try_from(values.len() - index).unwrap_or(u8::MAX);
        program.push(instruction(IF_EQUAL, over, 0, *value));
    }
    program.extend([otherwise, hit]);
    program
}

/// Forbidden ones are refused; others of the family don't exist here (`ENOTTY`), but for some.
fn requests(argument: u32, forbidden: &[u32], family: u32, but: &[u32], allow: sock_filter) -> BpfProgram {
    let over = |instructions: usize| u8::try_from(instructions).unwrap_or(u8::MAX);
    let mut program = vec![instruction(LOAD, 0, 0, argument_offset(argument))];
    for (index, value) in forbidden.iter().enumerate() {
        program.push(instruction(IF_EQUAL, over(forbidden.len() - index + but.len() + 2), 0, *value));
    }
    for (index, value) in but.iter().enumerate() {
        program.push(instruction(IF_EQUAL, over(but.len() - index + 1), 0, *value));
    }
    program.extend([instruction(AND, 0, 0, FAMILY), instruction(IF_EQUAL, 2, 0, family)]);
    program.extend([allow, errno(libc::EPERM), errno(libc::ENOTTY)]);
    program
}

/// What the kernel would make of the program.
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
        let branch = |taken| usize::from(if taken { jt } else { jf });
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
        fn the_tree_finds_each_rule(rules in prop::collection::btree_map(0..2000_u32, 0..3_i32, 0..900)) {
            let verdicts = rules.iter().map(|(call, kind)| {
                (*call, if *kind == 0 { Verdict::Allow } else { Verdict::Errno(*kind) })
            }).collect();
            let program = assemble(&verdicts);
            for call in 0..2100 {
                let wanted = match rules.get(&call) {
                    Some(0) => libc::SECCOMP_RET_ALLOW,
                    Some(number) => libc::SECCOMP_RET_ERRNO | number.cast_unsigned(),
                    None => libc::SECCOMP_RET_ERRNO | libc::ENOSYS.cast_unsigned(),
                };
                prop_assert_eq!(interpret(&program, ARCHITECTURE, call, [0; 6]), wanted);
            }
        }
    }
}
