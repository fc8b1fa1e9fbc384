//! `git-out`: commits uncommitted work and writes a bundle of all new commits.

use super::command::GitWorkspace;
use super::error::Error;
use super::index::{Index, copy_index};
use super::large_file_filters::PointerUse;
use super::large_file_results;
use super::repository::{Repository, UnfinishedOperation, read_regular_file};
use super::submodule_work;
use atoll_forge::plumbing::bundle::{self, BundleHeader};
use clap::Args;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io;

const COMMITTING: &str = "committing the work";
const PACKING: &str = "packing the result";
const DEFAULT_MESSAGE: &str = "Work of an agent";
const MAX_BRANCHES: usize = 10;

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

/// The final commit of the work.
struct End {
    commit: String,
    /// True if this job created it.
    is_new: bool,
}

/// Remarks about the result.
#[derive(Default)]
struct Remarks {
    warnings: Vec<String>,
    /// Submodules with work and large files, which the result lacks: it has only their ids.
    unsaved: Vec<String>,
    /// True if git did not take a file.
    has_rejected_files: bool,
}

pub(super) fn export_work(request: &Request, workspace: &GitWorkspace, output: File) -> Result<Value, Error> {
    if [&request.name, &request.email].iter().any(|text| text.trim().is_empty()) {
        return Err(Error::Arguments { detail: "--name and --email must not be empty".to_owned() });
    }
    let mut repository = Repository::open(workspace, PointerUse::Store)?;
    repository.git.set_author(&request.name, &request.email);
    repository.remove_stale_locks();
    let base = repository.resolve_base(&request.base)?;
    let mut remarks = Remarks::default();
    let Some(end) = commit_work(&mut repository, request, base.as_deref(), &mut remarks)? else {
        return Ok(json!({ "nothing": true }));
    };
    let Remarks { mut warnings, mut unsaved, has_rejected_files } = remarks;
    if let Some(base) = &base {
        let large_files = large_file_results::examine_result(&repository.git, base, &end.commit)?;
        unsaved.extend(large_files.unsaved.iter().map(|path| format!("large file {path}")));
        warnings.extend(large_files.without_pointer.iter().map(|path| {
            format!("{path:?} belongs to large-file storage (LFS), but the result has its content, not a pointer")
        }));
    }
    warnings.extend(unmerged_branches(&repository, &end.commit, base.as_deref())?);
    let commits = count_commits(&repository, &end.commit, base.as_deref())?;
    if commits == 0 && has_rejected_files {
        // Without a commit, no result shows the warnings.
        unsaved.push("files that git does not take".to_owned());
    }
    let mut report = if commits == 0 {
        json!({ "nothing": true })
    } else {
        write_bundle(&repository, &end.commit, base, output)?;
        json!({ "commit": end.commit, "commits": commits, "committed": end.is_new })
    };
    if !warnings.is_empty() {
        report["warnings"] = warnings.into();
    }
    if !unsaved.is_empty() {
        report["unsaved"] = unsaved.into();
    }
    Ok(report)
}

/// Commits the current workspace; `None` if there has never been anything in it.
fn commit_work(
    repository: &mut Repository,
    request: &Request,
    base: Option<&str>,
    Remarks { warnings, unsaved, has_rejected_files }: &mut Remarks,
) -> Result<Option<End>, Error> {
    let underway = repository.unfinished_operation();
    let head = repository.resolve_commit("HEAD")?;
    let parent = head.clone().or_else(|| base.map(str::to_owned));
    if head.is_none() {
        warnings.push("HEAD has no commit any more; the result builds on where the sandbox started".to_owned());
    }
    let mut index = Index::new(repository, parent.as_deref())?;
    index.add_everything(&repository.git)?;
    let left_out = index.warnings();
    *has_rejected_files = !left_out.is_empty();
    if left_out.iter().any(|warning| warning.contains("clean filter 'lfs' failed")) {
        unsaved.push("large files that could not be stored".to_owned());
    }
    warnings.extend(left_out);
    let submodules = submodule_work::list_unsaved(&repository.git, base)?;
    unsaved.extend(submodules.iter().map(|path| format!("submodule {path}")));
    let tree = repository.git.command(COMMITTING).args(["write-tree"]).run_slow()?.require_success()?.text();
    let merged = if underway == UnfinishedOperation::Merge { merge_parents(repository)? } else { Vec::new() };
    match &parent {
        Some(parent) if merged.is_empty() => {
            let before =
                repository.git.query(["rev-parse", "--verify", &format!("{parent}^{{tree}}")])?.require_success()?;
            if before.text() == tree {
                return Ok(Some(End { commit: parent.clone(), is_new: false }));
            }
        }
        None if repository.git.query(["ls-tree", &tree])?.stdout.is_empty() => return Ok(None),
        _ => {}
    }
    let parents = parent.iter().chain(&merged).flat_map(|parent| ["-p", parent.as_str()]);
    let command = repository.git.command(COMMITTING).args(["commit-tree", "-F", "-"]).args(parents).args([&tree]);
    // A missing message must not lose the work.
    let message = Some(request.message.trim()).filter(|message| !message.is_empty()).unwrap_or(DEFAULT_MESSAGE);
    let commit = command.input(format!("{message}\n").as_bytes())?.run_quick()?.require_success()?.text();
    match underway {
        UnfinishedOperation::Nothing => {}
        UnfinishedOperation::Merge => warnings.push("a merge was under way; it is committed as it stood".to_owned()),
        UnfinishedOperation::Rebase
        | UnfinishedOperation::CherryPick
        | UnfinishedOperation::Revert
        | UnfinishedOperation::Bisect => {
            warnings.push(format!("a {} was under way; the result is the workspace as it stood", underway.name()));
            // Moving HEAD would break the agent's operation.
            return Ok(Some(End { commit, is_new: true }));
        }
    }
    if let Err(error) = advance_branch(repository, &index, head.as_deref(), &commit, underway) {
        warnings.push(format!("the workspace's own branch could not be moved: {error}"));
    }
    Ok(Some(End { commit, is_new: true }))
}

