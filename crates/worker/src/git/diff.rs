//! `git-diff`: compares the workspace with its start, without writing to the workspace.

use super::command::GitWorkspace;
use super::error::Error;
use super::index::Index;
use super::large_file_filters::PointerUse;
use super::repository::Repository;
use atoll_forge::plumbing::changes;
use clap::Args;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufWriter, Write};

const WHAT: &str = "comparing the workspace with its start";

#[derive(Debug, Args)]
pub(super) struct Request {
    #[arg(long, allow_hyphen_values = true)]
    base: String,
    /// Only these files and directories.
    #[arg(long, allow_hyphen_values = true)]
    path: Vec<String>,
    /// Print the patch instead of the list of files.
    #[arg(long)]
    patch: bool,
}

pub(super) fn diff_workspace(request: &Request, workspace: &GitWorkspace, output: File) -> Result<Value, Error> {
    let mut repository = Repository::open(workspace, PointerUse::Compare)?;
    let base =
        repository.resolve_base(&request.base)?.ok_or_else(|| Error::BaseMissing { base: request.base.clone() })?;
    let head = repository.resolve_commit("HEAD")?;
    let mut index = Index::new(&mut repository, head.as_deref().or(Some(&base)))?;
    index.name_everything(&repository.git)?;
    let compare = repository.git.command(WHAT).args([
        "diff-index",
        "-M",
        "-l1000",
        "--no-ext-diff",
        "--no-textconv",
        "--no-color",
        "--ignore-submodules=dirty",
    ]);
    let scope = || ["--end-of-options", &base, "--"].into_iter().chain(request.path.iter().map(String::as_str));
    if request.patch {
        let prefixes = ["--patch", "--submodule=short", "--src-prefix=a/", "--dst-prefix=b/"];
        compare.args(prefixes).args(scope()).write_into(output, workspace.output_bytes)?.require_success()?;
        return Ok(Value::Null);
    }
    let listed = compare.args(["-z", "--raw", "--numstat"]).args(scope()).run_slow()?.require_success()?;
    let unread = || Error::Git { what: WHAT, detail: "its list cannot be read".to_owned() };
    let files = changes::parse(&listed.stdout).ok_or_else(unread)?;
    let mut report = json!({ "base": base, "files": files });
    let warnings = index.warnings();
    if !warnings.is_empty() {
        report["warnings"] = warnings.into();
    }
    let mut output = BufWriter::new(output);
    let written = serde_json::to_writer(&mut output, &report).map_err(std::io::Error::from);
    written
        .and_then(|()| output.write_all(b"\n"))
        .and_then(|()| output.flush())
        .map_err(|source| Error::Io { what: WHAT, source })?;
    Ok(Value::Null)
}
