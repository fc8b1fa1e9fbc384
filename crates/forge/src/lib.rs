//! Git on the host: bundles a user's repository for a sandbox and imports its results.
//!
//! A workspace is hostile, so this crate never reads one. Git in the sandbox packs the result. The host indexes the
//! pack strictly in a quarantine (`quarantine`), inspects it, and then imports it as a new branch (`result_import`).
//!
//! Deliberately absent: hooks, filters and any configuration but the repository's (`git_command` is the only place that
//! starts git), and a network except in `remote`, which fetches and pushes repositories behind a URL. All calls block;
//! every git run has a time and output limit.
//!
//! `plumbing` is shared with the worker, which runs git in the sandbox.

mod author;
mod branch;
mod branch_update;
mod commit_diff;
mod discovery;
mod error;
mod git_command;
mod large_file_list;
pub mod plumbing;
mod quarantine;
pub mod remote;
mod repository;
mod result_import;
mod sensitive_files;
mod setup_files;
mod source_bundle;
mod submodules;
pub mod worktree;

pub use author::Author;
pub use branch::{branch_name, free_branch_name, is_valid_ref_name, ticket_branch_name};
pub use branch_update::{BranchUpdate, MergeConflict, UpdateStrategy};
pub use commit_diff::CommitRange;
pub use error::Error;
pub use plumbing::changes::{ChangeKind, FileChange};
pub use repository::{GitLimits, Head, HostRepository};
pub use result_import::{ImportNote, ImportOutcome, ImportRequest, ImportedResult};
pub use submodules::{Submodule, SubmoduleSource};
