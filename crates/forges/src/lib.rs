//! Forges: the services that host repositories with pull requests.
//!
//! [`Forge`] is the interface that the branch workflow uses; `github` implements it over GitHub's REST API. Every state
//! that a forge reports becomes a closed enum of `core::pull_request`, in which unknown values mean "wait".
//!
//! Deliberately absent: git (that is `forge`), the store, retries that outlast a request. A rate limit with a long wait is
//! an error with the time, and the caller's job continues later.

mod error;
mod forge;
pub mod github;
pub mod large_files;
pub mod webhook_signature;

pub use error::{Error, Result};
pub use forge::{Forge, MergeOutcome, MergeRequest, NewPullRequest, PullRequest, RepositoryName};
