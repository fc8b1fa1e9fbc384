//! Sync-in: the worktree as a stream for its sandbox.
//!
//! The first stream has the files as tar beside a pack of all objects, so that git in the sandbox need not write or read
//! any file. A later one has a thin pack of what changed since the base.

use super::Worktree;
use super::own_index::copy_with_time;
use crate::author::Author;
use crate::error::Error;
use crate::plumbing::sync::{RunGit, SectionWriter, SyncHeader, split_records};
use atoll_trees::pack_paths;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

const PACKING: &str = "packing the worktree";
const SYNCED_HEAD_REF: &str = "refs/atoll/head";
const SYNCED_STAGED_REF: &str = "refs/atoll/staged";
const SYNCED_FILES_REF: &str = "refs/atoll/files";

/// A worktree that is ready to be sent.
#[derive(Debug)]
pub struct PreparedSync<'a> {
    worktree: &'a Worktree,
    header: SyncHeader,
    /// The thin pack of a later sync.
    changes: Option<File>,
    pub warnings: Vec<String>,
}

impl Worktree {
    /// Reads the worktree and packs what the sandbox lacks. `base` is the state that the sandbox has.
    pub(super) fn prepare_sync(&self, base: Option<&str>) -> Result<PreparedSync<'_>, Error> {
        // Reading the files takes longest; the rest runs beside it.
        let (files, rest) = std::thread::scope(|scope| {
            let rest = scope.spawn(|| {
                let known = base.map(|base| self.tree_of(base).ok());
                let refs = self.read_private_refs()?;
                Ok::<_, Error>((known.flatten(), self.repository.head().ok(), self.write_staged_tree()?, refs))
            });
            (self.take_snapshot(), rest.join())
        });
        let panicked = |_| Error::Git { what: PACKING, detail: "a thread panicked".to_owned() };
        let (files, (base_tree, head, staged, refs)) = (files?, rest.map_err(panicked)??);
        // Without its objects, the base is of no use: the user may have removed them.
        let base = base.filter(|_| base_tree.is_some());
        let commit = match base.filter(|_| base_tree.as_ref() == Some(&files.tree)) {
            Some(base) => base.to_owned(),
            None => self.commit_tree(&files.tree, base)?,
        };
        // Only a new repository needs an author.
        let author = if base.is_none() { self.repository.author() } else { Author::default() };
        let mut header = SyncHeader {
            format: self.repository.format.name().to_owned(),
            commit,
            base: base.map(str::to_owned),
            branch: head.as_ref().and_then(|head| head.branch.clone()),
            head: head.map(|head| head.commit),
            staged,
            config: self.settings.conversions.clone(),
            excludes: self.read_excludes(),
            shallow: self.repository.shallow_commits()?,
            author_name: author.name,
            author_email: author.email,
            index_times: [0; 2],
        };
        let changes = match base {
            Some(base) => Some(self.pack_changes(&header, base, &refs)?),
            None => None,
        };
        if changes.is_none() {
            let time = |path: PathBuf| modified_nanoseconds(&path).unwrap_or(0);
            header.index_times = [time(self.own_index_path()), time(self.staged_copy_path())];
        }
        self.update_private_refs([(SYNCED_FILES_REF, header.commit.as_str())])?;
        Ok(PreparedSync { worktree: self, header, changes, warnings: files.warnings })
    }

    /// Records the objects that the sandbox has.
    pub(super) fn record_sent(&self, sync: &PreparedSync<'_>) -> Result<(), Error> {
        let SyncHeader { commit, head, staged, .. } = &sync.header;
        let states = [(SYNCED_HEAD_REF, head), (SYNCED_STAGED_REF, staged)];
        let states = states.into_iter().filter_map(|(name, id)| Some((name, id.as_deref()?)));
        self.update_private_refs(states.chain([(SYNCED_FILES_REF, commit.as_str())]))
    }

    fn staged_copy_path(&self) -> PathBuf {
        self.dir.join("staged-index")
    }

    /// The staged files as a tree; `None` while the index has conflicts.
    fn write_staged_tree(&self) -> Result<Option<String>, Error> {
        let copy = self.staged_copy_path();
        let known = self.dir.join("staged-tree");
        let stamp =
            fs::metadata(self.user_index_path()).and_then(|found| Ok((found.modified()?, found.len(), found.ino())));
        let stamp = stamp.map(|stamp| format!("{stamp:?} ")).unwrap_or_default();
        // Git replaces its index whenever it changes.
        if let Ok(line) = fs::read_to_string(&known)
            && let Some(tree) = line.strip_prefix(&stamp)
            && self.repository.format.is_object_id(tree)
            && copy.exists()
        {
            return Ok(Some(tree.to_owned()));
        }
        drop(fs::remove_file(&known));
        match copy_with_time(&self.user_index_path(), &copy) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                drop(fs::remove_file(&copy));
                return Ok(None);
            }
            Err(source) => return Err(Error::Io { what: PACKING, source }),
        }
        super::private_git::give_to_owner(&copy, self.repository.owner)
            .map_err(|source| Error::Io { what: PACKING, source })?;
        let command = self.files_command(PACKING)?.env("GIT_INDEX_FILE", &copy).args(["write-tree"]);
        let written = command.capture_output(self.repository.limits.listing_bytes)?;
        let tree = written.is_success().then(|| written.text());
        if let Some(tree) = &tree {
            fs::write(&known, format!("{stamp}{tree}")).map_err(|source| Error::Io { what: PACKING, source })?;
        }
        Ok(tree)
    }

    /// Patterns beyond the worktree's own `.gitignore` files.
    fn read_excludes(&self) -> String {
        let own = fs::read(self.repository.common_dir.join("info/exclude")).unwrap_or_default();
        String::from_utf8_lossy(&[&self.settings.excludes, b"\n".as_slice(), &own].concat()).into_owned()
    }

    /// `known` are the objects that the sandbox has, by their refs.
    fn pack_changes(&self, header: &SyncHeader, base: &str, known: &BTreeMap<String, String>) -> Result<File, Error> {
        let failed = |source| Error::Io { what: PACKING, source };
        let mut revisions = format!("^{base}\n");
        if header.commit != base {
            revisions.push_str(&format!("{}\n", header.commit));
        }
        for (name, id) in [(SYNCED_HEAD_REF, &header.head), (SYNCED_STAGED_REF, &header.staged)] {
            let known = known.get(name);
            if let Some(id) = id.as_ref().filter(|id| Some(*id) != known) {
                revisions.push_str(&format!("{id}\n"));
                if let Some(known) = known {
                    revisions.push_str(&format!("^{known}\n"));
                }
            }
        }
        let mut pack = tempfile::tempfile_in(&self.dir).map_err(failed)?;
        if revisions.lines().all(|line| line.starts_with('^')) {
            return Ok(pack);
        }
        let packing = ["pack-objects", "--revs", "--stdout", "--thin", "--delta-base-offset", "--quiet"];
        let command = self.packing_command()?.args(packing).input_bytes(revisions.as_bytes())?;
        command.write_output(&mut pack, self.repository.limits.source_bytes)?.1.require_success()?;
        pack.rewind().map_err(failed)?;
        Ok(pack)
    }

    fn packing_command(&self) -> Result<crate::git_command::HostGitCommand, Error> {
        let command = self.private_command(PACKING)?.args(["-c", "pack.compression=1"]);
        Ok(command.env("GIT_SHALLOW_FILE", self.repository.common_dir.join("shallow")))
    }

    /// Packs the history, the files and the staged files, with the pack's index. Returns both files.
    fn pack_everything(&self, header: &SyncHeader, to: &Path) -> Result<[PathBuf; 2], Error> {
        let mut revisions = format!("{}\n", header.commit);
        header.head.iter().chain(&header.staged).for_each(|id| revisions.extend([id.as_str(), "\n"]));
        let command = self.packing_command()?.env("GIT_INDEX_FILE", self.staged_copy_path());
        // Existing deltas are used again; a search for new ones would take long.
        let packing = ["pack-objects", "--revs", "--indexed-objects", "--window=0", "--quiet"];
        let command = command.args(packing).args([to.join("pack")]).input_bytes(revisions.as_bytes())?;
        let packed = command.capture_output(self.repository.limits.listing_bytes)?;
        if !packed.is_success() {
            let (path, commit) = (self.root.clone(), header.commit.clone());
            return Err(Error::ObjectsMissing { path, commit, detail: packed.failure_detail() });
        }
        let name = packed.text();
        Ok(["pack", "idx"].map(|ending| to.join(format!("pack-{name}.{ending}"))))
    }

    /// Writes the files of the own index as tar.
    fn write_files(&self, to: impl Write) -> Result<(), Error> {
        let listed = self.run_git(PACKING, &["ls-files", "-z"], None)?.require_success()?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let failed = |source| Error::Io { what: PACKING, source };
        let root = rustix::fs::open(&self.root, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let names = split_records(&listed.stdout);
        let names = names.map(|name| crate::plumbing::sync::marked_directory(name).unwrap_or(name));
        pack_paths(&root, names, to).map_err(|error| failed(io::Error::other(error)))?;
        Ok(())
    }
}

