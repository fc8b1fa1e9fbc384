//! The operations of `Forge` on GitHub.

use super::client::{GitHub, Repeat};
use super::payloads::{
    CheckRunPayload, CheckRunsPayload, CombinedStatusPayload, MergePayload, PullPayload, RepositoryPayload,
    ReviewPayload, combine_checks, combine_reviews,
};
use crate::error::{Error, Result};
use crate::forge::{Forge, MergeOutcome, MergeRequest, NewPullRequest, PullRequest, RepositoryName};
use atoll_core::BoxFuture;
use atoll_core::pull_request::{PullRequestState, PullRequestStatus};
use reqwest::{Method, StatusCode};
use serde_json::json;

const PAGE_SIZE: usize = 100;
/// Pages of checks and reviews that are read. More than these are "unknown".
const MAX_PAGES: usize = 10;
const NO_BODY: Option<&()> = None;

impl GitHub {
    async fn get_pull(&self, repository: &RepositoryName, number: u64) -> Result<PullPayload> {
        let path = format!("/pulls/{number}");
        self.send(repository, Method::GET, &path, NO_BODY, Repeat::Safe).await?.parse("pull request")
    }

    async fn find_pull(&self, repository: &RepositoryName, branch: &str) -> Result<Option<PullRequest>> {
        let head = encode_query(&format!("{}:{branch}", repository.owner));
        let path = format!("/pulls?state=all&sort=created&direction=desc&per_page={PAGE_SIZE}&head={head}");
        let found = self.send(repository, Method::GET, &path, NO_BODY, Repeat::Safe).await?;
        let found: Vec<PullPayload> = found.parse("repository")?;
        // The filter is a hint to GitHub only: an unknown owner makes it ignore the filter.
        let mut found: Vec<PullRequest> =
            found.into_iter().map(PullPayload::into_pull_request).filter(|pull| pull.branch == branch).collect();
        let open = found.iter().position(|pull| pull.state == PullRequestState::Open);
        let chosen = open.unwrap_or(0);
        Ok((chosen < found.len()).then(|| found.swap_remove(chosen)))
    }

    async fn create_pull(&self, repository: &RepositoryName, new: &NewPullRequest) -> Result<PullRequest> {
        let body = json!({ "title": new.title, "body": new.body, "head": new.branch, "base": new.base });
        let sent = self.send(repository, Method::POST, "/pulls", Some(&body), Repeat::Unsafe).await;
        let failure = match sent {
            Ok(reply) if reply.status.is_success() => {
                return reply.parse::<PullPayload>("repository").map(PullPayload::into_pull_request);
            }
            Ok(reply) => reply.into_error("repository"),
            Err(failure) => failure,
        };
        // An earlier attempt, or this one without its response, may have opened it.
        let may_exist = matches!(failure, Error::Refused { .. } | Error::Unavailable { .. });
        let existing = if may_exist { self.find_pull(repository, &new.branch).await? } else { None };
        existing.filter(|pull| pull.state == PullRequestState::Open && pull.base == new.base).ok_or(failure)
    }

    async fn read_checks(&self, repository: &RepositoryName, head: &str) -> Result<(Vec<CheckRunPayload>, bool)> {
        let mut runs = Vec::new();
        for page in 1..=MAX_PAGES {
            let path = format!("/commits/{head}/check-runs?per_page={PAGE_SIZE}&page={page}");
            let found = self.send(repository, Method::GET, &path, NO_BODY, Repeat::Safe).await?;
            let found: CheckRunsPayload = found.parse("commit")?;
            let is_last = found.check_runs.len() < PAGE_SIZE;
            runs.extend(found.check_runs);
            if is_last || runs.len() >= found.total_count {
                return Ok((runs, true));
            }
        }
        Ok((runs, false))
    }

    async fn read_reviews(&self, repository: &RepositoryName, number: u64) -> Result<(Vec<ReviewPayload>, bool)> {
        let mut reviews = Vec::new();
        for page in 1..=MAX_PAGES {
            let path = format!("/pulls/{number}/reviews?per_page={PAGE_SIZE}&page={page}");
            let found = self.send(repository, Method::GET, &path, NO_BODY, Repeat::Safe).await?;
            let found: Vec<ReviewPayload> = found.parse("pull request")?;
            let is_last = found.len() < PAGE_SIZE;
            reviews.extend(found);
            if is_last {
                return Ok((reviews, true));
            }
        }
        Ok((reviews, false))
    }

    async fn read_pull_status(&self, repository: &RepositoryName, number: u64) -> Result<PullRequestStatus> {
        let pull = self.get_pull(repository, number).await?;
        let head = pull.head.sha.clone();
        let (runs, has_all_runs) = self.read_checks(repository, &head).await?;
        let path = format!("/commits/{head}/status?per_page={PAGE_SIZE}");
        let statuses = self.send(repository, Method::GET, &path, NO_BODY, Repeat::Safe).await?;
        let statuses: CombinedStatusPayload = statuses.parse("commit")?;
        let (checks, failed_checks) = combine_checks(&runs, &statuses, has_all_runs);
        let (reviews, has_all_reviews) = self.read_reviews(repository, number).await?;
        Ok(PullRequestStatus {
            state: pull.state(),
            head,
            mergeability: pull.mergeability(),
            checks,
            failed_checks,
            reviews: combine_reviews(&reviews, has_all_reviews),
        })
    }

