//! Pull requests of the double.

use super::payloads::{self, PullFacts};
use super::{ForgeReply, RepositoryState};
use serde_json::{Value, json};

#[derive(Debug, Clone)]
pub(crate) struct PullState {
    pub number: u64,
    pub title: String,
    pub body: Option<String>,
    pub branch: String,
    pub base: String,
    /// The newest known commit of the branch.
    pub head: String,
    pub is_open: bool,
    pub merged_commit: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct CheckRun {
    pub name: String,
    /// Absent while it runs.
    pub conclusion: Option<String>,
}

#[derive(Debug, Clone)]
pub(crate) struct Review {
    pub reviewer: String,
    pub state: String,
}

impl PullState {
    pub fn word(&self) -> &'static str {
        match (self.is_open, &self.merged_commit) {
            (true, _) => "open",
            (false, Some(_)) => "merged",
            (false, None) => "closed",
        }
    }
}

fn validation_failed(errors: Value) -> ForgeReply {
    ForgeReply::json(
        422,
        json!({ "message": "Validation Failed", "documentation_url": "https://docs.github.com/rest", "errors": errors }),
    )
}

impl RepositoryState {
    fn refresh_heads(&mut self) {
        for pull in self.pulls.iter_mut().filter(|pull| pull.is_open) {
            if let Some(head) = self.git.branch_commit(&pull.branch) {
                pull.head = head;
            }
        }
    }

    fn show_pull(&mut self, url: &str, full_name: &str, number: u64, knows_mergeability: bool) -> Option<Value> {
        self.refresh_heads();
        let pull = self.pulls.iter().find(|pull| pull.number == number)?;
        let base_commit = self.git.branch_commit(&pull.base).unwrap_or_default();
        let can_merge = || self.git.can_merge(&base_commit, &pull.head);
        let mergeable = (pull.is_open && knows_mergeability).then(can_merge);
        let default_branch = self.git.default_branch();
        let facts = PullFacts { url, full_name, default_branch: &default_branch, base_commit, mergeable };
        Some(payloads::pull(pull, &facts))
    }

    pub fn list_pulls(&mut self, url: &str, full_name: &str, query: &[(String, String)]) -> ForgeReply {
        let value = |name: &str| query.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str());
        let wanted = value("state").unwrap_or("open");
        let head = value("head").and_then(|head| head.split_once(':')).map(|(_, branch)| branch.to_owned());
        let is_wanted = |pull: &PullState| {
            let in_state = match wanted {
                "all" => true,
                "closed" => !pull.is_open,
                _ => pull.is_open,
            };
            in_state && head.as_ref().is_none_or(|head| *head == pull.branch)
        };
        let numbers: Vec<u64> =
            self.pulls.iter().rev().filter(|pull| is_wanted(pull)).map(|pull| pull.number).collect();
        let pulls = numbers.into_iter().filter_map(|number| self.show_pull(url, full_name, number, false)).collect();
        ForgeReply::json(200, Value::Array(pulls))
    }

    pub fn create_pull(&mut self, url: &str, full_name: &str, body: &Value) -> ForgeReply {
        let text = |field: &str| body[field].as_str().map(str::to_owned);
        let (Some(title), Some(head), Some(base)) = (text("title"), text("head"), text("base")) else {
            return validation_failed(json!([{ "resource": "PullRequest", "field": "head", "code": "missing_field" }]));
        };
        let branch = head.split_once(':').map_or(head.as_str(), |(_, branch)| branch).to_owned();
        let (Some(commit), Some(base_commit)) = (self.git.branch_commit(&branch), self.git.branch_commit(&base)) else {
            return validation_failed(json!([{ "resource": "PullRequest", "field": "head", "code": "invalid" }]));
        };
        if self.pulls.iter().any(|pull| pull.is_open && pull.branch == branch && pull.base == base) {
            let owner = full_name.split('/').next().unwrap_or_default();
            let message = format!("A pull request already exists for {owner}:{branch}.");
            return validation_failed(json!([{ "resource": "PullRequest", "code": "custom", "message": message }]));
        }
        if !self.git.has_commits(&base_commit, &commit) {
            let message = format!("No commits between {base} and {branch}");
            return validation_failed(json!([{ "resource": "PullRequest", "code": "custom", "message": message }]));
        }
        let number = self.pulls.len() as u64 + 1;
        let (is_open, merged_commit) = (true, None);
        self.pulls.push(PullState {
            number,
            title,
            body: text("body"),
            branch,
            base,
            head: commit,
            is_open,
            merged_commit,
        });
        self.show_pull(url, full_name, number, false).map_or_else(not_found, |pull| ForgeReply::json(201, pull))
    }

    pub fn read_pull(&mut self, url: &str, full_name: &str, number: u64) -> ForgeReply {
        let is_known = self.unknown_mergeability_reads == 0;
        self.unknown_mergeability_reads = self.unknown_mergeability_reads.saturating_sub(1);
        self.show_pull(url, full_name, number, is_known).map_or_else(not_found, |pull| ForgeReply::json(200, pull))
    }

    pub fn change_pull(&mut self, url: &str, full_name: &str, number: u64, body: &Value) -> ForgeReply {
        let Some(pull) = self.pulls.iter_mut().find(|pull| pull.number == number) else { return not_found() };
        if let Some(title) = body["title"].as_str() {
            pull.title = title.to_owned();
        }
        if let Some(text) = body["body"].as_str() {
            pull.body = Some(text.to_owned());
        }
        match body["state"].as_str() {
            Some("closed") => pull.is_open = false,
            Some("open") if pull.merged_commit.is_none() => pull.is_open = true,
            _ => {}
        }
        self.show_pull(url, full_name, number, true).map_or_else(not_found, |pull| ForgeReply::json(200, pull))
    }

    pub fn merge_pull(&mut self, number: u64, body: &Value) -> ForgeReply {
        self.refresh_heads();
        let Some(pull) = self.pulls.iter_mut().find(|pull| pull.number == number) else { return not_found() };
        if !pull.is_open {
            return ForgeReply::message(405, "Pull Request is not mergeable");
        }
        if body["sha"].as_str().is_some_and(|sha| sha != pull.head) {
            return ForgeReply::message(409, "Head branch was modified. Review and try the merge again.");
        }
        let method = body["merge_method"].as_str().unwrap_or("merge");
        let title = body["commit_title"].as_str().unwrap_or(&pull.title).to_owned();
        let Some(commit) = self.git.merge(&pull.base, &pull.head, method, &title) else {
            return ForgeReply::message(405, "Pull Request is not mergeable");
        };
        pull.is_open = false;
        pull.merged_commit = Some(commit.clone());
        ForgeReply::json(200, json!({ "sha": commit, "merged": true, "message": "Pull Request successfully merged" }))
    }
}

pub(super) fn not_found() -> ForgeReply {
    ForgeReply::message(404, "Not Found")
}
