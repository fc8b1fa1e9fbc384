//! Pushes a commit of a mirror to a branch of the remote repository, and deletes branches there.
//!
//! Both are idempotent: a repeated push finds its commit in place, and a deleted branch may be missing already.

use super::connection::RemoteCommand;
use super::credential::RemoteCredential;
use super::error::{RemoteError, shorten};
use super::mirror::{Mirror, REMOTE_PREFIX};
use super::push_refusal::PushRefusal;
use super::url::RemoteUrl;
use crate::branch::is_valid_ref_name;
use crate::error::Error;

/// Git reports refused refs with this exit code.
const REFUSED_EXIT_CODE: i32 = 1;

/// The state of the remote branch that a push requires.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lease {
    /// The branch does not exist.
    Create,
    /// The branch is at this commit. The push may then replace its commits.
    Expect(String),
}

impl Lease {
    fn argument(&self, reference: &str) -> String {
        match self {
            Self::Create => format!("--force-with-lease={reference}:"),
            Self::Expect(commit) => format!("--force-with-lease={reference}:{commit}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PushOutcome {
    Created,
    Updated,
    Deleted,
    /// The remote was in the requested state already.
    UpToDate,
}

/// Sets a branch of the remote to a commit of the mirror, if the branch is as the lease says.
pub fn push_commit(
    mirror: &Mirror,
    url: &RemoteUrl,
    credential: &RemoteCredential,
    commit: &str,
    branch: &str,
    lease: &Lease,
) -> Result<PushOutcome, RemoteError> {
    let repository = mirror.repository()?;
    let missing = || RemoteError::BranchMissing { url: url.to_string(), base: commit.chars().take(100).collect() };
    let is_id = repository.format.is_object_id(commit);
    let commit = if is_id { repository.commit_of(commit)? } else { None }.ok_or_else(missing)?;
    let outcome = push(mirror, url, credential, (&commit, branch), lease)?;
    record_remote_branch(mirror, branch, Some(&commit));
    Ok(outcome)
}

/// Deletes a branch of the remote, if it still is at `expected`.
pub fn delete_branch(
    mirror: &Mirror,
    url: &RemoteUrl,
    credential: &RemoteCredential,
    branch: &str,
    expected: &str,
) -> Result<PushOutcome, RemoteError> {
    let lease = Lease::Expect(expected.to_owned());
    let outcome = match push(mirror, url, credential, ("", branch), &lease) {
        // The branch is gone, which an expected commit does not match.
        Err(RemoteError::PushRefused { refusal: PushRefusal::BranchMoved, .. })
            if !remote_has_branch(mirror, url, credential, branch)? =>
        {
            PushOutcome::UpToDate
        }
        other => other?,
    };
    record_remote_branch(mirror, branch, None);
    Ok(outcome)
}

fn push(
    mirror: &Mirror,
    url: &RemoteUrl,
    credential: &RemoteCredential,
    (source, branch): (&str, &str),
    lease: &Lease,
) -> Result<PushOutcome, RemoteError> {
    if !is_valid_ref_name(branch) {
        return Err(Error::BranchRefused { branch: branch.chars().take(100).collect() }.into());
    }
    let format = mirror.repository()?.format;
    if let Lease::Expect(commit) = lease
        && !format.is_object_id(commit)
    {
        return Err(Error::BaseRefused { base: commit.chars().take(100).collect() }.into());
    }
    let reference = format!("refs/heads/{branch}");
    let arguments = [
        "push".to_owned(),
        "--porcelain".to_owned(),
        "--no-verify".to_owned(),
        lease.argument(&reference),
        "--".to_owned(),
        url.as_str().to_owned(),
        format!("{source}:{reference}"),
    ];
    let dirs = mirror.dirs();
    let command =
        RemoteCommand { dirs: Some(&dirs), settings: &[], arguments: &arguments, answers: &[REFUSED_EXIT_CODE] };
    let mut connection = mirror.connection(credential);
    connection.url = url;
    let answer = connection.run(command, &|| 0)?;
    let report = parse_report(&answer.text(), &reference);
    let refused = |refusal| RemoteError::PushRefused { url: url.to_string(), branch: branch.to_owned(), refusal };
    match report {
        Some(RefReport::Done(outcome)) if answer.is_success() => Ok(outcome),
        Some(RefReport::Refused(reason)) => {
            let remote = credential.redact(&answer.failure_detail());
            Err(refused(classify_refusal(&reason, &remote)))
        }
        Some(RefReport::Done(_)) | None => {
            Err(refused(PushRefusal::Other { detail: shorten(&credential.redact(&answer.failure_detail())) }))
        }
    }
}

/// Git's report about one ref.
#[derive(Debug, PartialEq, Eq)]
enum RefReport {
    Done(PushOutcome),
    /// The summary, such as `[rejected] (stale info)`.
    Refused(String),
}

/// Parses the lines `<flag><tab><from>:<to><tab><summary>` of `git push --porcelain`.
fn parse_report(report: &str, reference: &str) -> Option<RefReport> {
    report.lines().find_map(|line| {
        let mut fields = line.splitn(3, '\t');
        let (flag, names, summary) = (fields.next()?, fields.next()?, fields.next().unwrap_or_default());
        let (_, to) = names.rsplit_once(':')?;
        if to != reference {
            return None;
        }
        match flag {
            "*" => Some(RefReport::Done(PushOutcome::Created)),
            " " | "+" => Some(RefReport::Done(PushOutcome::Updated)),
            "-" => Some(RefReport::Done(PushOutcome::Deleted)),
            "=" => Some(RefReport::Done(PushOutcome::UpToDate)),
            "!" => Some(RefReport::Refused(summary.to_owned())),
            _ => None,
        }
    })
}

fn classify_refusal(summary: &str, remote: &str) -> PushRefusal {
    let has = |words: &str| summary.contains(words);
    let is_moved = ["stale info", "failed to update ref", "cannot lock ref", "reference already exists"];
    if is_moved.iter().any(|words| has(words)) {
        PushRefusal::BranchMoved
    } else if has("non-fast-forward") || has("fetch first") {
        PushRefusal::NotFastForward
    } else if has("deletion") && has("prohibited") {
        PushRefusal::DeletionProhibited
    } else if has("declined") || has("protected") || has("remote rejected") {
        PushRefusal::Declined { detail: shorten(&format!("{summary}: {remote}")) }
    } else {
        PushRefusal::Other { detail: shorten(&format!("{summary}: {remote}")) }
    }
}

fn remote_has_branch(
    mirror: &Mirror,
    url: &RemoteUrl,
    credential: &RemoteCredential,
    branch: &str,
) -> Result<bool, RemoteError> {
    let reference = format!("refs/heads/{branch}");
    let arguments = ["ls-remote", "--heads", "--", url.as_str(), &reference].map(str::to_owned);
    let command = RemoteCommand { dirs: None, settings: &[], arguments: &arguments, answers: &[] };
    let mut connection = mirror.connection(credential);
    connection.url = url;
    let listed = connection.run(command, &|| 0)?.text();
    Ok(listed.lines().any(|line| line.split_once('\t').is_some_and(|(_, name)| name == reference)))
}

/// Records the remote's branch before the next fetch does. A failure costs nothing but freshness.
fn record_remote_branch(mirror: &Mirror, branch: &str, commit: Option<&str>) {
    let name = format!("{REMOTE_PREFIX}{branch}");
    let recorded = mirror.repository().and_then(|repository| {
        let answer = match commit {
            Some(commit) => repository.run_lookup(["update-ref", "--", &name, commit])?,
            None => repository.run_lookup(["update-ref", "-d", "--", &name])?,
        };
        Ok(answer.require_success()?)
    });
    if let Err(error) = recorded {
        tracing::debug!(%error, branch, "failed to record a pushed branch in the mirror");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_report_of_a_push() {
        let report = |flag: &str, summary: &str| {
            let text = format!("To https://h/x\n{flag}\tabc:refs/heads/a\t{summary}\nDone\n");
            parse_report(&text, "refs/heads/a").unwrap()
        };
        assert_eq!(report("*", "[new branch]"), RefReport::Done(PushOutcome::Created));
        assert_eq!(report(" ", "1..2"), RefReport::Done(PushOutcome::Updated));
        assert_eq!(report("+", "1...2 (forced update)"), RefReport::Done(PushOutcome::Updated));
        assert_eq!(report("-", "[deleted]"), RefReport::Done(PushOutcome::Deleted));
        assert_eq!(report("=", "[up to date]"), RefReport::Done(PushOutcome::UpToDate));
        assert_eq!(report("!", "[rejected] (stale info)"), RefReport::Refused("[rejected] (stale info)".into()));
        assert_eq!(parse_report("*\ta:refs/heads/b\tx", "refs/heads/a"), None);
        assert_eq!(parse_report("", "refs/heads/a"), None);
    }

    #[test]
    fn refusals_have_one_class_each() {
        let class = |summary: &str| classify_refusal(summary, "remote: no");
        assert_eq!(class("[rejected] (stale info)"), PushRefusal::BranchMoved);
        assert_eq!(class("[rejected] (fetch first)"), PushRefusal::NotFastForward);
        assert_eq!(class("[rejected] (non-fast-forward)"), PushRefusal::NotFastForward);
        assert_eq!(class("[remote rejected] (deletion prohibited)"), PushRefusal::DeletionProhibited);
        for declined in
            ["[remote rejected] (pre-receive hook declined)", "[remote rejected] (protected branch hook declined)"]
        {
            assert!(matches!(class(declined), PushRefusal::Declined { detail } if detail.contains("remote: no")));
        }
        assert!(matches!(class("[rejected] (atomic push failed)"), PushRefusal::Other { .. }));
    }
}
