//! Copies a worktree into a sandbox and back, as git trees.
//!
//! Both sides describe their files as a tree that an index of their own produces (`snapshot`), and send only the objects
//! that the other side lacks (`stream`). The sandbox's side is `workspace`; the host's is `crate::worktree`.
//!
//! A sync commit wraps each tree, so that git can compute merge bases and thin packs. Its author and dates are constant.

mod identity;
mod markers;
mod run_git;
mod snapshot;
mod stream;
mod workspace;

pub use identity::sync_commit_env;
pub use markers::{EMPTY_DIRECTORY_MARKER, is_marker, marked_directory};
pub use run_git::{RunGit, split_records};
pub use snapshot::{Snapshot, list_links, take_snapshot};
pub use stream::{MAX_HEADER_BYTES, SectionReader, SectionWriter, StreamError, SyncHeader};
pub(crate) use workspace::write_if_changed;
pub use workspace::{ReceivedSync, SentSync, WorkspaceCopy, WorkspaceError, WorkspaceGit};
