//! The seccomp filter of everything in a sandbox.
//!
//! An allow-list like that of container engines: unknown calls fail with `ENOSYS`, so that programs fall back as on an
//! older kernel, and dangerous ones with `EPERM`.

mod bpf;
mod syscalls;

use std::collections::BTreeMap;

use seccompiler::{BpfProgram, apply_filter};

use crate::error::Errno;
use bpf::{ArgumentCheck, SyscallVerdict};

/// A compiled filter.
pub(crate) struct Filter {
    program: BpfProgram,
}

impl Filter {
    /// Compiles the filter once. Installing takes time in proportion to its size, so it must stay small.
    pub fn new() -> Self {
        Self { program: bpf::assemble(&build_rules()) }
    }

    /// Installs the filter in this process and its future children, irrevocably.
    pub fn install(&self) -> Result<(), Errno> {
        apply_filter(&self.program).map_err(|error| match error {
            seccompiler::Error::Prctl(source) | seccompiler::Error::Seccomp(source) => source.into(),
            _ => Errno(libc::EINVAL),
        })
    }
}

fn build_rules() -> BTreeMap<u32, SyscallVerdict> {
    let number = |call: &libc::c_long| u32::try_from(*call).ok();
    let mut rules = BTreeMap::new();
    let allowed = syscalls::ALLOWED.iter().chain(syscalls::ALLOWED_ARCH);
    let forbidden = syscalls::FORBIDDEN.iter().chain(syscalls::FORBIDDEN_ARCH);
    rules.extend(allowed.filter_map(number).map(|call| (call, SyscallVerdict::Allow)));
    rules.extend(forbidden.filter_map(number).map(|call| (call, SyscallVerdict::Errno(libc::EPERM))));
    rules.extend(
        argument_checks().into_iter().filter_map(|(call, check)| Some((number(&call)?, SyscallVerdict::Check(check)))),
    );
    rules
}

/// Calls whose arguments are checked.
fn argument_checks() -> [(libc::c_long, ArgumentCheck); 5] {
    let namespaces = libc::CLONE_NEWUSER
        | libc::CLONE_NEWNS
        | libc::CLONE_NEWPID
        | libc::CLONE_NEWNET
        | libc::CLONE_NEWIPC
        | libc::CLONE_NEWUTS
        | libc::CLONE_NEWCGROUP;
    let families = vec![libc::AF_UNIX, libc::AF_INET, libc::AF_INET6];
    [
        (libc::SYS_clone, ArgumentCheck::NoneOf { argument: 0, bits: namespaces.cast_unsigned(), errno: libc::EPERM }),
        (libc::SYS_socket, ArgumentCheck::only_values(0, families, libc::EAFNOSUPPORT)),
        (libc::SYS_socketpair, ArgumentCheck::only_values(0, vec![libc::AF_UNIX], libc::EAFNOSUPPORT)),
        (
            libc::SYS_ioctl,
            ArgumentCheck::IoctlRequests {
                argument: 1,
                forbidden: syscalls::FORBIDDEN_IOCTLS.to_vec(),
                family: syscalls::BTRFS_IOCTL_FAMILY,
                exceptions: syscalls::CLONE_IOCTLS.to_vec(),
            },
        ),
        (
            libc::SYS_personality,
            ArgumentCheck::Only { argument: 0, values: syscalls::PERSONALITIES.to_vec(), errno: libc::EPERM },
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use bpf::interpret;

    fn verdict(call: libc::c_long, arguments: &[u64]) -> u32 {
        let mut all = [0; 6];
        all[..arguments.len()].copy_from_slice(arguments);
        interpret(&Filter::new().program, bpf::ARCHITECTURE, u32::try_from(call).unwrap(), all)
    }

    const ALLOW: u32 = libc::SECCOMP_RET_ALLOW;
    const fn errno(number: i32) -> u32 {
        libc::SECCOMP_RET_ERRNO | number.cast_unsigned()
    }

    #[test]
    fn the_program_implements_every_rule_and_rejects_the_rest() {
        let rules = build_rules();
        let program = Filter::new().program;
        for call in (0..600).chain([0x4000_0000, 0x4000_0001, u32::MAX]) {
            let returned = interpret(&program, bpf::ARCHITECTURE, call, [0; 6]);
            match rules.get(&call) {
                Some(SyscallVerdict::Allow) => assert_eq!(returned, ALLOW, "{call}"),
                Some(SyscallVerdict::Errno(number)) => assert_eq!(returned, errno(*number), "{call}"),
                Some(SyscallVerdict::Check(_)) => {}
                None => assert_eq!(returned, errno(libc::ENOSYS), "{call}"),
            }
        }
    }

    #[test]
    fn no_call_is_in_two_lists() {
        let lists = [syscalls::ALLOWED, syscalls::ALLOWED_ARCH, syscalls::FORBIDDEN, syscalls::FORBIDDEN_ARCH];
        let mut all: Vec<_> = lists.concat();
        all.extend(argument_checks().map(|(call, _)| call));
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }

    #[test]
    fn checks_arguments() {
        assert_eq!(verdict(libc::SYS_clone, &[libc::SIGCHLD as u64]), ALLOW);
        assert_eq!(verdict(libc::SYS_clone, &[libc::CLONE_NEWUSER as u64]), errno(libc::EPERM));
        assert_eq!(verdict(libc::SYS_clone, &[(libc::CLONE_VM | libc::CLONE_NEWNET) as u64]), errno(libc::EPERM));
        assert_eq!(verdict(libc::SYS_clone3, &[]), errno(libc::ENOSYS));
        assert_eq!(verdict(libc::SYS_io_setup, &[]), errno(libc::ENOSYS));
        for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
            assert_eq!(verdict(libc::SYS_socket, &[family as u64]), ALLOW);
        }
        for family in [libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG, 0] {
            assert_eq!(verdict(libc::SYS_socket, &[family as u64]), errno(libc::EAFNOSUPPORT));
        }
        // The kernel uses 32 bits of an ioctl number; so must the filter.
        for high in [0_u64, 1 << 32] {
            assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x5412 | high]), errno(libc::EPERM));
            assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x541c | high]), errno(libc::EPERM));
        }
        assert_eq!(verdict(libc::SYS_ioctl, &[0, 0x5413]), ALLOW);
        // Creating, snapshotting and deleting subvolumes, which would escape the quota.
        for request in [0x5000_940e_u64, 0x5000_9401, 0x5000_9417, 0x5000_9418, 0x5000_940f, 0x5000_943f] {
            assert_eq!(verdict(libc::SYS_ioctl, &[0, request]), errno(libc::ENOTTY), "{request:x}");
        }
        for request in [0x4004_9409_u64, 0x4020_940d, 0xc018_9436] {
            assert_eq!(verdict(libc::SYS_ioctl, &[0, request]), ALLOW, "cp uses it: {request:x}");
        }
        assert_eq!(verdict(libc::SYS_personality, &[0xffff_ffff]), ALLOW);
        assert_eq!(verdict(libc::SYS_personality, &[0x0040_0000]), errno(libc::EPERM));
    }

    #[test]
    fn kills_calls_of_another_architecture() {
        let returned = interpret(&Filter::new().program, 0x4000_0003, 1, [0; 6]);
        assert_eq!(returned, libc::SECCOMP_RET_KILL_PROCESS);
    }

    #[test]
    fn the_program_stays_small() {
        assert!(Filter::new().program.len() < 400, "{}", Filter::new().program.len());
    }
}
