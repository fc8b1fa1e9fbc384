//! `git-parts`: adds submodules and large files to the checkout of a new workspace, before any program of its sandbox runs.

use super::command::{Git, GitWorkspace};
use super::error::Error;
use super::index::to_path;
use super::input::{adjust_index_time, bundle_contents, end_history};
use super::large_file_results::list_filtered;
use super::layer_checkout::is_plain;
use atoll_forge::plumbing::bundle::BundleHeader;
use atoll_forge::plumbing::checkout_parts::{CheckoutPart, SubmodulePart};
use atoll_forge::plumbing::large_files::{LargeFile, LargeFileStore, POINTER_BYTES};
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::Path;

const WHAT: &str = "adding submodules and large files";

/// Settings that submodules have in common with the workspace's repository.
const SHARED_SETTINGS: [&str; 3] = ["user.name", "user.email", "core.checkStat"];

fn failed(source: io::Error) -> Error {
    Error::Io { what: WHAT, source }
}

/// Reads a stream of parts.
pub(super) fn add_parts(workspace: &GitWorkspace, input: File) -> Result<Value, Error> {
    let git = Git::find(workspace)?;
    let store = LargeFileStore::of_git_dir(&workspace.root.join(".git"));
    let mut from = BufReader::new(input);
    let (mut submodules, mut large_files) = (0, 0);
    while let Some((part, bytes)) = CheckoutPart::read_header(&mut from).map_err(failed)? {
        let mut content = (&mut from).take(bytes);
        match part {
            CheckoutPart::Submodule(submodule) => {
                add_submodule(&git, &submodule, &mut content)?;
                submodules += 1;
            }
            CheckoutPart::LargeFile { oid } => {
                let mut new = store.begin().map_err(failed)?;
                io::copy(&mut content, &mut new).map_err(failed)?;
                let file = LargeFile { oid, size: bytes };
                new.finish_as(&file).map_err(failed)?;
                large_files += 1;
            }
        }
        if content.limit() > 0 {
            return Err(Error::BadBundle { detail: "it ends too soon".to_owned() });
        }
    }
    if large_files > 0 {
        write_large_files(&git, &store)?;
    }
    Ok(json!({ "submodules": submodules, "large_files": large_files }))
}

/// Creates the repository and the checkout of a submodule as git does, at a commit without a branch.
fn add_submodule(git: &Git, part: &SubmodulePart, content: &mut impl Read) -> Result<(), Error> {
    let refused = || Error::BadBundle { detail: format!("the submodule {:?} has an unusual path", part.path) };
    let below_modules = part.git_dir.strip_prefix(".git/modules/").ok_or_else(refused)?;
    if !is_plain(part.path.as_bytes()) || !is_plain(below_modules.as_bytes()) {
        return Err(refused());
    }
    let workspace = &git.workspace.root;
    let (root, git_dir) = (workspace.join(&part.path), workspace.join(&part.git_dir));
    for directory in [&root, &git_dir] {
        remove_tree(directory).map_err(failed)?;
        fs::create_dir_all(directory).map_err(failed)?;
    }
    let header = BundleHeader::read(content).map_err(|malformed| Error::BadBundle { detail: malformed.to_string() })?;
    let (commit, shallow) = bundle_contents(&header)?;
    if commit != part.commit {
        return Err(Error::BaseMismatch { expected: part.commit.clone(), found: commit });
    }
    let pack = git_dir.join("atoll.pack");
    io::copy(content, &mut File::create(&pack).map_err(failed)?).map_err(failed)?;

    let format = format!("--object-format={}", header.format.name());
    fs::write(root.join(".git"), format!("gitdir: {}\n", relative(&part.path, &part.git_dir))).map_err(failed)?;
    git.command_without_repository(WHAT)
        .env("GIT_DIR", &git_dir)
        .args(["init", "--quiet", "--template=", &format])
        .run_quick()?
        .require_success()?;
    let run = |arguments: &[&str]| {
        git.command_in(&root, WHAT).args(arguments).run_slow()?.require_success().map_err(Error::from)
    };
    run(&["config", "--", "core.bare", "false"])?;
    run(&["config", "--", "core.worktree", &relative(&part.git_dir, &part.path)])?;
    for key in SHARED_SETTINGS {
        let value = git.query(["config", "--null", "--get", key])?;
        if value.is_success() {
            run(&["config", "--", key, value.text().trim_end_matches('\0')])?;
        }
    }
    let packed = File::open(&pack).map_err(failed)?;
    let indexed = git.command_in(&root, WHAT).args(["index-pack", "--stdin"]).input_file(packed).run_slow()?;
    if !indexed.is_success() {
        return Err(Error::BadBundle { detail: indexed.failure_detail() });
    }
    fs::remove_file(&pack).map_err(failed)?;
    end_history(git.command_in(&root, WHAT), &git_dir, &shallow)?;
    run(&["update-ref", "--no-deref", "-m", "atoll: start", "--", "HEAD", &commit])?;
    run(&["reset", "--quiet", "--hard", &commit])?;
    adjust_index_time(&git_dir.join("index")).map_err(failed)?;

    // For `git submodule`.
    let parent = workspace.join(&part.parent);
    for (field, value) in [("active", "true"), ("url", &part.url)] {
        let key = format!("submodule.{}.{field}", part.name);
        git.command_in(&parent, WHAT).args(["config", "--", &key, value]).run_quick()?.require_success()?;
    }
    Ok(())
}

/// The relative path from one directory of the workspace to another.
fn relative(from: &str, to: &str) -> String {
    format!("{}{to}", "../".repeat(from.split('/').count()))
}

fn remove_tree(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Replaces the pointers in the checkout by the files that the storage has. The index keeps the pointers.
fn write_large_files(git: &Git, store: &LargeFileStore) -> Result<(), Error> {
    let listed = git.command(WHAT).args(["ls-files", "-z"]).run_slow()?.require_success()?.stdout;
    let mut names = Vec::new();
    for name in list_filtered(git, &listed)? {
        let path = git.workspace.root.join(to_path(&name));
        let is_small =
            fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && POINTER_BYTES.contains(&found.len()));
        let file = if is_small { LargeFile::parse(&fs::read(&path).map_err(failed)?) } else { None };
        if file.is_some_and(|file| store.has(&file)) {
            // Git writes no file that it takes for unchanged.
            fs::remove_file(&path).map_err(failed)?;
            names.extend_from_slice(&name);
            names.push(0);
        }
    }
    let writing = git.command(WHAT).args(["checkout-index", "--force", "--index", "-z", "--stdin"]).input(&names)?;
    writing.run_slow()?.require_success()?;
    adjust_index_time(&git.workspace.root.join(".git/index")).map_err(failed)?;
    Ok(())
}
