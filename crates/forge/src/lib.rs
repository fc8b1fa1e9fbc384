//! Git on the host: what goes from a user's repository into a sandbox, and what comes out of one.
//!
//! A workspace is hostile, so nothing here ever reads one. Git in a sandbox packs the result; here
//! it is a file of bytes that is indexed strictly in a quarantine (`quarantine`), looked through,
//! and only then taken into the user's repository, as a new branch and nothing else (`take`).
//!
//! What is deliberately absent: no network, no shell, no hook, no filter, no configuration but the
//! repository's own, and no command of git that would act on it (`git` is the one place that
//! starts it). Everything blocks; every run of git is bounded in time and output.
//!
//! `plumbing` is the part that git inside a sandbox needs as well, where the worker runs it.

mod author;
mod branch;
mod discover;
mod error;
mod flagged;
mod git;
pub mod plumbing;
mod quarantine;
mod repository;
mod source;
mod take;

pub use author::Author;
pub use branch::{branch_name, is_name};
pub use error::Error;
pub use plumbing::changes::{Change, FileChange};
pub use repository::{Bounds, Head, Repository};
pub use take::{Note, Outcome, Taken};