impl PreparedSync<'_> {
    pub fn commit(&self) -> &str {
        &self.header.commit
    }

    /// True if the sandbox gets everything, and not only changes.
    pub const fn is_first(&self) -> bool {
        self.changes.is_none()
    }

    /// Writes the stream.
    pub fn write(&mut self, mut to: impl Write + Send) -> Result<(), Error> {
        let failed = |source| Error::Io { what: PACKING, source };
        self.header.write(&mut to).map_err(failed)?;
        match &mut self.changes {
            Some(pack) => write_section(&mut to, pack).map_err(failed),
            None => self.write_first(to),
        }
    }

    fn write_first(&self, mut to: impl Write) -> Result<(), Error> {
        let failed = |source| Error::Io { what: PACKING, source };
        let scratch = tempfile::tempdir_in(&self.worktree.dir).map_err(failed)?;
        super::private_git::give_to_owner(scratch.path(), self.worktree.repository.owner).map_err(failed)?;
        let (packed, written) = std::thread::scope(|scope| {
            let packing = scope.spawn(|| self.worktree.pack_everything(&self.header, scratch.path()));
            let mut section = SectionWriter::new(&mut to);
            let written = self.worktree.write_files(&mut section).and_then(|()| section.finish().map_err(failed));
            (packing.join(), written)
        });
        written?;
        let panicked = |_| Error::Git { what: PACKING, detail: "a thread panicked".to_owned() };
        let [pack, index] = packed.map_err(panicked)??;
        let parts = [pack, index, self.worktree.own_index_path(), self.worktree.staged_copy_path()];
        for part in parts {
            match File::open(part) {
                Ok(mut file) => write_section(&mut to, &mut file).map_err(failed)?,
                // There may be no staged index.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    SectionWriter::new(&mut to).finish().map_err(failed)?;
                }
                Err(error) => return Err(failed(error)),
            }
        }
        to.flush().map_err(failed)
    }
}

fn write_section(to: &mut impl Write, from: &mut File) -> io::Result<()> {
    let mut section = SectionWriter::new(to);
    io::copy(from, &mut section)?;
    section.finish()
}

fn modified_nanoseconds(path: &Path) -> Option<i64> {
    let modified = fs::metadata(path).ok()?.modified().ok()?;
    i64::try_from(modified.duration_since(UNIX_EPOCH).ok()?.as_nanos()).ok()
}
