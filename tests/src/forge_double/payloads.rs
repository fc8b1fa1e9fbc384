//! GitHub's JSON for repositories, users, pull requests, checks and reviews, complete as its description demands.

use super::pulls::{CheckRun, PullState, Review};
use serde_json::{Map, Value, json};

const TIME: &str = "2026-01-02T03:04:05Z";

const REPOSITORY_URLS: &[&str] = &[
    "archive",
    "assignees",
    "blobs",
    "branches",
    "collaborators",
    "comments",
    "commits",
    "compare",
    "contents",
    "contributors",
    "deployments",
    "downloads",
    "events",
    "forks",
    "git_commits",
    "git_refs",
    "git_tags",
    "hooks",
    "issue_comment",
    "issue_events",
    "issues",
    "keys",
    "labels",
    "languages",
    "merges",
    "milestones",
    "notifications",
    "pulls",
    "releases",
    "stargazers",
    "statuses",
    "subscribers",
    "subscription",
    "tags",
    "teams",
    "trees",
    "html",
    "clone",
    "git",
    "ssh",
    "svn",
];

const USER_URLS: &[&str] = &[
    "avatar",
    "events",
    "followers",
    "following",
    "gists",
    "html",
    "organizations",
    "received_events",
    "repos",
    "starred",
    "subscriptions",
];

fn add_urls(object: &mut Value, base: &str, names: &[&str]) {
    let fields: &mut Map<String, Value> = object.as_object_mut().unwrap();
    fields.insert("url".into(), base.into());
    fields.extend(names.iter().map(|name| (format!("{name}_url"), format!("{base}/{name}").into())));
}

pub(super) fn user(url: &str, login: &str) -> Value {
    let mut user = json!({ "login": login, "id": 1, "node_id": "U1", "gravatar_id": "", "type": "User",
        "site_admin": false });
    add_urls(&mut user, &format!("{url}/users/{login}"), USER_URLS);
    user
}

/// The account of a token.
pub(super) fn account(url: &str, login: &str) -> Value {
    let mut account = user(url, login);
    let rest = json!({ "name": null, "company": null, "blog": null, "location": null, "email": null, "hireable": null,
        "bio": null, "public_repos": 1, "public_gists": 0, "followers": 0, "following": 0, "created_at": TIME,
        "updated_at": TIME });
    account.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    account
}

pub(super) fn repository(url: &str, full_name: &str, default_branch: &str) -> Value {
    let (owner, name) = full_name.split_once('/').unwrap();
    let mut repository = json!({
        "id": 7, "node_id": "R7", "name": name, "full_name": full_name, "owner": user(url, owner), "private": false,
        "description": null, "fork": false, "homepage": null, "language": null, "forks": 0, "forks_count": 0,
        "stargazers_count": 0, "watchers": 0, "watchers_count": 0, "size": 1, "default_branch": default_branch,
        "open_issues": 0, "open_issues_count": 0, "has_issues": true, "has_projects": false, "has_wiki": false,
        "has_pages": false, "has_downloads": false, "has_discussions": false, "archived": false, "disabled": false,
        "mirror_url": null, "license": null, "pushed_at": TIME, "created_at": TIME, "updated_at": TIME,
        "network_count": 0, "subscribers_count": 0,
    });
    add_urls(&mut repository, &format!("{url}/repos/{full_name}"), REPOSITORY_URLS);
    repository
}

/// What a pull request shows of its repository at this moment.
pub(super) struct PullFacts<'a> {
    pub url: &'a str,
    pub full_name: &'a str,
    pub default_branch: &'a str,
    pub base_commit: String,
    pub mergeable: Option<bool>,
}

