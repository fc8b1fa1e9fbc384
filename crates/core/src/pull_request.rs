//! Pull requests: their state at a forge, and the rule that decides a merge.

use crate::string_enum;
use serde::{Deserialize, Serialize};

string_enum! {
    "pull request state"
    PullRequestState { Open = "open", Merged = "merged", Closed = "closed" }
}

string_enum! {
    "merge method"
    MergeMethod { Squash = "squash", Merge = "merge", Rebase = "rebase" }
}

string_enum! {
    /// The forge's own verdict on a merge.
    "mergeability"
    Mergeability {
        /// The forge would merge it now.
        Clean = "clean",
        /// The forge would merge it, but a check that is not required has not passed.
        Unstable = "unstable",
        Conflicted = "conflicted",
        /// The base has commits that the branch must have first.
        Behind = "behind",
        /// A rule of the forge, such as a missing review, forbids the merge.
        Blocked = "blocked",
        Draft = "draft",
        /// The forge has not decided yet, or says something that this version does not know.
        Unknown = "unknown",
    }
}

string_enum! {
    /// The checks of a pull request's newest commit, together.
    "state of the checks"
    ChecksState {
        /// There are no checks.
        None = "none",
        Pending = "pending",
        Passed = "passed",
        Failed = "failed",
        /// The forge reports something that this version does not know.
        Unknown = "unknown",
    }
}

string_enum! {
    /// The reviews of a pull request, together: the newest verdict of each reviewer.
    "state of the reviews"
    ReviewsState {
        /// No review has a verdict.
        None = "none",
        Approved = "approved",
        ChangesRequested = "changes_requested",
        Unknown = "unknown",
    }
}

/// A pull request at a forge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PullRequestLink {
    pub number: u64,
    /// The page for people.
    pub url: String,
    pub state: PullRequestState,
}

impl PullRequestLink {
    /// True if news about a pull request replaces these. Deliveries come late and in any order: a merge is final, and news
    /// about another pull request count only if it is newer and this one has ended.
    pub const fn is_replaced_by(&self, news: &Self) -> bool {
        if self.number == news.number {
            return !matches!(self.state, PullRequestState::Merged);
        }
        news.number > self.number && !matches!(self.state, PullRequestState::Open)
    }
}

/// The state of a pull request that a merge depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PullRequestStatus {
    pub state: PullRequestState,
    /// The newest commit of the branch at the forge.
    pub head: String,
    pub mergeability: Mergeability,
    pub checks: ChecksState,
    /// Names of the checks that failed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_checks: Vec<String>,
    pub reviews: ReviewsState,
}

/// The decision on a merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "verdict", content = "reason", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum MergeVerdict {
    Allowed,
    AlreadyMerged,
    /// It may become allowed without a change of the branch.
    Wait(String),
    Refused(String),
    /// The branch and its base changed the same lines.
    Conflict,
    /// The branch needs the newest commits of its base.
    Behind,
}

/// Decides a merge. Unknown means wait, never yes.
pub fn decide_merge(status: &PullRequestStatus) -> MergeVerdict {
    match status.state {
        PullRequestState::Merged => return MergeVerdict::AlreadyMerged,
        PullRequestState::Closed => return MergeVerdict::Refused("the pull request is closed".to_owned()),
        PullRequestState::Open => {}
    }
    match status.mergeability {
        Mergeability::Conflicted => return MergeVerdict::Conflict,
        Mergeability::Draft => return MergeVerdict::Refused("the pull request is a draft".to_owned()),
        Mergeability::Clean
        | Mergeability::Unstable
        | Mergeability::Behind
        | Mergeability::Blocked
        | Mergeability::Unknown => {}
    }
    match status.checks {
        ChecksState::Failed => {
            return MergeVerdict::Refused(format!("checks failed: {}", name_checks(&status.failed_checks)));
        }
        ChecksState::Pending => return MergeVerdict::Wait("checks are still running".to_owned()),
        ChecksState::Unknown => return MergeVerdict::Wait("the state of the checks is unknown".to_owned()),
        ChecksState::None | ChecksState::Passed => {}
    }
    match status.reviews {
        ReviewsState::ChangesRequested => {
            return MergeVerdict::Refused("a review requests changes".to_owned());
        }
        ReviewsState::Unknown => return MergeVerdict::Wait("the state of the reviews is unknown".to_owned()),
        ReviewsState::None | ReviewsState::Approved => {}
    }
    match status.mergeability {
        Mergeability::Clean | Mergeability::Unstable => MergeVerdict::Allowed,
        Mergeability::Behind => MergeVerdict::Behind,
        Mergeability::Blocked => {
            MergeVerdict::Wait("the forge's rules do not allow the merge yet, such as a missing review".to_owned())
        }
        Mergeability::Unknown => MergeVerdict::Wait("the forge has not decided yet whether it can merge".to_owned()),
        Mergeability::Conflicted => MergeVerdict::Conflict,
        Mergeability::Draft => MergeVerdict::Refused("the pull request is a draft".to_owned()),
    }
}

