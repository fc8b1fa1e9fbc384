//! Packs and unpacks directory trees as tar. The worker uses it inside a sandbox, the command line outside.
//!
//! A tar from a sandbox is hostile. `entries` reads it with a bound on every field, and `unpack` writes it below one
//! directory: it opens every path component from its open parent directory and follows no link. `pack` reads a tree that
//! may change meanwhile.

mod entries;
mod error;
mod pack;
mod path;
#[cfg(test)]
mod tests;
mod unpack;

pub use entries::{EntryKind, TarEntry, TarReader};
pub use error::Error;
pub use pack::{PackSummary, pack_file, pack_paths, pack_tree};
pub use path::display_path;
pub use unpack::{SkippedEntry, SymlinkPolicy, UnpackSummary, unpack_tree};

/// Size of read and write buffers.
pub const CHUNK_BYTES: usize = 256 * 1024;
/// Block size of the tar format.
const BLOCK_BYTES: usize = 512;
/// Key of the pax record, at the end of a tar, that counts the omitted entries.
const OMITTED_COUNT_KEY: &str = "ATOLL.left_out";