pub(super) fn pull(pull: &PullState, facts: &PullFacts<'_>) -> Value {
    let PullFacts { url, full_name, default_branch, base_commit, mergeable } = facts;
    let owner = full_name.split('/').next().unwrap();
    let at = format!("{url}/repos/{full_name}/pulls/{}", pull.number);
    let issue = format!("{url}/repos/{full_name}/issues/{}", pull.number);
    let html = format!("{url}/{full_name}/pull/{}", pull.number);
    let branch = |name: &str, sha: &str| {
        json!({ "label": format!("{owner}:{name}"), "ref": name, "sha": sha, "user": user(url, owner),
            "repo": repository(url, full_name, default_branch) })
    };
    let link = |target: String| json!({ "href": target });
    let mergeable_state = match mergeable {
        _ if pull.merged_commit.is_some() => "unknown",
        None => "unknown",
        Some(true) => "clean",
        Some(false) => "dirty",
    };
    let closed_at = (!pull.is_open).then_some(TIME);
    let merged = pull.merged_commit.is_some();
    let mut shown = json!({
        "url": at, "id": 100 + pull.number, "node_id": format!("PR{}", pull.number), "number": pull.number,
        "html_url": html, "diff_url": format!("{html}.diff"), "patch_url": format!("{html}.patch"),
        "issue_url": issue, "commits_url": format!("{at}/commits"), "review_comments_url": format!("{at}/comments"),
        "review_comment_url": format!("{at}/comments{{/number}}"), "comments_url": format!("{issue}/comments"),
        "statuses_url": format!("{url}/repos/{full_name}/statuses/{}", pull.head),
        "state": if pull.is_open { "open" } else { "closed" }, "locked": false, "title": pull.title,
        "user": user(url, owner), "body": pull.body, "labels": [], "milestone": null, "assignee": null,
        "created_at": TIME, "updated_at": TIME, "closed_at": closed_at, "merged_at": merged.then_some(TIME),
        "merge_commit_sha": pull.merged_commit, "head": branch(&pull.branch, &pull.head),
        "base": branch(&pull.base, base_commit), "author_association": "OWNER", "auto_merge": null, "draft": false,
    });
    let rest = json!({
        "_links": { "self": link(at.clone()), "html": link(html.clone()), "issue": link(issue.clone()),
            "comments": link(format!("{issue}/comments")), "review_comments": link(format!("{at}/comments")),
            "review_comment": link(format!("{at}/comments")), "commits": link(format!("{at}/commits")),
            "statuses": link(format!("{url}/repos/{full_name}/statuses/{}", pull.head)) },
        "merged": merged, "mergeable": mergeable, "mergeable_state": mergeable_state,
        "merged_by": merged.then(|| user(url, owner)), "comments": 0, "review_comments": 0,
        "maintainer_can_modify": false, "commits": 1, "additions": 1, "deletions": 0, "changed_files": 1,
    });
    shown.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    shown
}

pub(super) fn check_run(url: &str, full_name: &str, head: &str, id: usize, run: &CheckRun) -> Value {
    let at = format!("{url}/repos/{full_name}/check-runs/{id}");
    let completed = run.conclusion.is_some();
    json!({
        "id": id, "node_id": format!("C{id}"), "head_sha": head, "name": run.name, "url": at, "html_url": at,
        "details_url": at, "status": if completed { "completed" } else { "in_progress" },
        "conclusion": run.conclusion, "started_at": TIME, "completed_at": completed.then_some(TIME),
        "external_id": "", "check_suite": { "id": 5 }, "app": null, "pull_requests": [],
        "output": { "title": null, "summary": null, "text": null, "annotations_count": 0,
            "annotations_url": format!("{at}/annotations") },
    })
}

pub(super) fn combined_status(url: &str, full_name: &str, default_branch: &str, commit: &str) -> Value {
    let at = format!("{url}/repos/{full_name}/commits/{commit}");
    json!({ "state": "pending", "sha": commit, "total_count": 0, "statuses": [],
        "repository": repository(url, full_name, default_branch), "commit_url": at, "url": format!("{at}/status") })
}

pub(super) fn review(url: &str, full_name: &str, number: u64, id: usize, review: &Review) -> Value {
    let at = format!("{url}/repos/{full_name}/pulls/{number}");
    let html = format!("{url}/{full_name}/pull/{number}#review-{id}");
    json!({ "id": id, "node_id": format!("V{id}"), "user": user(url, &review.reviewer), "body": "", "state": review.state,
        "html_url": html, "pull_request_url": at, "author_association": "MEMBER", "submitted_at": TIME,
        "commit_id": "0000000000000000000000000000000000000000",
        "_links": { "html": { "href": html }, "pull_request": { "href": at } } })
}

pub(super) fn git_ref(url: &str, full_name: &str, name: &str, commit: &str) -> Value {
    json!({ "ref": name, "node_id": "G1", "url": format!("{url}/repos/{full_name}/git/{name}"),
        "object": { "type": "commit", "sha": commit, "url": format!("{url}/repos/{full_name}/git/commits/{commit}") } })
}

pub(super) fn installation(url: &str, owner: &str) -> Value {
    json!({ "id": 4, "app_id": 3, "app_slug": "atoll", "client_id": "Iv1.x", "target_id": 1, "target_type": "User",
        "single_file_name": null, "repository_selection": "selected", "events": [], "account": user(url, owner),
        "permissions": { "contents": "write", "pull_requests": "write" }, "created_at": TIME, "updated_at": TIME,
        "suspended_by": null, "suspended_at": null, "access_tokens_url": format!("{url}/app/installations/4/access_tokens"),
        "html_url": format!("{url}/settings/installations/4"), "repositories_url": format!("{url}/installation/repositories") })
}
