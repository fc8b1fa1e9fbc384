//! `git-out`: commits what is left, and writes a bundle of all that is new.

use super::command::Place;
use super::error::Error;
use super::index::Index;
use super::repository::{Repository, Underway, regular};
use atoll_forge::plumbing::bundle::{self, Head};
use clap::Args;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io;

const COMMITTING: &str = "committing what is left";
const PACKING: &str = "packing the result";
const UNTITLED: &str = "Work of an agent";
const MOST_BRANCHES: usize = 10;

#[derive(Debug, Args)]
pub(super) struct Request {
    #[arg(long, allow_hyphen_values = true)]
    base: String,
    #[arg(long, allow_hyphen_values = true)]
    message: String,
    #[arg(long, allow_hyphen_values = true)]
    name: String,
    #[arg(long, allow_hyphen_values = true)]
    email: String,
}

/// The commit that the work ends with.
struct End {
    commit: String,
    /// Made here, of what was left.
    is_new: bool,
}

pub(super) fn take(request: &Request, place: &Place, output: File) -> Result<Value, Error> {
    if [&request.name, &request.email].iter().any(|text| text.trim().is_empty()) {
        return Err(Error::Arguments { detail: "--name and --email must not be empty".to_owned() });
    }
    let mut repository = Repository::open(place)?;
    repository.git.with_author(&request.name, &request.email);
    repository.unlock();
    let base = repository.base(&request.base)?;
    let mut warnings = Vec::new();
    let Some(end) = commit(&mut repository, request, base.as_deref(), &mut warnings)? else {
        return Ok(json!({ "nothing": true }));
    };
    warnings.extend(forgotten(&repository, &end.commit, base.as_deref())?);
    let commits = count(&repository, &end.commit, base.as_deref())?;
    let mut report = if commits == 0 {
        json!({ "nothing": true })
    } else {
        write(&repository, &end.commit, base, output)?;
        json!({ "commit": end.commit, "commits": commits, "committed": end.is_new })
    };
    if !warnings.is_empty() {
        report["warnings"] = warnings.into();
    }
    Ok(report)
}

/// The workspace as it is now, as a commit; None when there has never been anything in it.
fn commit(
    repository: &mut Repository,
    request: &Request,
    base: Option<&str>,
    warnings: &mut Vec<String>,
) -> Result<Option<End>, Error> {
    let underway = repository.underway();
    let head = repository.commit_of("HEAD")?;
    let parent = head.clone().or_else(|| base.map(str::to_owned));
    if head.is_none() {
        warnings.push("HEAD has no commit any more; the result builds on where the sandbox started".to_owned());
    }
    let mut index = Index::new(repository, parent.as_deref())?;
    index.add_everything(&repository.git)?;
    warnings.extend(index.warnings());
    let tree = repository.git.run(COMMITTING).args(["write-tree"]).slow()?.checked()?.text();
    let merged = if underway == Underway::Merge { merged(repository)? } else { Vec::new() };
    match &parent {
        Some(parent) if merged.is_empty() => {
            let before = repository.git.read(["rev-parse", "--verify", &format!("{parent}^{{tree}}")])?.checked()?;
            if before.text() == tree {
                return Ok(Some(End { commit: parent.clone(), is_new: false }));
            }
        }
        None if repository.git.read(["ls-tree", &tree])?.stdout.is_empty() => return Ok(None),
        _ => {}
    }
    let parents = parent.iter().chain(&merged).flat_map(|parent| ["-p", parent.as_str()]);
    let made = repository.git.run(COMMITTING).args(["commit-tree", "-F", "-"]).args(parents).args([&tree]);
    // No message is no reason to keep the work back.
    let message = Some(request.message.trim()).filter(|message| !message.is_empty()).unwrap_or(UNTITLED);
    let commit = made.input(format!("{message}\n").as_bytes())?.quick()?.checked()?.text();
    match underway {
        Underway::Nothing => {}
        Underway::Merge => warnings.push("a merge was under way; it is committed as it stood".to_owned()),
        Underway::Rebase | Underway::CherryPick | Underway::Revert | Underway::Bisect => {
            warnings.push(format!("a {} was under way; the result is the workspace as it stood", underway.name()));
            // Moving HEAD would spoil it for an agent that goes on with it.
            return Ok(Some(End { commit, is_new: true }));
        }
    }
    if let Err(error) = advance(repository, &index, head.as_deref(), &commit, underway) {
        warnings.push(format!("the workspace's own branch could not be moved: {error}"));
    }
    Ok(Some(End { commit, is_new: true }))
}