/// The other parents of an unfinished merge.
fn merge_parents(repository: &Repository) -> Result<Vec<String>, Error> {
    let text = read_regular_file(&repository.git_dir.join("MERGE_HEAD"), 1 << 16).map(|(text, _)| text);
    let text = text.unwrap_or_default();
    let lines = String::from_utf8_lossy(&text).into_owned();
    let named = lines.lines().filter(|line| repository.format.is_object_id(line));
    named.filter_map(|commit| repository.resolve_commit(commit).transpose()).collect()
}

/// Moves the agent's branch to the commit, so that nothing is uncommitted.
fn advance_branch(
    repository: &Repository,
    index: &Index,
    head: Option<&str>,
    commit: &str,
    underway: UnfinishedOperation,
) -> Result<(), Error> {
    let failed = |source: io::Error| Error::Io { what: COMMITTING, source };
    let nothing = "0".repeat(repository.format.hex_digits());
    let moved = repository.git.command(COMMITTING);
    let moved = moved.args(["update-ref", "-m", "commit: what was left", "HEAD", commit, head.unwrap_or(&nothing)]);
    moved.run_quick()?.require_success()?;
    let fresh = repository.git_dir.join("index.atoll");
    copy_index(&index.path, &fresh)
        .and_then(|()| fs::rename(&fresh, repository.git_dir.join("index")))
        .map_err(failed)?;
    if underway == UnfinishedOperation::Merge {
        for name in ["MERGE_HEAD", "MERGE_MODE", "MERGE_MSG", "AUTO_MERGE"] {
            drop(fs::remove_file(repository.git_dir.join(name)));
        }
    }
    Ok(())
}

fn count_commits(repository: &Repository, commit: &str, base: Option<&str>) -> Result<u64, Error> {
    let mut revisions = vec![commit.to_owned()];
    revisions.extend(base.map(|base| format!("^{base}")));
    let counted = repository.git.command(PACKING).args(["rev-list", "--count"]).args(revisions).args(["--"]);
    Ok(counted.run_slow()?.require_success()?.text().parse().unwrap_or(0))
}

/// Branches with work that the result lacks: the agent may have switched branches.
fn unmerged_branches(repository: &Repository, commit: &str, base: Option<&str>) -> Result<Vec<String>, Error> {
    let listed = repository.git.command(PACKING).args(["for-each-ref", "--format=%(refname:short)"]);
    let known = [Some(commit), base].into_iter().flatten().map(|commit| format!("--no-merged={commit}"));
    let listed = listed.args(known).args(["refs/heads/"]).run_slow()?;
    let text = if listed.is_success() { listed.text() } else { String::new() };
    let say = |branch: &str| format!("branch {branch:?} has commits that are not in the result");
    Ok(text.lines().take(MAX_BRANCHES).map(say).collect())
}

fn write_bundle(repository: &Repository, commit: &str, base: Option<String>, mut output: File) -> Result<(), Error> {
    let revisions = base.iter().fold(format!("{commit}\n"), |revisions, base| format!("{revisions}^{base}\n"));
    let refs = vec![(bundle::RESULT_REF.to_owned(), commit.to_owned())];
    let head = BundleHeader { format: repository.format, prerequisites: base.into_iter().collect(), refs };
    head.write(&mut output).map_err(|source| Error::Io { what: PACKING, source })?;
    let pack = ["pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "--quiet"];
    repository
        .git
        .command(PACKING)
        .args(pack)
        .input(revisions.as_bytes())?
        .write_into(output, repository.git.workspace.output_bytes)?
        .require_success()?;
    Ok(())
}
