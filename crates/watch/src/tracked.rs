//! Git's view of the workspace at the start: tracked files, and the content of unmodified ones.
//! Git runs as the workspace's owner with a time limit. A missing git or a broken repository only means that
//! nothing is tracked.

use crate::relative_path::{PathsUnder, RelativePath};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const GIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Size limit of git's output.
const MAX_GIT_OUTPUT_BYTES: u64 = 256 * 1024 * 1024;

/// The id of a blob: 20 or 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ObjectId {
    bytes: [u8; 32],
    length: u8,
}

pub struct TrackedFiles {
    root: PathBuf,
    /// Sorted by path.
    files: Vec<(RelativePath, TrackedBlob)>,
}

struct TrackedBlob {
    id: ObjectId,
    clean: bool,
}

/// A running `git status`, which lists modified files.
pub struct DirtyQuery(Option<GitProcess>);

impl TrackedFiles {
    pub fn empty() -> Self {
        Self { root: PathBuf::new(), files: Vec::new() }
    }

    /// Reads the index and starts `git status`; `apply_dirty` takes its result.
    pub fn read_index(root: &Path) -> (Self, DirtyQuery) {
        if rustix::fs::lstat(root.join(".git")).is_err() {
            return (Self::empty(), DirtyQuery(None));
        }
        // `git diff` would rewrite the index; `status` does not, with optional locks off.
        let status = ["status", "--porcelain", "-z", "-uno", "--no-renames", "--ignore-submodules=all"];
        let dirty = GitProcess::start(root, &status, None);
        let list = GitProcess::start(root, &["ls-files", "-s", "-v", "-z"], None).and_then(GitProcess::finish);
        let files = list.map_or_else(Vec::new, |list| parse_file_list(&list));
        (Self { root: root.to_path_buf(), files }, DirtyQuery(dirty))
    }

    /// Marks unmodified files as clean. Before this call no file is clean.
    pub fn apply_dirty(&mut self, dirty: DirtyQuery) {
        let Some(dirty) = dirty.0.and_then(GitProcess::finish) else { return };
        for (_, blob) in &mut self.files {
            blob.clean = true;
        }
        // `XY <path>`: X compares the index with the last commit, Y the file with the index.
        for record in dirty.split(|byte| *byte == 0) {
            if let Some(found) = record.get(3..).filter(|_| record[1] != b' ').and_then(|path| self.find_index(path)) {
                self.files[found].1.clean = false;
            }
        }
    }

    pub fn contains(&self, path: &[u8]) -> bool {
        self.find_index(path).is_some()
    }

    pub fn contains_under(&self, directory: &[u8]) -> bool {
        let under = PathsUnder::new(directory);
        let std::ops::Bound::Included(low) = under.key_range().0 else { return !self.files.is_empty() };
        let first = self.files.partition_point(|(path, _)| **path < *low);
        self.files.get(first).is_some_and(|(path, _)| path.starts_with(low))
    }

    /// The blob of a file that was unmodified at the start.
    pub fn clean_blob(&self, path: &[u8]) -> Option<ObjectId> {
        let (_, blob) = &self.files[self.find_index(path)?];
        blob.clean.then_some(blob.id)
    }

    /// Reads blobs, in order; `None` for missing ones.
    pub fn read_blobs(&self, ids: &[ObjectId]) -> Vec<Option<Vec<u8>>> {
        let query: String = ids.iter().map(|id| format!("{}\n", id.to_hex())).collect();
        let output = memory_file(query.as_bytes())
            .and_then(|input| GitProcess::start(&self.root, &["cat-file", "--batch"], Some(input)))
            .and_then(GitProcess::finish)
            .unwrap_or_default();
        let mut rest = output.as_slice();
        ids.iter().map(|id| take_blob(&mut rest, *id)).collect()
    }

    fn find_index(&self, path: &[u8]) -> Option<usize> {
        self.files.binary_search_by(|(tracked, _)| (**tracked).cmp(path)).ok()
    }
}

