//! Refusals of a push by the remote repository.

use std::fmt;

/// Why a remote repository did not take a push.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushRefusal {
    /// The branch is not where the caller expected it.
    BranchMoved,
    /// The branch has commits that the push lacks.
    NotFastForward,
    /// A rule or hook of the server declined it.
    Declined {
        detail: String,
    },
    DeletionProhibited,
    Other {
        detail: String,
    },
}

impl fmt::Display for PushRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BranchMoved => f.write_str("the branch was created or moved meanwhile; fetch it and try again"),
            Self::NotFastForward => f.write_str("the branch has newer commits; fetch them and rebase"),
            Self::Declined { detail } => {
                write!(f, "a rule of the server declined it ({detail}); change the commits or the rule")
            }
            Self::DeletionProhibited => f.write_str("the server does not let the branch be deleted; delete it there"),
            Self::Other { detail } => f.write_str(detail),
        }
    }
}
