//! Work in submodules. A result has only the ids of their commits, so commits and files that only the workspace has would be
//! lost with it.

use super::command::Git;
use super::error::Error;
use super::index::{split_records, to_path};
use std::fs;

const WHAT: &str = "looking through the submodules";

/// Maximum depth of submodules in submodules.
const MAX_NESTING: usize = 8;
/// Maximum number of reported submodules.
const MAX_REPORTED: usize = 50;

/// Lists the submodules of the index that have files or commits beyond those of the commit `start`.
pub(super) fn list_unsaved(git: &Git, start: Option<&str>) -> Result<Vec<String>, Error> {
    let mut unsaved = Vec::new();
    examine_submodules(git, "", start, 0, &mut unsaved)?;
    Ok(unsaved)
}

fn examine_submodules(
    git: &Git,
    prefix: &str,
    start: Option<&str>,
    depth: usize,
    unsaved: &mut Vec<String>,
) -> Result<(), Error> {
    let listed = git.command(WHAT).args(["ls-files", "--stage", "-z"]).run_slow()?.require_success()?;
    let names = split_records(&listed.stdout)
        .filter(|record| record.starts_with(b"160000 "))
        .filter_map(|record| Some(&record[record.iter().position(|byte| *byte == b'\t')? + 1..]));
    for name in names {
        let directory = git.workspace.root.join(to_path(name));
        let is_filled = fs::read_dir(&directory).is_ok_and(|mut entries| entries.next().is_some());
        if !is_filled || unsaved.len() >= MAX_REPORTED {
            continue;
        }
        let shown = format!("{prefix}{}", String::from_utf8_lossy(name));
        let first = start.map(|start| find_link(git, start, name)).transpose()?.flatten();
        let submodule = git.of_submodule(&directory)?;
        match first.filter(|_| depth < MAX_NESTING) {
            Some(first) if is_saved(&submodule, &first)? => {
                examine_submodules(&submodule, &format!("{shown}/"), Some(&first), depth + 1, unsaved)?;
            }
            Some(_) | None => unsaved.push(shown),
        }
    }
    Ok(())
}

/// The commit of a submodule in another commit.
fn find_link(git: &Git, commit: &str, name: &[u8]) -> Result<Option<String>, Error> {
    let listed = git.command(WHAT).args(["ls-tree", "-z", "--full-tree", commit, "--"]).args([to_path(name)]);
    let listed = listed.run_quick()?.text();
    Ok(listed.strip_prefix("160000 commit ").and_then(|rest| rest.split('\t').next()).map(str::to_owned))
}

/// True if all commits and files of a submodule's repository are in its commit `first`.
fn is_saved(submodule: &Git, first: &str) -> Result<bool, Error> {
    let not = format!("^{first}");
    let newer =
        submodule.query(["rev-list", "--max-count=1", "--exclude=refs/remotes/*", "--all", "HEAD", &not, "--"])?;
    if !newer.is_success() || !newer.stdout.is_empty() {
        return Ok(false);
    }
    let status = ["status", "--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=all"];
    let status = submodule.command(WHAT).args(status).run_slow()?;
    Ok(status.is_success() && status.stdout.is_empty())
}
