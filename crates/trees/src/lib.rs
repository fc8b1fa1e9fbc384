//! Trees of files as tar, in both directions. The worker uses it inside a sandbox, the command line outside.
//!
//! A tar that comes out of a sandbox is hostile. `entries` reads it with bounds on everything that it says of itself,
//! and `unpack` puts it below one directory that it can't leave: every step of every path is taken from an open
//! directory and follows no link. `pack` is the other way, over a tree that may change while it is read.

mod entries;
mod error;
mod pack;
mod path;
#[cfg(test)]
mod tests;
mod unpack;

pub use entries::{Entries, Entry, Kind};
pub use error::Error;
pub use pack::{Packed, pack, pack_file};
pub use path::shown;
pub use unpack::{Links, Skipped, Tally, unpack};

/// What is read and written at once.
pub const CHUNK: usize = 256 * 1024;
/// The size of everything in a tar is a multiple of it.
const BLOCK: usize = 512;
/// The name under which a tar says, at its end, how many entries are not in it.
const LEFT_OUT: &str = "ATOLL.left_out";
