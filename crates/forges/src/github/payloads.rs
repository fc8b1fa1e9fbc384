//! GitHub's JSON, and its translation to the closed enums of `core::pull_request`.

use crate::forge::PullRequest;
use atoll_core::pull_request::{ChecksState, Mergeability, PullRequestState, ReviewsState};
use serde::Deserialize;
use std::collections::BTreeMap;

#[derive(Debug, Deserialize)]
pub(super) struct RepositoryPayload {
    pub default_branch: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct BranchPayload {
    #[serde(rename = "ref")]
    pub branch: String,
    pub sha: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct PullPayload {
    pub number: u64,
    pub html_url: String,
    pub state: String,
    pub title: String,
    pub head: BranchPayload,
    pub base: BranchPayload,
    /// Lists have only this.
    pub merged_at: Option<String>,
    #[serde(default)]
    pub draft: bool,
    /// `null` while GitHub computes it.
    pub mergeable: Option<bool>,
    pub mergeable_state: Option<String>,
}

impl PullPayload {
    pub fn state(&self) -> PullRequestState {
        match (self.merged_at.is_some(), self.state.as_str()) {
            (true, _) => PullRequestState::Merged,
            (false, "closed") => PullRequestState::Closed,
            (false, _) => PullRequestState::Open,
        }
    }

    pub fn mergeability(&self) -> Mergeability {
        if self.draft {
            return Mergeability::Draft;
        }
        match (self.mergeable, self.mergeable_state.as_deref()) {
            (None, _) => Mergeability::Unknown,
            (_, Some("dirty")) | (Some(false), None | Some("unknown")) => Mergeability::Conflicted,
            (_, Some("draft")) => Mergeability::Draft,
            (_, Some("blocked")) => Mergeability::Blocked,
            (_, Some("behind")) => Mergeability::Behind,
            (Some(true), Some("unstable")) => Mergeability::Unstable,
            (Some(true), Some("clean" | "has_hooks")) => Mergeability::Clean,
            (Some(_), _) => Mergeability::Unknown,
        }
    }

    pub fn into_pull_request(self) -> PullRequest {
        PullRequest {
            state: self.state(),
            number: self.number,
            url: self.html_url,
            title: self.title,
            branch: self.head.branch,
            head: self.head.sha,
            base: self.base.branch,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct MergePayload {
    pub sha: String,
    #[serde(default)]
    pub merged: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct CheckRunsPayload {
    pub total_count: usize,
    pub check_runs: Vec<CheckRunPayload>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CheckRunPayload {
    pub name: String,
    pub status: String,
    pub conclusion: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CombinedStatusPayload {
    pub state: String,
    pub total_count: usize,
    pub statuses: Vec<CommitStatusPayload>,
}

#[derive(Debug, Deserialize)]
pub(super) struct CommitStatusPayload {
    pub context: String,
    pub state: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct ReviewPayload {
    pub user: Option<UserPayload>,
    pub state: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct UserPayload {
    pub login: String,
}

/// Combines check runs and commit statuses. `is_complete` is false if there are more than were read.
pub(super) fn combine_checks(
    runs: &[CheckRunPayload],
    statuses: &CombinedStatusPayload,
    is_complete: bool,
) -> (ChecksState, Vec<String>) {
    let of_run = |run: &CheckRunPayload| match (run.status.as_str(), run.conclusion.as_deref()) {
        ("completed", Some("success" | "neutral" | "skipped")) => ChecksState::Passed,
        (
            "completed",
            Some("failure" | "cancelled" | "timed_out" | "action_required" | "stale" | "startup_failure"),
        ) => ChecksState::Failed,
        ("queued" | "in_progress" | "waiting" | "requested" | "pending", _) => ChecksState::Pending,
        _ => ChecksState::Unknown,
    };
    let mut states: Vec<ChecksState> = runs.iter().map(of_run).collect();
    states.push(match (statuses.total_count, statuses.state.as_str()) {
        // Without statuses GitHub reports `pending`.
        (0, _) => ChecksState::None,
        (_, "success") => ChecksState::Passed,
        (_, "pending") => ChecksState::Pending,
        (_, "failure" | "error") => ChecksState::Failed,
        _ => ChecksState::Unknown,
    });
    if !is_complete {
        states.push(ChecksState::Unknown);
    }
    let failed_runs = runs.iter().filter(|run| of_run(run) == ChecksState::Failed).map(|run| run.name.clone());
    let failed_statuses =
        statuses.statuses.iter().filter(|status| matches!(status.state.as_str(), "failure" | "error"));
    let failed = failed_runs.chain(failed_statuses.map(|status| status.context.clone())).collect();
    // The first that any check has.
    let by_weight = [ChecksState::Failed, ChecksState::Unknown, ChecksState::Pending, ChecksState::Passed];
    let combined = by_weight.into_iter().find(|state| states.contains(state)).unwrap_or(ChecksState::None);
    (combined, failed)
}

/// Combines reviews, which are in the order of their submission.
pub(super) fn combine_reviews(reviews: &[ReviewPayload], is_complete: bool) -> ReviewsState {
    let mut verdicts: BTreeMap<&str, ReviewsState> = BTreeMap::new();
    for review in reviews {
        let reviewer = review.user.as_ref().map_or("", |user| user.login.as_str());
        match review.state.as_str() {
            "APPROVED" => drop(verdicts.insert(reviewer, ReviewsState::Approved)),
            "CHANGES_REQUESTED" => drop(verdicts.insert(reviewer, ReviewsState::ChangesRequested)),
            "DISMISSED" => drop(verdicts.remove(reviewer)),
            // They do not change the reviewer's verdict.
            "COMMENTED" | "PENDING" => {}
            _ => drop(verdicts.insert(reviewer, ReviewsState::Unknown)),
        }
    }
    let has = |state| verdicts.values().any(|verdict| *verdict == state);
    if has(ReviewsState::ChangesRequested) {
        ReviewsState::ChangesRequested
    } else if has(ReviewsState::Unknown) || !is_complete {
        ReviewsState::Unknown
    } else if has(ReviewsState::Approved) {
        ReviewsState::Approved
    } else {
        ReviewsState::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn pull(mergeable: Value, state: Value) -> PullPayload {
        serde_json::from_value(json!({ "number": 1, "html_url": "u", "state": "open", "title": "t", "merged_at": null,
            "head": { "ref": "b", "sha": "1" }, "base": { "ref": "main", "sha": "0" },
            "mergeable": mergeable, "mergeable_state": state }))
        .unwrap()
    }

    #[test]
    fn mergeability_is_never_guessed() {
        for (mergeable, state, expected) in [
            (json!(null), json!("unknown"), Mergeability::Unknown),
            (json!(null), json!("clean"), Mergeability::Unknown),
            (json!(true), json!("clean"), Mergeability::Clean),
            (json!(true), json!("has_hooks"), Mergeability::Clean),
            (json!(true), json!("unstable"), Mergeability::Unstable),
            (json!(true), json!("blocked"), Mergeability::Blocked),
            (json!(true), json!("behind"), Mergeability::Behind),
            (json!(true), json!("draft"), Mergeability::Draft),
            (json!(true), json!("new word"), Mergeability::Unknown),
            (json!(true), json!(null), Mergeability::Unknown),
            (json!(false), json!("dirty"), Mergeability::Conflicted),
            (json!(false), json!("unknown"), Mergeability::Conflicted),
        ] {
            assert_eq!(pull(mergeable.clone(), state.clone()).mergeability(), expected, "{mergeable} {state}");
        }
    }

    #[test]
    fn combines_check_runs_and_statuses() {
        let none = || CombinedStatusPayload { state: "pending".into(), total_count: 0, statuses: Vec::new() };
        let some = |state: &str| CombinedStatusPayload {
            state: state.into(),
            total_count: 1,
            statuses: vec![CommitStatusPayload { context: "ci".into(), state: state.into() }],
        };
        let run = |status: &str, conclusion: Option<&str>| CheckRunPayload {
            name: "build".into(),
            status: status.into(),
            conclusion: conclusion.map(str::to_owned),
        };
        let combined = |runs: &[CheckRunPayload], statuses, complete| combine_checks(runs, &statuses, complete).0;
        assert_eq!(combined(&[], none(), true), ChecksState::None);
        assert_eq!(combined(&[], some("success"), true), ChecksState::Passed);
        assert_eq!(combined(&[run("completed", Some("success"))], some("pending"), true), ChecksState::Pending);
        assert_eq!(combined(&[run("completed", Some("skipped"))], none(), true), ChecksState::Passed);
        assert_eq!(combined(&[run("in_progress", None)], none(), true), ChecksState::Pending);
        assert_eq!(combined(&[run("completed", Some("new word"))], none(), true), ChecksState::Unknown);
        assert_eq!(combined(&[run("completed", Some("success"))], none(), false), ChecksState::Unknown);
        let (state, failed) = combine_checks(&[run("completed", Some("failure"))], &some("error"), true);
        assert_eq!((state, failed), (ChecksState::Failed, vec!["build".to_owned(), "ci".to_owned()]));
    }

    #[test]
    fn the_newest_verdict_of_each_reviewer_counts() {
        let review = |user: &str, state: &str| ReviewPayload {
            user: Some(UserPayload { login: user.into() }),
            state: state.into(),
        };
        let combined = |reviews: &[ReviewPayload]| combine_reviews(reviews, true);
        assert_eq!(combined(&[]), ReviewsState::None);
        assert_eq!(combined(&[review("a", "COMMENTED")]), ReviewsState::None);
        assert_eq!(combined(&[review("a", "CHANGES_REQUESTED"), review("a", "APPROVED")]), ReviewsState::Approved);
        assert_eq!(combined(&[review("a", "APPROVED"), review("a", "COMMENTED")]), ReviewsState::Approved);
        let two = [review("a", "APPROVED"), review("b", "CHANGES_REQUESTED")];
        assert_eq!(combined(&two), ReviewsState::ChangesRequested);
        assert_eq!(combined(&[review("b", "CHANGES_REQUESTED"), review("b", "DISMISSED")]), ReviewsState::None);
        assert_eq!(combined(&[review("a", "NEW")]), ReviewsState::Unknown);
        assert_eq!(combine_reviews(&[review("a", "APPROVED")], false), ReviewsState::Unknown);
    }
}