/// The other sides of a merge that is under way.
fn merged(repository: &Repository) -> Result<Vec<String>, Error> {
    let text = regular(&repository.git_dir.join("MERGE_HEAD"), 1 << 16).unwrap_or_default();
    let lines = String::from_utf8_lossy(&text).into_owned();
    let named = lines.lines().filter(|line| repository.format.names(line));
    named.filter_map(|commit| repository.commit_of(commit).transpose()).collect()
}

/// The agent, should it go on, finds the commit on its branch and nothing uncommitted.
fn advance(
    repository: &Repository,
    index: &Index,
    head: Option<&str>,
    commit: &str,
    underway: Underway,
) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Io { what: COMMITTING, source };
    let nothing = "0".repeat(repository.format.digits());
    let moved = repository.git.run(COMMITTING);
    let moved = moved.args(["update-ref", "-m", "commit: what was left", "HEAD", commit, head.unwrap_or(&nothing)]);
    moved.quick()?.checked()?;
    let fresh = repository.git_dir.join("index.atoll");
    fs::copy(&index.path, &fresh).and_then(|_| fs::rename(&fresh, repository.git_dir.join("index"))).map_err(failed)?;
    if underway == Underway::Merge {
        for name in ["MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "AUTO_MERGE"] {
            drop(fs::remove_file(repository.git_dir.join(name)));
        }
    }
    Ok(())
}

fn count(repository: &Repository, commit: &str, base: Option<&str>) -> Result<u64, Error> {
    let mut revisions = vec![commit.to_owned()];
    revisions.extend(base.map(|base| format!("^{base}")));
    let counted = repository.git.run(PACKING).args(["rev-list", "--count"]).args(revisions).args(["--"]);
    Ok(counted.slow()?.checked()?.text().parse().unwrap_or(0))
}

/// Branches with work that the result does not have: the agent may have left the one that it worked on.
fn forgotten(repository: &Repository, commit: &str, base: Option<&str>) -> Result<Vec<String>, Error> {
    let listed = repository.git.run(PACKING).args(["for-each-ref", "--format=%(refname:short)"]);
    let known = [Some(commit), base].into_iter().flatten().map(|commit| format!("--no-merged={commit}"));
    let listed = listed.args(known).args(["refs/heads/"]).slow()?;
    let text = if listed.succeeded() { listed.text() } else { String::new() };
    let say = |branch: &str| format!("branch {branch:?} has commits that are not in the result");
    Ok(text.lines().take(MOST_BRANCHES).map(say).collect())
}

fn write(repository: &Repository, commit: &str, base: Option<String>, mut output: File) -> Result<(), Error> {
    let wanted = base.iter().fold(format!("{commit}\n"), |wanted, base| format!("{wanted}^{base}\n"));
    let refs = vec![(bundle::RESULT.to_owned(), commit.to_owned())];
    let head = Head { format: repository.format, prerequisites: base.into_iter().collect(), refs };
    head.write(&mut output).map_err(|source| Error::Io { what: PACKING, source })?;
    let pack = ["pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "--quiet"];
    repository
        .git
        .run(PACKING)
        .args(pack)
        .input(wanted.as_bytes())?
        .into(output, repository.git.place.output_bytes)?
        .checked()?;
    Ok(())
}