impl ObjectId {
    fn parse_hex(text: &[u8]) -> Option<Self> {
        let length = text.len() / 2;
        let mut bytes = [0; 32];
        if !matches!(text.len(), 40 | 64) {
            return None;
        }
        for (byte, digits) in bytes.iter_mut().zip(text.chunks(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        Some(Self { bytes, length: u8::try_from(length).ok()? })
    }

    fn to_hex(self) -> String {
        self.bytes.iter().take(self.length.into()).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Parses `ls-files -s -v -z`: `H 100644 <id> 0<tab><path><nul>`. Uses only plain entries (`H`, stage 0): for files
/// that git ignores by flag, and unmerged ones, the state is unknown.
fn parse_file_list(list: &[u8]) -> Vec<(RelativePath, TrackedBlob)> {
    let mut files: Vec<_> = list.split(|byte| *byte == 0).filter_map(parse_file_record).collect();
    files.sort_by(|(left, _), (right, _)| left.cmp(right));
    files
}

fn parse_file_record(record: &[u8]) -> Option<(RelativePath, TrackedBlob)> {
    let tab = record.iter().position(|byte| *byte == b'\t')?;
    let mut fields = record[..tab].split(|byte| *byte == b' ');
    let (tag, mode, id, stage) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let plain = tag == b"H" && stage == b"0" && (mode.starts_with(b"100") || mode == b"120000");
    let id = ObjectId::parse_hex(id)?;
    plain.then(|| (record[tab + 1..].into(), TrackedBlob { id, clean: false }))
}

/// Parses `<id> blob <size>\n<content>\n` or `<id> missing\n`.
fn take_blob(rest: &mut &[u8], id: ObjectId) -> Option<Vec<u8>> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (line, after) = (&rest[..end], &rest[end + 1..]);
    *rest = after;
    let mut fields = line.split(|byte| *byte == b' ');
    let (name, kind, size) = (fields.next()?, fields.next()?, fields.next()?);
    let size: usize = std::str::from_utf8(size).ok()?.parse().ok()?;
    let content = after.get(..size)?;
    *rest = after.get(size + 1..).unwrap_or_default();
    (name == id.to_hex().as_bytes() && kind == b"blob").then(|| content.to_vec())
}

/// A git process. Its input and output are memory files, so that neither side blocks the other.
struct GitProcess {
    child: Child,
    output: File,
    deadline: Instant,
}

impl GitProcess {
    fn start(root: &Path, arguments: &[&str], input: Option<File>) -> Option<Self> {
        let output = memory_file(b"")?;
        // The repository's settings can only start programs as its owner. These options keep git fast and away from hooks
        // and monitors, and let it use a workspace of another owner.
        let mut command = Command::new("git");
        command
            .args([
                "--no-pager",
                "-c",
                "core.fsmonitor=false",
                "-c",
                "core.hooksPath=/dev/null",
                "-c",
                "safe.directory=*",
            ])
            .args(arguments)
            .current_dir(root)
            .env_clear()
            .envs(std::env::vars_os().filter(|(name, _)| name == "PATH" || name == "HOME"))
            .env("LC_ALL", "C")
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_NO_LAZY_FETCH", "1")
            .env("GIT_CEILING_DIRECTORIES", root.parent().unwrap_or(root))
            .process_group(0)
            .stdin(input.map_or_else(Stdio::null, Stdio::from))
            .stdout(Stdio::from(output.try_clone().ok()?))
            .stderr(Stdio::null());
        let child = command.spawn().ok()?;
        Some(Self { child, output, deadline: Instant::now() + GIT_TIMEOUT })
    }

    /// Waits for its output; `None` after a failure or a timeout.
    fn finish(mut self) -> Option<Vec<u8>> {
        let mut pause = Duration::from_micros(200);
        let ended = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < self.deadline => std::thread::sleep(pause),
                Ok(None) | Err(_) => return None,
            }
            pause = (pause * 2).min(Duration::from_millis(5));
        };
        if !ended.success() {
            return None;
        }
        let mut bytes = Vec::new();
        self.output.rewind().ok()?;
        (&self.output).take(MAX_GIT_OUTPUT_BYTES).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}

impl Drop for GitProcess {
    /// Kills git's process group, with programs such as filters.
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            if let Some(group) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            }
            let _ = self.child.wait();
        }
    }
}

fn memory_file(content: &[u8]) -> Option<File> {
    let mut file = File::from(rustix::fs::memfd_create("git", MemfdFlags::CLOEXEC).ok()?);
    file.write_all(content).ok()?;
    file.rewind().ok()?;
    Some(file)
}