    async fn merge_pull(&self, repository: &RepositoryName, merge: &MergeRequest) -> Result<MergeOutcome> {
        let body =
            json!({ "sha": merge.expected_head, "merge_method": merge.method.as_str(), "commit_title": merge.title });
        let path = format!("/pulls/{}/merge", merge.number);
        // With the expected head, a repeated merge is refused.
        let reply = self.send(repository, Method::PUT, &path, Some(&body), Repeat::Safe).await?;
        match reply.status {
            status if status.is_success() => {
                let merged: MergePayload = reply.parse("pull request")?;
                if merged.merged {
                    return Ok(MergeOutcome::Merged { commit: merged.sha });
                }
                Ok(MergeOutcome::NotMergeable { detail: "the forge did not merge it".to_owned() })
            }
            StatusCode::METHOD_NOT_ALLOWED => {
                // An attempt whose response was lost may have merged it.
                let detail = reply.message();
                let now = self.get_pull(repository, merge.number).await?;
                match now.state() {
                    PullRequestState::Merged => Ok(MergeOutcome::Merged { commit: now.head.sha }),
                    PullRequestState::Open | PullRequestState::Closed => Ok(MergeOutcome::NotMergeable { detail }),
                }
            }
            StatusCode::CONFLICT => Ok(MergeOutcome::HeadMoved),
            _ => Err(reply.into_error("pull request")),
        }
    }

    async fn remove_branch(&self, repository: &RepositoryName, branch: &str) -> Result<()> {
        let path = format!("/git/refs/heads/{}", encode_path(branch));
        let reply = self.send(repository, Method::DELETE, &path, NO_BODY, Repeat::Safe).await?;
        let is_gone = |message: &str| message.to_ascii_lowercase().contains("reference does not exist");
        match reply.status {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND => Ok(()),
            StatusCode::UNPROCESSABLE_ENTITY if is_gone(&reply.message()) => Ok(()),
            _ => Err(reply.into_error("branch")),
        }
    }
}

impl Forge for GitHub {
    fn default_branch<'a>(&'a self, repository: &'a RepositoryName) -> BoxFuture<'a, Result<String>> {
        Box::pin(async move {
            let found = self.send(repository, Method::GET, "", NO_BODY, Repeat::Safe).await?;
            Ok(found.parse::<RepositoryPayload>("repository")?.default_branch)
        })
    }

    fn find_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        branch: &'a str,
    ) -> BoxFuture<'a, Result<Option<PullRequest>>> {
        Box::pin(self.find_pull(repository, branch))
    }

    fn read_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        number: u64,
    ) -> BoxFuture<'a, Result<PullRequest>> {
        Box::pin(async move { Ok(self.get_pull(repository, number).await?.into_pull_request()) })
    }

    fn create_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        new: &'a NewPullRequest,
    ) -> BoxFuture<'a, Result<PullRequest>> {
        Box::pin(self.create_pull(repository, new))
    }

    fn update_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        number: u64,
        title: &'a str,
        body: &'a str,
    ) -> BoxFuture<'a, Result<PullRequest>> {
        Box::pin(async move {
            let (path, change) = (format!("/pulls/{number}"), json!({ "title": title, "body": body }));
            let changed = self.send(repository, Method::PATCH, &path, Some(&change), Repeat::Safe).await?;
            changed.parse::<PullPayload>("pull request").map(PullPayload::into_pull_request)
        })
    }

    fn read_status<'a>(
        &'a self,
        repository: &'a RepositoryName,
        number: u64,
    ) -> BoxFuture<'a, Result<PullRequestStatus>> {
        Box::pin(self.read_pull_status(repository, number))
    }

    fn merge_pull_request<'a>(
        &'a self,
        repository: &'a RepositoryName,
        merge: &'a MergeRequest,
    ) -> BoxFuture<'a, Result<MergeOutcome>> {
        Box::pin(self.merge_pull(repository, merge))
    }

    fn delete_branch<'a>(&'a self, repository: &'a RepositoryName, branch: &'a str) -> BoxFuture<'a, Result<()>> {
        Box::pin(self.remove_branch(repository, branch))
    }
}

/// Percent-encodes a value of a query.
fn encode_query(text: &str) -> String {
    encode_except(text, b"-._~")
}

/// Percent-encodes a path, except its slashes.
fn encode_path(text: &str) -> String {
    encode_except(text, b"-._~/")
}

fn encode_except(text: &str, kept: &[u8]) -> String {
    text.bytes()
        .map(|byte| match byte {
            byte if byte.is_ascii_alphanumeric() || kept.contains(&byte) => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_branches_cannot_change_a_url() {
        assert_eq!(encode_path("feature/größe?#%&x"), "feature/gr%C3%B6%C3%9Fe%3F%23%25%26x");
        assert_eq!(encode_query("o:feature/a&b"), "o%3Afeature%2Fa%26b");
    }
}
