//! Descriptors that are no stream, for the runtime to wait for.

use std::io;
use std::os::fd::OwnedFd;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The runtime's own way asks for `unsafe` by now, since a type could lie about the descriptor that it owns. This one
/// can't, and nobody takes it out again.
#[expect(deprecated, reason = "sound for a descriptor that is owned and stays where it is")]
pub fn of(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, interest)
}
