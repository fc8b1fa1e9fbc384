//! Webhooks of GitHub: which repository and branch they are about, and what happened.

use atoll_core::session_key::identify_repository;
use serde_json::Value;

/// Text of a person that an event repeats.
const MAX_TEXT_CHARS: usize = 4000;
const MAX_NAME_CHARS: usize = 200;

/// Something that happened to a branch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Webhook {
    /// The identity of the repository, such as `github.com/owner/name`.
    pub repository: String,
    pub branch: String,
    pub change: BranchChange,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BranchChange {
    PullRequestMerged {
        number: u64,
        url: String,
        commit: Option<String>,
    },
    PullRequestClosed {
        number: u64,
        url: String,
    },
    /// A review with a verdict or a text: `approved`, `changes_requested` or `commented`.
    Reviewed {
        number: u64,
        url: String,
        reviewer: String,
        verdict: String,
        text: String,
    },
    /// A comment on a line.
    ReviewComment {
        number: u64,
        url: String,
        reviewer: String,
        path: String,
        text: String,
    },
    CheckFailed {
        name: String,
        url: String,
        commit: String,
        conclusion: String,
        text: String,
    },
    Pushed {
        commit: String,
        previous: String,
        pusher: String,
    },
    Deleted {
        previous: String,
    },
}

/// Reads a payload. `None` for all that Atoll does not react to.
pub fn read_webhook(event: &str, payload: &Value) -> Option<Webhook> {
    let repository = identify_repository(payload["repository"]["clone_url"].as_str()?);
    let (branch, change) = match (event, payload["action"].as_str()) {
        ("pull_request", Some("closed")) => read_closed(payload)?,
        ("pull_request_review", Some("submitted")) => read_review(payload)?,
        ("pull_request_review_comment", Some("created")) => read_comment(payload)?,
        ("check_run", Some("completed")) => read_check(payload)?,
        ("push", None) => read_push(payload)?,
        _ => return None,
    };
    Some(Webhook { repository, branch, change })
}

fn text(value: &Value, most: usize) -> String {
    value.as_str().unwrap_or_default().chars().take(most).collect()
}

fn name(value: &Value) -> String {
    text(value, MAX_NAME_CHARS)
}

/// The branch of a pull request, unless it is in a fork: a fork's branch can have any name.
fn pull_branch(payload: &Value) -> Option<String> {
    let pull = &payload["pull_request"];
    let own = payload["repository"]["id"].as_u64()?;
    let is_own = pull["head"]["repo"]["id"].as_u64() == Some(own);
    is_own.then(|| name(&pull["head"]["ref"])).filter(|branch| !branch.is_empty())
}

fn pull_link(payload: &Value) -> Option<(u64, String)> {
    let pull = &payload["pull_request"];
    Some((pull["number"].as_u64()?, name(&pull["html_url"])))
}

fn read_closed(payload: &Value) -> Option<(String, BranchChange)> {
    let (number, url) = pull_link(payload)?;
    let commit = payload["pull_request"]["merge_commit_sha"].as_str().map(str::to_owned);
    let change = match payload["pull_request"]["merged"].as_bool()? {
        true => BranchChange::PullRequestMerged { number, url, commit },
        false => BranchChange::PullRequestClosed { number, url },
    };
    Some((pull_branch(payload)?, change))
}

fn read_review(payload: &Value) -> Option<(String, BranchChange)> {
    let ((number, _), review) = (pull_link(payload)?, &payload["review"]);
    let change = BranchChange::Reviewed {
        number,
        url: name(&review["html_url"]),
        reviewer: name(&review["user"]["login"]),
        verdict: name(&review["state"]).to_lowercase(),
        text: text(&review["body"], MAX_TEXT_CHARS),
    };
    Some((pull_branch(payload)?, change))
}

fn read_comment(payload: &Value) -> Option<(String, BranchChange)> {
    let ((number, _), comment) = (pull_link(payload)?, &payload["comment"]);
    let change = BranchChange::ReviewComment {
        number,
        url: name(&comment["html_url"]),
        reviewer: name(&comment["user"]["login"]),
        path: name(&comment["path"]),
        text: text(&comment["body"], MAX_TEXT_CHARS),
    };
    Some((pull_branch(payload)?, change))
}

