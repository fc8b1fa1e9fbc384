//! Sentences for the events of the branch workflow. Pure.

use super::fact::Fact;
use atoll_api::events::{EventData, GitStepFailed};

/// The sentence of an event; `None` if it is not one of the branch workflow.
pub fn describe_workflow_event(data: &EventData) -> Option<Fact> {
    let short = |commit: &str| commit.chars().take(12).collect::<String>();
    Some(match data {
        EventData::GitPushFlagged(flagged) => {
            let more = flagged.count.saturating_sub(flagged.paths.len());
            let more = if more > 0 { format!(" and {more} more") } else { String::new() };
            let paths = flagged.paths.join(", ");
            Fact::warning(format!("please review: the branch changes what machines run: {paths}{more}"))
        }
        EventData::GitPushed(pushed) => {
            Fact::note(format!("{} is pushed to {} at {}", pushed.branch, pushed.repo, short(&pushed.commit)))
        }
        EventData::GitPushFailed(failed) => describe_failure("the branch is not pushed", failed),
        EventData::GitBranchUpdated(updated) => {
            Fact::note(format!("{} has the commits of {} now", updated.branch, short(&updated.base)))
        }
        EventData::GitConflict(conflict) => {
            Fact::warning(format!("{} conflicts with its base in {}", conflict.branch, conflict.paths.join(", ")))
        }
        EventData::GitPrCreated(opened) => {
            Fact::note(format!("pull request #{} is open: {}", opened.number, opened.url))
        }
        EventData::GitPrUpdated(opened) => {
            Fact::note(format!("pull request #{} is updated: {}", opened.number, opened.url))
        }
        EventData::GitPrFailed(failed) => describe_failure("there is no pull request", failed),
        EventData::GitMergeWaiting(waiting) => {
            Fact::note(format!("the merge of pull request #{} waits: {}", waiting.number, waiting.reason))
        }
        EventData::GitMergeCompleted(ended) => Fact::note(format!("pull request #{} is merged", ended.number)),
        EventData::GitMergeFailed(failed) => describe_failure("the merge is not complete", failed),
        EventData::GitBranchRemoved(removed) => Fact::note(format!("the merged branch {} is deleted", removed.branch)),
        _ => return None,
    })
}

fn describe_failure(head: &str, failed: &GitStepFailed) -> Fact {
    match failed.retry_s {
        Some(seconds) => Fact::warning(format!("{head} yet: {}; again in {seconds} s", failed.detail)),
        None => Fact::warning(format!("{head}: {}", failed.detail)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::branch_workflow::WorkflowStep;

    #[test]
    fn a_failure_names_the_next_attempt() {
        let (branch, detail) = ("b".to_owned(), "status 503".to_owned());
        let failed = |retry_s| {
            let (step, code) = (WorkflowStep::Push, "forge_unavailable".to_owned());
            let failed = GitStepFailed { branch: branch.clone(), step, code, detail: detail.clone(), retry_s };
            describe_workflow_event(&EventData::GitPushFailed(failed)).unwrap().head
        };
        assert_eq!(failed(Some(4)), "the branch is not pushed yet: status 503; again in 4 s");
        assert_eq!(failed(None), "the branch is not pushed: status 503");
    }
}