const MAX_NAMED_CHECKS: usize = 5;

fn name_checks(names: &[String]) -> String {
    let named: Vec<&str> = names.iter().take(MAX_NAMED_CHECKS).map(String::as_str).collect();
    let more = names.len().saturating_sub(MAX_NAMED_CHECKS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    if named.is_empty() { "unnamed".to_owned() } else { format!("{}{more}", named.join(", ")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(mergeability: Mergeability, checks: ChecksState, reviews: ReviewsState) -> PullRequestStatus {
        let (state, head) = (PullRequestState::Open, "1".to_owned());
        PullRequestStatus { state, head, mergeability, checks, failed_checks: vec!["lint".into()], reviews }
    }

    /// Of all combinations, exactly those merge that nothing forbids and nothing leaves open.
    #[test]
    fn late_news_replace_nothing() {
        use PullRequestState::{Closed, Merged, Open};
        let link = |number, state| PullRequestLink { number, url: String::new(), state };
        for (own, news, expected) in [
            (link(3, Open), link(3, Merged), true),
            (link(3, Open), link(3, Closed), true),
            (link(3, Closed), link(3, Merged), true),
            (link(3, Merged), link(3, Closed), false),
            (link(3, Open), link(4, Open), false),
            (link(3, Closed), link(4, Open), true),
            (link(3, Merged), link(2, Closed), false),
        ] {
            assert_eq!(own.is_replaced_by(&news), expected, "{own:?}, {news:?}");
        }
    }

    #[test]
    fn merges_only_what_checks_and_reviews_allow() {
        for mergeability in Mergeability::ALL {
            for checks in ChecksState::ALL {
                for reviews in ReviewsState::ALL {
                    let is_mergeable = matches!(mergeability, Mergeability::Clean | Mergeability::Unstable);
                    let is_checked = matches!(checks, ChecksState::None | ChecksState::Passed);
                    let is_reviewed = matches!(reviews, ReviewsState::None | ReviewsState::Approved);
                    let verdict = decide_merge(&status(*mergeability, *checks, *reviews));
                    let expected = is_mergeable && is_checked && is_reviewed;
                    assert_eq!(verdict == MergeVerdict::Allowed, expected, "{mergeability} {checks} {reviews}");
                }
            }
        }
    }

    #[test]
    fn unknown_means_wait() {
        let good = status(Mergeability::Clean, ChecksState::Passed, ReviewsState::Approved);
        for unknown in [
            PullRequestStatus { mergeability: Mergeability::Unknown, ..good.clone() },
            PullRequestStatus { checks: ChecksState::Unknown, ..good.clone() },
            PullRequestStatus { reviews: ReviewsState::Unknown, ..good.clone() },
        ] {
            assert!(matches!(decide_merge(&unknown), MergeVerdict::Wait(_)), "{unknown:?}");
        }
        let conflicted = PullRequestStatus { mergeability: Mergeability::Conflicted, ..good.clone() };
        assert_eq!(decide_merge(&conflicted), MergeVerdict::Conflict);
        let merged = PullRequestStatus { state: PullRequestState::Merged, ..conflicted };
        assert_eq!(decide_merge(&merged), MergeVerdict::AlreadyMerged);
        let failed = PullRequestStatus { checks: ChecksState::Failed, ..good };
        assert_eq!(decide_merge(&failed), MergeVerdict::Refused("checks failed: lint".to_owned()));
    }
}
