//! Large files in a result. A result has only pointers, so new contents would be lost with the workspace.

use super::command::Git;
use super::error::Error;
use super::index::split_records;
use atoll_forge::plumbing::large_files::{self, LargeFile, POINTER_BYTES};
use std::collections::BTreeSet;

const WHAT: &str = "looking for large files";

/// Maximum number of reported files.
const MAX_REPORTED: usize = 50;

/// The large files of a result that are not complete in it.
#[derive(Debug, Default)]
pub(super) struct LargeFileReport {
    /// Files whose content is not in the result.
    pub unsaved: Vec<String>,
    /// Files whose content is in the result in place of a pointer.
    pub without_pointer: Vec<String>,
}

/// Examines the files that a result adds or changes.
pub(super) fn examine_result(git: &Git, base: &str, commit: &str) -> Result<LargeFileReport, Error> {
    let diff = ["diff-tree", "-r", "-z", "--raw", "--no-renames", "--diff-filter=AMT", base, commit, "--"];
    let listed = git.command(WHAT).args(diff).run_slow()?.require_success()?.stdout;
    let mut changed: Vec<(&[u8], &str)> = Vec::new();
    let mut fields = split_records(&listed);
    while let (Some(record), Some(name)) = (fields.next(), fields.next()) {
        // `:oldmode newmode oldid newid A`
        let mut columns = std::str::from_utf8(record).unwrap_or_default().split(' ');
        if let (Some(mode), Some(id)) = (columns.nth(1), columns.nth(1))
            && mode.starts_with("100")
        {
            changed.push((name, id));
        }
    }
    let names: Vec<u8> = changed.iter().flat_map(|(name, _)| [name, b"\0".as_slice()].concat()).collect();
    let filtered: BTreeSet<Vec<u8>> = list_filtered(git, &names)?.into_iter().collect();
    changed.retain(|(name, _)| filtered.contains(*name));
    let mut report = LargeFileReport::default();
    let mut known = None;
    for (name, id) in changed.into_iter().take(MAX_REPORTED) {
        let name = String::from_utf8_lossy(name).into_owned();
        let size = git.query(["cat-file", "-s", id])?.text().parse().unwrap_or(0);
        let content = match POINTER_BYTES.contains(&size) {
            true => git.query(["cat-file", "blob", id])?.stdout,
            false => Vec::new(),
        };
        let Some(file) = LargeFile::parse(&content) else {
            report.without_pointer.extend((size > 0).then_some(name));
            continue;
        };
        let known = match &mut known {
            Some(known) => known,
            None => known.insert(list_pointers(git, base)?),
        };
        report.unsaved.extend((!known.contains(&file)).then_some(name));
    }
    Ok(report)
}

/// The large files of a commit.
fn list_pointers(git: &Git, commit: &str) -> Result<BTreeSet<LargeFile>, Error> {
    let listed = git.command(WHAT).args(["ls-tree", "-r", "-z", "-l", "--full-tree", commit]).run_slow()?;
    let listed = listed.require_success()?.stdout;
    let ids = split_records(&listed).filter_map(|record| large_files::find_candidate(record).map(|(id, _)| id));
    let ids: String = ids.flat_map(|id| [id, "\n"]).collect();
    let read = git.command(WHAT).args(["cat-file", "--batch"]).input(ids.as_bytes())?.run_slow()?;
    Ok(large_files::parse_batch(&read.require_success()?.stdout))
}

/// The files of a NUL-separated list that git passes to the filter of large-file storage.
pub(super) fn list_filtered(git: &Git, names: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
    if names.is_empty() {
        return Ok(Vec::new());
    }
    let checking = git.command(WHAT).args(["check-attr", "-z", "--stdin", "filter"]).input(names)?;
    let checked = checking.run_slow()?.require_success()?.stdout;
    let fields: Vec<&[u8]> = checked.split(|byte| *byte == 0).collect();
    let filtered = fields.chunks_exact(3).filter(|triple| triple[2] == b"lfs").map(|triple| triple[0].to_vec());
    Ok(filtered.collect())
}
