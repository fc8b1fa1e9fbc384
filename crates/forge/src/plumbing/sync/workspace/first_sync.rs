//! The first sync: files as tar, objects as a pack with its index, and the index of the worktree, so that git in the
//! sandbox need not read any file.

use super::{
    BASE_REF, RECEIVING, ReceivedSync, WorkspaceCopy, WorkspaceError, WorkspaceGit, agent_state, write_with_time,
};
use crate::plumbing::bundle::ObjectFormat;
use crate::plumbing::sync::stream::{SectionReader, SyncHeader};
use atoll_trees::{SymlinkPolicy, unpack_tree};
use rustix::fs::{Mode, OFlags};
use std::fs::{self, File};
use std::io::{self, BufReader};
use std::path::Path;

/// Conversion settings that a worktree passes on.
pub(super) const PASSED_SETTINGS: [&str; 3] = ["core.autocrlf", "core.eol", "core.filemode"];

impl<G: WorkspaceGit> WorkspaceCopy<'_, G> {
    pub(super) fn receive_first(
        &self,
        header: &SyncHeader,
        format: ObjectFormat,
        mut input: BufReader<File>,
    ) -> Result<ReceivedSync, G::Error> {
        self.prepare_empty_workspace()?;
        let failed = |source| WorkspaceError::Io { what: RECEIVING, source };
        let object_format = format!("--object-format={}", format.name());
        self.git.init_repository(&self.sync_dir, &["--bare", &object_format])?.require_success()?;
        for (name, value) in passed_settings(header) {
            self.git.run_git(RECEIVING, &["config", "--", name, value], None)?.require_success()?;
        }
        fs::create_dir_all(self.sync_dir.join("info")).map_err(failed)?;
        fs::write(self.sync_dir.join("info/exclude"), &header.excludes).map_err(failed)?;
        write_shallow(&self.sync_dir, &header.shallow).map_err(failed)?;

        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open(&self.root, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let mut section = SectionReader::new(&mut input);
        let files = BufReader::with_capacity(atoll_trees::CHUNK_BYTES, &mut section);
        let unpacked =
            unpack_tree(files, root, SymlinkPolicy::Any, |_| {}).map_err(|error| failed(io::Error::other(error)))?;
        section.finish().map_err(failed)?;
        let packs = self.sync_dir.join("objects/pack");
        fs::create_dir_all(&packs).map_err(failed)?;
        for ending in ["pack", "idx"] {
            let mut file = File::create(packs.join(format!("pack-{}.{ending}", header.commit))).map_err(failed)?;
            io::copy(&mut SectionReader::new(&mut input), &mut file).map_err(failed)?;
        }
        let [own_time, staged_time] = header.index_times;
        let own_index = SectionReader::new(&mut input);
        write_index(&self.sync_dir.join("index"), own_index, own_time).map_err(failed)?;
        self.create_agent_repository(header, format)?;
        let staged_index = SectionReader::new(&mut input);
        write_index(&self.root.join(".git/index"), staged_index, staged_time).map_err(failed)?;
        let mut updates = vec![(BASE_REF, Some(header.commit.as_str()))];
        updates.extend(agent_state(header));
        self.update_refs(&updates)?;
        let warnings = unpacked.named.iter().map(|skipped| format!("{}: {}", skipped.path, skipped.reason)).collect();
        Ok(ReceivedSync { commit: header.commit.clone(), changed_files: unpacked.entries, warnings })
    }

    /// Removes what an interrupted first sync left; refuses a workspace with other files.
    fn prepare_empty_workspace(&self) -> Result<(), G::Error> {
        let failed = |source| WorkspaceError::Io { what: RECEIVING, source };
        if self.sync_dir.exists() {
            if self.read_refs()?.contains_key(BASE_REF) {
                return Err(WorkspaceError::NotEmpty.into());
            }
            for entry in fs::read_dir(&self.root).map_err(failed)?.flatten() {
                remove_entry(&entry.path()).map_err(failed)?;
            }
            fs::remove_dir_all(&self.sync_dir).map_err(failed)?;
        }
        let is_empty = fs::read_dir(&self.root).map_err(failed)?.next().is_none();
        if is_empty { Ok(()) } else { Err(WorkspaceError::NotEmpty.into()) }
    }
}

pub(super) fn passed_settings(header: &SyncHeader) -> impl Iterator<Item = (&str, &str)> {
    PASSED_SETTINGS.into_iter().filter_map(|name| Some((name, header.config.get(name)?.as_str())))
}

pub(super) fn write_shallow(git_dir: &Path, commits: &[String]) -> io::Result<()> {
    if commits.is_empty() {
        return Ok(());
    }
    fs::write(git_dir.join("shallow"), commits.iter().flat_map(|id| [id.as_str(), "\n"]).collect::<String>())
}

/// Writes an index. A worktree without files has none.
fn write_index(path: &Path, mut from: SectionReader<'_, BufReader<File>>, nanoseconds: i64) -> io::Result<()> {
    let length = write_with_time(path, &mut from, nanoseconds)?;
    if length == 0 { fs::remove_file(path) } else { Ok(()) }
}

fn remove_entry(path: &Path) -> io::Result<()> {
    let is_directory = fs::symlink_metadata(path)?.is_dir();
    if is_directory { fs::remove_dir_all(path) } else { fs::remove_file(path) }
}
