//! Registers file descriptors with the runtime.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers an owned descriptor.
///
/// The replacement of `with_interest` is `unsafe` because a type may lie about its descriptor; `OwnedFd` cannot.
#[expect(deprecated, reason = "sound for an owned descriptor that is not replaced")]
pub fn register(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}