fn read_check(payload: &Value) -> Option<(String, BranchChange)> {
    let run = &payload["check_run"];
    let conclusion = name(&run["conclusion"]);
    if !matches!(conclusion.as_str(), "failure" | "timed_out" | "action_required" | "startup_failure") {
        return None;
    }
    let branch = name(&run["check_suite"]["head_branch"]);
    let change = BranchChange::CheckFailed {
        name: name(&run["name"]),
        url: name(&run["html_url"]),
        commit: name(&run["head_sha"]),
        conclusion,
        text: text(&run["output"]["summary"], MAX_TEXT_CHARS),
    };
    (!branch.is_empty()).then_some((branch, change))
}

fn read_push(payload: &Value) -> Option<(String, BranchChange)> {
    let branch = name(payload["ref"].as_str()?.strip_prefix("refs/heads/").map(Value::from).as_ref()?);
    let previous = name(&payload["before"]);
    let change = match payload["deleted"].as_bool()? {
        true => BranchChange::Deleted { previous },
        false => {
            let pusher = name(&payload["pusher"]["name"]);
            BranchChange::Pushed { commit: name(&payload["after"]), previous, pusher }
        }
    };
    Some((branch, change))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pull(action: &str, merged: bool, head_repo: u64) -> Value {
        json!({ "action": action, "repository": { "id": 7, "clone_url": "https://github.com/Octo/Hello.git" },
            "pull_request": { "number": 2, "html_url": "u", "merged": merged, "merge_commit_sha": "c",
                "head": { "ref": "feature/x", "repo": { "id": head_repo } } } })
    }

    #[test]
    fn a_closed_pull_request_is_merged_or_not() {
        let merged = read_webhook("pull_request", &pull("closed", true, 7)).unwrap();
        assert_eq!((merged.repository.as_str(), merged.branch.as_str()), ("github.com/octo/hello", "feature/x"));
        let expected = BranchChange::PullRequestMerged { number: 2, url: "u".into(), commit: Some("c".into()) };
        assert_eq!(merged.change, expected);
        let closed = read_webhook("pull_request", &pull("closed", false, 7)).unwrap();
        assert_eq!(closed.change, BranchChange::PullRequestClosed { number: 2, url: "u".into() });
        assert_eq!(read_webhook("pull_request", &pull("opened", false, 7)), None);
        assert_eq!(read_webhook("pull_request", &pull("closed", true, 8)), None, "a fork's branch is another one");
    }

    #[test]
    fn only_failed_checks_count() {
        let check = |conclusion: &str| {
            let run = json!({ "name": "build", "html_url": "u", "head_sha": "c", "conclusion": conclusion,
                "output": { "summary": "x".repeat(9000) }, "check_suite": { "head_branch": "b" } });
            let payload = json!({ "action": "completed", "check_run": run,
                "repository": { "id": 7, "clone_url": "https://github.com/o/n.git" } });
            read_webhook("check_run", &payload)
        };
        assert_eq!(check("success"), None);
        let Some(Webhook { change: BranchChange::CheckFailed { text, .. }, .. }) = check("failure") else {
            panic!("not a failed check")
        };
        assert_eq!(text.len(), MAX_TEXT_CHARS);
    }

    #[test]
    fn a_push_to_a_tag_is_ignored() {
        let push = |name: &str, deleted: bool| {
            let payload = json!({ "ref": name, "before": "a", "after": "b", "deleted": deleted, "pusher": { "name": "ann" },
                "repository": { "id": 7, "clone_url": "https://github.com/o/n.git" } });
            read_webhook("push", &payload).map(|webhook| webhook.change)
        };
        assert_eq!(push("refs/tags/v1", false), None);
        assert_eq!(push("refs/heads/x", true), Some(BranchChange::Deleted { previous: "a".into() }));
        let pushed = BranchChange::Pushed { commit: "b".into(), previous: "a".into(), pusher: "ann".into() };
        assert_eq!(push("refs/heads/x", false), Some(pushed));
    }

    #[test]
    fn any_json_is_read_without_a_panic() {
        for payload in
            [json!(null), json!([]), json!({ "repository": 5 }), json!({ "repository": { "clone_url": "x" } })]
        {
            for event in ["pull_request", "pull_request_review", "check_run", "push", "ping"] {
                assert_eq!(read_webhook(event, &payload), None);
            }
        }
    }
}
