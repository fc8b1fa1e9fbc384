//! Changes the checkout of a layer into the sandbox's own commit and branch, with as few writes as possible.
//!
//! Only git of an earlier `git-in` wrote the layer, before any program of its sandbox ran. So its configuration is used as it
//! is, and its files need no check.

use super::command::Git;
use super::error::Error;
use super::input::{MANY_FILES, Request, adjust_index_time, bundle_contents, set_identity};
use atoll_forge::plumbing::bundle::BundleHeader;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Seek};
use std::time::SystemTime;

const WHAT: &str = "changing the checkout of the layer";

/// Brings the commits that the layer lacks, and switches branch and files to the bundle's commit.
pub(super) fn switch_checkout(
    request: &Request,
    git: &Git,
    mut bundle: File,
    layer_commit: &str,
) -> Result<Value, Error> {
    let failed = |source| Error::Io { what: WHAT, source };
    let root = &git.workspace.root;
    let broken = |detail: &str| Error::BrokenRepository { root: root.clone(), detail: detail.to_owned() };
    let header =
        BundleHeader::read(&mut bundle).map_err(|malformed| Error::BadBundle { detail: malformed.to_string() })?;
    let (commit, _) = bundle_contents(&header)?;
    if let Some(expected) = request.base.as_ref().filter(|expected| **expected != commit) {
        return Err(Error::BaseMismatch { expected: expected.clone(), found: commit });
    }
    let head = git.query(["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])?;
    if !head.is_success() || head.text() != layer_commit || header.prerequisites != [layer_commit] {
        return Err(broken("the layer is at another commit"));
    }
    let old_branch = git.query(["symbolic-ref", "--quiet", "HEAD"])?.require_success()?.text();
    if has_pack(&mut bundle).map_err(failed)? {
        let indexed = git.command(WHAT).args(["index-pack", "--stdin", "--fix-thin"]).input_file(bundle).run_slow()?;
        if !indexed.is_success() {
            return Err(Error::BadBundle { detail: indexed.failure_detail() });
        }
    }
    let changed = if commit == layer_commit {
        0
    } else {
        let listing = git.command(WHAT).args(["diff-tree", "-r", "-z", "--name-only", layer_commit, &commit]);
        let listed = listing.run_slow()?.require_success()?.stdout;
        git.command(WHAT).args(["read-tree", "-m", "-u", layer_commit, &commit]).run_slow()?.require_success()?;
        listed.iter().filter(|byte| **byte == 0).count()
    };
    switch_branch(request, git, &commit, &old_branch)?;
    set_identity(request, git)?;
    // Every unchanged file is older than the index then, so that git need not read it again.
    let index = root.join(".git/index");
    let files = if changed > MANY_FILES as usize {
        adjust_index_time(&index).map_err(failed)?
    } else {
        touch(&index).map_err(failed)?;
        0
    };
    Ok(json!({ "commit": commit, "files": files, "changed": changed, "shallow": false }))
}

/// A bundle whose commit the layer has ends after its header.
fn has_pack(bundle: &mut File) -> io::Result<bool> {
    Ok(bundle.stream_position()? < bundle.metadata()?.len())
}

/// Replaces the branch of the layer, with its log.
fn switch_branch(request: &Request, git: &Git, commit: &str, old_branch: &str) -> Result<(), Error> {
    let name = request.branch_ref();
    let run = |arguments: &[&str]| -> Result<(), Error> {
        git.command(WHAT).args(arguments).run_quick()?.require_success()?;
        Ok(())
    };
    match fs::remove_dir_all(git.workspace.root.join(".git/logs")) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(Error::Io { what: WHAT, source: error });
        }
        _ => {}
    }
    if name != *old_branch {
        // First, because one name can be a directory of the other.
        run(&["symbolic-ref", "HEAD", "refs/heads/atoll-switch"])?;
        run(&["update-ref", "-d", "--", old_branch])?;
        run(&["symbolic-ref", "HEAD", &name])?;
    }
    run(&["update-ref", "-m", "atoll: start", "--", &name, commit])
}

fn touch(path: &std::path::Path) -> io::Result<()> {
    match File::options().write(true).open(path) {
        // A commit without files has no index.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        file => file?.set_modified(SystemTime::now()),
    }
}
