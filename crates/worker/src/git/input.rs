//! `git-in`: creates a repository at a commit, on its own branch, in an empty workspace.
//!
//! With `--restore` it creates only the repository, around the files of a workspace whose own repository is gone or unusable.
//! With `--over-layer` it replaces the checkout of a set-up layer. With `--over-checkout` it changes the checkout of a layer
//! that only Atoll wrote.

use super::checkout_switch;
use super::command::{Git, GitCommand, GitWorkspace};
use super::error::Error;
use super::exclude;
use super::large_file_filters::{self, PointerUse};
use super::layer_checkout::{self, OldIndex};
use super::repository::Repository;
use super::sparse_checkout;
use atoll_forge::plumbing::bundle::{self, BundleHeader};
use clap::Args;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const WHAT: &str = "filling the workspace";

/// The new name of an unusable repository in the workspace.
const SET_ASIDE: &str = ".git.broken";

/// Number of files from which adjusting the index's time pays off.
pub(super) const MANY_FILES: u32 = 2000;

#[derive(Debug, Args)]
pub(super) struct Request {
    #[arg(long, allow_hyphen_values = true)]
    branch: String,
    #[arg(long, allow_hyphen_values = true)]
    name: String,
    #[arg(long, allow_hyphen_values = true)]
    email: String,
    /// The commit that the bundle must contain.
    #[arg(long, allow_hyphen_values = true)]
    pub(super) base: Option<String>,
    /// Keep the files of the workspace.
    #[arg(long, conflicts_with = "over_layer")]
    restore: bool,
    /// Replace the checkout of a set-up layer, and keep what set-up left.
    #[arg(long)]
    over_layer: bool,
    /// Change the checkout of a layer, which is at this commit, into the bundle's.
    #[arg(long, value_name = "COMMIT", allow_hyphen_values = true, conflicts_with_all = ["restore", "over_layer"])]
    over_checkout: Option<String>,
    /// Check out only this directory, and the files above it.
    #[arg(long = "sparse", value_name = "DIR", allow_hyphen_values = true)]
    sparse_dirs: Vec<String>,
    /// Use large-file storage: commits have pointers.
    #[arg(long)]
    lfs: bool,
    /// Configure the repository for workspaces that are copies of it.
    #[arg(long)]
    for_layer: bool,
}

impl Request {
    pub(super) fn branch_ref(&self) -> String {
        format!("refs/heads/{}", self.branch)
    }
}

/// Fills the workspace; after a failure it is empty again.
pub(super) fn fill_workspace(request: &Request, workspace: &GitWorkspace, bundle: File) -> Result<Value, Error> {
    let failed = |source| Error::Io { what: WHAT, source };
    let mut git = Git::find(workspace)?;
    let is_over_layer = request.over_layer || request.over_checkout.is_some();
    let is_occupied = match (request.restore, is_over_layer) {
        (true, _) => Repository::open(workspace, PointerUse::Compare).is_ok(),
        (false, true) => false,
        (false, false) => fs::read_dir(&workspace.root).map_err(failed)?.next().is_some(),
    };
    if is_occupied {
        return Err(Error::NotEmpty { root: workspace.root.clone() });
    }
    if request.name.trim().is_empty() || request.email.trim().is_empty() {
        return Err(Error::Arguments { detail: "--name and --email must not be empty".to_owned() });
    }
    if !git
        .command_without_repository(WHAT)
        // Git must not look at the workspace's repository, which may be broken.
        .env("GIT_DIR", "/nonexistent")
        .args(["check-ref-format", "--branch", &request.branch])
        .run_quick()?
        .is_success()
    {
        return Err(Error::BadBranch { branch: request.branch.clone() });
    }
    git.set_author(&request.name, &request.email);
    if !request.sparse_dirs.is_empty() {
        git.enable_sparse_checkout();
    }
    if request.restore {
        return restore_repository(request, &git, bundle);
    }
    if let Some(layer_commit) = &request.over_checkout {
        return checkout_switch::switch_checkout(request, &git, bundle, layer_commit);
    }
    if request.over_layer {
        // After a failure the provider starts without the layer.
        let old = layer_checkout::take_index(&git)?;
        let report = create_repository(request, &git, bundle, Some(old))?;
        exclude::add_patterns(&git, &workspace.root.join(".git"))?;
        return Ok(report);
    }
    create_repository(request, &git, bundle, None).inspect_err(|_| remove_contents(&workspace.root))
}

/// Replaces an unusable repository; after a failure the workspace is as it was.
fn restore_repository(request: &Request, git: &Git, bundle: File) -> Result<Value, Error> {
    let failed = |source| Error::Io { what: WHAT, source };
    let root = &git.workspace.root;
    let (inner, aside) = (root.join(".git"), root.join(SET_ASIDE));
    let is_there = fs::symlink_metadata(&inner).is_ok();
    if is_there {
        fs::rename(&inner, &aside).map_err(failed)?;
    }
    create_repository(request, git, bundle, None).inspect_err(|_| {
        drop(fs::remove_dir_all(&inner));
        if is_there {
            drop(fs::rename(&aside, &inner));
        }
    })
}

