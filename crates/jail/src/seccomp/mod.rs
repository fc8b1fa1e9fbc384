//! The filter of system calls that everything inside runs under.
//!
//! An allow-list as container engines have: what isn't known to be needed doesn't exist (`ENOSYS`, so that programs
//! fall back as on an older kernel), and what is known to be dangerous is forbidden (`EPERM`).

mod calls;
mod program;

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, apply_filter};

use crate::error::Errno;
use program::{Check, Verdict};

/// A filter, ready to be installed.
pub(crate) struct Filter {
    program: BpfProgram,
}

impl Filter {
    /// Built once; installing costs the kernel time in proportion to the program, so it is kept small.
    pub fn new() -> Self {
        Self { program: program::assemble(&rules()) }
    }

    /// Binds this process, and all it will start, for ever.
    pub fn install(&self) -> Result<(), Errno> {
        apply_filter(&self.program).map_err(|error| match error {
            seccompiler::Error::Prctl(source) | seccompiler::Error::Seccomp(source) => source.into(),
            _ => Errno(libc::EINVAL),
        })
    }
}

fn rules() -> BTreeMap<u32, Verdict> {
    let number = |call: &libc::c_long| u32::try_from(*call).ok();
    let mut rules = BTreeMap::new();
    let allowed = calls::ALLOWED.iter().chain(calls::ALLOWED_HERE);
    let forbidden = calls::FORBIDDEN.iter().chain(calls::FORBIDDEN_HERE);
    rules.extend(allowed.filter_map(number).map(|call| (call, Verdict::Allow)));
    rules.extend(forbidden.filter_map(number).map(|call| (call, Verdict::Errno(libc::EPERM))));
    rules.extend(checked().into_iter().filter_map(|(call, check)| Some((number(&call)?, Verdict::Check(check)))));
    rules
}

/// Calls that depend on an argument.
fn checked() -> [(libc::c_long, Check); 5] {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let families = vec![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    [
        (libc::SYS_clone, Check::NoneOf { argument: 0, bits: namespaces.cast_unsigned(), errno: libc::EPERM }),
        (libc::SYS_socket, Check::only(0, families, libc::EAFNOSUPPORT)),
        (libc::SYS_socketpair, Check::only(0, vec![libc::AF_UNIX], libc::EAFNOSUPPORT)),
        (
            libc::SYS_ioctl,
            Check::Requests {
                argument: 1,
                forbidden: calls::FORBIDDEN_IOCTLS.to_vec(),
                family: calls::VOLUMES,
                but: calls::CLONING.to_vec(),
            },
        ),
        (libc::SYS_personality, Check::Only { argument: 0, values: calls::PERSONALITIES.to_vec(), errno: libc::EPERM }),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use program::interpret;

    fn verdict(call: libc::c_long, arguments: &[u64]) -> u32 {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        interpret(&Filter::new().program, program::ARCHITECTURE, u32::try_from(call).unwrap(), all)
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const fn errno(number: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | number.cast_unsigned()
    }

    #[test]
    fn every_rule_is_what_the_program_says_and_the_rest_does_not_exist() {
        let rules = rules();
        let program = Filter::new().program;
        for call in (0..600).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
            let said = interpret(&program, program::ARCHITECTURE, call, [0; 6]);
            match rules.get(&call) {
                Some(Verdict::Allow) => assert_eq!(said, ALLOW, "{call}"),
                Some(Verdict::Errno(number)) => assert_eq!(said, errno(*number), "{call}"),
                Some(Verdict::Check(_)) => {}
                None => assert_eq!(said, errno(libc::ENOSYS), "{call}"),
            }
        }
    }

    #[test]
    fn the_lists_do_not_contradict_each_other() {
        let lists = [calls::ALLOWED, calls::ALLOWED_HERE, calls::FORBIDDEN, calls::FORBIDDEN_HERE];
        let mut all: Vec<_> = lists.concat();
        all.extend(checked().map(|(call, _)| call));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn arguments_count_where_they_must() {
        assert_eq!(verdict(libc::SYS_clone, &[libc::SIGCHLD as u64]), ALLOW);
        assert_eq!(verdict(libc::SYS_clone, &[libc::CLONE_NEWUSER as u64]), errno(libc::EPERM));
        assert_eq!(verdict(libc::SYS_clone, &[(libc::CLONE_VM | libc::CLONE_NEWNET) as u64]), errno(libc::EPERM));
        assert_eq!(verdict(libc::SYS_clone3, &[]), errno(libc::ENOSYS));
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            assert_eq!(verdict(libc::SYS_socket, &[family as u64]), ALLOW);
        }
        for family in [libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, 0] {
            assert_eq!(verdict(libc::SYS_socket, &[family as u64]), errno(libc::EAFNOSUPPORT));
        }
        // The kernel looks at 32 bits of an ioctl's number; so must the filter.
        for high in [0_u64, 1 << 32] {
            assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x5412 | high]), errno(libc::EPERM));
            assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x541c | high]), errno(libc::EPERM));
        }
        assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x5413]), ALLOW);
        // A volume that somebody inside makes would have no bound. To make one, to copy one, to destroy one.
        for request in [0x5000_940e_u64, 0x5000_9401, 0x5000_9417, 0x5000_9418, 0x5000_940f, 0x5000_943f] {
            assert_eq!(verdict(libc::SYS_ioctl, &[0, request]), errno(libc::ENOTTY), "{request:x}");
        }
        for request in [0x4004_9409_u64, 0x4020_940d, 0xc018_9436] {
            assert_eq!(verdict(libc::SYS_ioctl, &[0, request]), ALLOW, "cp makes use of it: {request:x}");
        }
        assert_eq!(verdict(libc::SYS_personality, &[0xffff_ffff]), ALLOW);
        assert_eq!(verdict(libc::SYS_personality, &[0x0040_0000]), errno(libc::EPERM));
    }

    #[test]
    fn another_architecture_is_killed() {
        let said = interpret(&Filter::new().program, 0x4000_0003, 1, [0; 6]);
        assert_eq!(said, libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn the_program_stays_small() {
        assert!(Filter::new().program.len() < 400, "{}", Filter::new().program.len());
    }
}
