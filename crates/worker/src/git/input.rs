//! `git-in`: an empty workspace becomes a repository at a commit, on a branch of its own.

use super::command::{Git, Place};
use super::error::Error;
use atoll_forge::plumbing::bundle::{self, Head};
use clap::Args;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const WHAT: &str = "filling the workspace";

/// From so many files on it is worth a second to spare git from reading some of them again.
const MANY_FILES: u32 = 2000;

#[derive(Debug, Args)]
pub(super) struct Request {
    #[arg(long, allow_hyphen_values = true)]
    branch: String,
    #[arg(long, allow_hyphen_values = true)]
    name: String,
    #[arg(long, allow_hyphen_values = true)]
    email: String,
    /// What the bundle must bring.
    #[arg(long, allow_hyphen_values = true)]
    base: Option<String>,
}

/// All or nothing: after a failure the workspace is as empty as it was.
pub(super) fn fill(request: &Request, place: &Place, bundle: File) -> Result<Value, Error> {
    let failed = |source| Error::Io { what: WHAT, source };
    let mut git = Git::find(place)?;
    if fs::read_dir(&place.root).map_err(failed)?.next().is_some() {
        return Err(Error::NotEmpty { root: place.root.clone() });
    }
    if request.name.trim().is_empty() || request.email.trim().is_empty() {
        return Err(Error::Arguments { detail: "--name and --email must not be empty".to_owned() });
    }
    if !git.bare(WHAT).args(["check-ref-format", "--branch", &request.branch]).quick()?.succeeded() {
        return Err(Error::BadBranch { branch: request.branch.clone() });
    }
    git.with_author(&request.name, &request.email);
    make(request, &git, bundle).inspect_err(|_| empty(&place.root))
}

fn make(request: &Request, git: &Git, mut bundle: File) -> Result<Value, Error> {
    let head = Head::read(&mut bundle).map_err(|malformed| Error::BadBundle { detail: malformed.to_string() })?;
    let (base, shallow) = contents(&head)?;
    if let Some(wanted) = request.base.as_ref().filter(|wanted| **wanted != base) {
        return Err(Error::BaseMismatch { wanted: wanted.clone(), found: base });
    }
    let format = format!("--object-format={}", head.format.name());
    let branch = format!("--initial-branch={}", request.branch);
    git.run(WHAT).args(["init", "--quiet", "--template=", &format, &branch]).quick()?.checked()?;
    // What `git init` would make of its template, less the samples in it.
    let inner = git.place.root.join(".git");
    for name in ["hooks", "info"] {
        fs::create_dir_all(inner.join(name)).map_err(|source| Error::Io { what: WHAT, source })?;
    }
    let indexed = git.run(WHAT).args(["index-pack", "--stdin"]).input_file(bundle).slow()?;
    if !indexed.succeeded() {
        return Err(Error::BadBundle { detail: indexed.detail() });
    }
    end_history(git, &shallow)?;
    for (key, value) in [("user.name", &request.name), ("user.email", &request.email)] {
        git.run(WHAT).args(["config", "--", key, value]).quick()?.checked()?;
    }
    let name = format!("refs/heads/{}", request.branch);
    git.run(WHAT).args(["update-ref", "-m", "atoll: start", "--", &name, &base, ""]).quick()?.checked()?;
    git.run(WHAT).args(["reset", "--quiet", "--hard", &base]).slow()?.checked()?;
    let files = settle(&inner.join("index")).map_err(|source| Error::Io { what: WHAT, source })?;
    Ok(json!({ "commit": base, "files": files, "shallow": !shallow.is_empty() }))
}

/// The commit that a bundle brings, and where its history ends.
fn contents(head: &Head) -> Result<(String, Vec<String>), Error> {
    let refused = |detail: &str| Err(Error::BadBundle { detail: detail.to_owned() });
    if !head.prerequisites.is_empty() {
        return refused("it builds on commits that it does not bring");
    }
    let mut base = None;
    let mut shallow = Vec::new();
    for (name, commit) in &head.refs {
        if name == bundle::BASE && base.is_none() {
            base = Some(commit.clone());
        } else if name.starts_with(bundle::SHALLOW) {
            shallow.push(commit.clone());
        } else {
            return refused("it names other refs than the base");
        }
    }
    base.map_or_else(|| refused("it does not name the base"), |base| Ok((base, shallow)))
}

/// Tells git where history ends: of the commits that are named, those that came along.
fn end_history(git: &Git, shallow: &[String]) -> Result<(), Error> {
    if shallow.is_empty() {
        return Ok(());
    }
    let names: String = shallow.iter().map(|commit| format!("{commit}\n")).collect();
    let there =
        git.run(WHAT).args(["cat-file", "--batch-check=%(objectname) %(objecttype)"]).input(names.as_bytes())?;
    let there = there.slow()?.checked()?.text();
    let ends: String =
        there.lines().filter_map(|line| line.strip_suffix(" commit")).map(|id| format!("{id}\n")).collect();
    fs::write(git.place.root.join(".git/shallow"), ends).map_err(|source| Error::Io { what: WHAT, source })
}

/// Git trusts no file whose time is not older than the index's, and reads it again at each `git status`.
/// Where that would be many, the index is made one second younger than the youngest file. Returns the number of files.
fn settle(index: &Path) -> io::Result<u32> {
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

fn empty(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() && !path.is_symlink() {
            drop(fs::remove_dir_all(path));
        } else {
            drop(fs::remove_file(path));
        }
    }
}