fn create_repository(
    request: &Request,
    git: &Git,
    mut bundle: File,
    old_checkout: Option<OldIndex>,
) -> Result<Value, Error> {
    let head =
        BundleHeader::read(&mut bundle).map_err(|malformed| Error::BadBundle { detail: malformed.to_string() })?;
    if !head.prerequisites.is_empty() {
        return Err(Error::BadBundle { detail: "it builds on commits that it does not bring".to_owned() });
    }
    let (base, shallow) = bundle_contents(&head)?;
    if let Some(expected) = request.base.as_ref().filter(|expected| **expected != base) {
        return Err(Error::BaseMismatch { expected: expected.clone(), found: base });
    }
    let format = format!("--object-format={}", head.format.name());
    let branch = format!("--initial-branch={}", request.branch);
    git.command(WHAT).args(["init", "--quiet", "--template=", &format, &branch]).run_quick()?.require_success()?;
    if let Some(old) = old_checkout {
        old.remove_files(git, head.format)?;
    }
    // The directories of git's template, without its samples.
    let inner = git.workspace.root.join(".git");
    for name in ["hooks", "info"] {
        fs::create_dir_all(inner.join(name)).map_err(|source| Error::Io { what: WHAT, source })?;
    }
    let indexed = git.command(WHAT).args(["index-pack", "--stdin"]).input_file(bundle).run_slow()?;
    if !indexed.is_success() {
        return Err(Error::BadBundle { detail: indexed.failure_detail() });
    }
    end_history(git.command(WHAT), &inner, &shallow)?;
    set_identity(request, git)?;
    if request.for_layer {
        // Inodes and owners of files can differ between the workspaces of a layer.
        git.command(WHAT).args(["config", "--", "core.checkStat", "minimal"]).run_quick()?.require_success()?;
    }
    sparse_checkout::choose_directories(git, &request.sparse_dirs)?;
    let name = request.branch_ref();
    git.command(WHAT)
        .args(["update-ref", "-m", "atoll: start", "--", &name, &base, ""])
        .run_quick()?
        .require_success()?;
    if request.restore {
        let exclude = format!("/{SET_ASIDE}\n");
        fs::write(inner.join("info/exclude"), exclude).map_err(|source| Error::Io { what: WHAT, source })?;
        git.command(WHAT).args(["read-tree", &base]).run_slow()?.require_success()?;
        if !request.sparse_dirs.is_empty() {
            sparse_checkout::skip_absent_files(git)?;
        }
    } else {
        git.command(WHAT).args(["reset", "--quiet", "--hard", &base]).run_slow()?.require_success()?;
    }
    if request.lfs {
        large_file_filters::configure(git)?;
    }
    let files = adjust_index_time(&inner.join("index")).map_err(|source| Error::Io { what: WHAT, source })?;
    Ok(json!({ "commit": base, "files": files, "shallow": !shallow.is_empty() }))
}

/// Sets the author of the agent's own commits.
pub(super) fn set_identity(request: &Request, git: &Git) -> Result<(), Error> {
    for (key, value) in [("user.name", &request.name), ("user.email", &request.email)] {
        git.command(WHAT).args(["config", "--", key, value]).run_quick()?.require_success()?;
    }
    Ok(())
}

/// The commit of a bundle, and the commits where its history ends.
pub(super) fn bundle_contents(head: &BundleHeader) -> Result<(String, Vec<String>), Error> {
    let refused = |detail: &str| Err(Error::BadBundle { detail: detail.to_owned() });
    let mut base = None;
    let mut shallow = Vec::new();
    for (name, commit) in &head.refs {
        if name == bundle::BASE_REF && base.is_none() {
            base = Some(commit.clone());
        } else if name.starts_with(bundle::SHALLOW_REF_PREFIX) {
            shallow.push(commit.clone());
        } else {
            return refused("it names other refs than the base");
        }
    }
    base.map_or_else(|| refused("it does not name the base"), |base| Ok((base, shallow)))
}

/// Marks the end of a shallow history.
pub(super) fn end_history(git: GitCommand, git_dir: &Path, shallow: &[String]) -> Result<(), Error> {
    if shallow.is_empty() {
        return Ok(());
    }
    let names: String = shallow.iter().map(|commit| format!("{commit}\n")).collect();
    let there = git.args(["cat-file", "--batch-check=%(objectname) %(objecttype)"]).input(names.as_bytes())?;
    let there = there.run_slow()?.require_success()?.text();
    let ends: String =
        there.lines().filter_map(|line| line.strip_suffix(" commit")).map(|id| format!("{id}\n")).collect();
    fs::write(git_dir.join("shallow"), ends).map_err(|source| Error::Io { what: WHAT, source })
}

/// Makes the index newer than all files. Git reads a file again at each `git status` if it is not older than the index.
/// Returns the number of files.
pub(super) fn adjust_index_time(index: &Path) -> io::Result<u32> {
    let mut head = [0; 12];
    let mut file = match File::options().read(true).write(true).open(index) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(0),
        other => other?,
    };
    file.read_exact(&mut head)?;
    let [.., a, b, c, d] = head;
    let files = u32::from_be_bytes([a, b, c, d]);
    if files > MANY_FILES {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let next_second = Duration::from_secs(now.as_secs() + 1) + Duration::from_millis(20);
        std::thread::sleep(next_second.saturating_sub(now));
        file.set_modified(SystemTime::now())?;
    }
    Ok(files)
}

fn remove_contents(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            drop(fs::remove_dir_all(path));
        } else {
            drop(fs::remove_file(path));
        }
    }
}
