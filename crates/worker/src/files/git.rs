//! What git knows of the workspace at the beginning: which files it tracks, and the content of those that are as git
//! has them. Git runs as whoever owns the workspace, for a bounded time, and its absence or a broken repository only
//! means that nothing is known.

use super::path::{Relative, Under};
use rustix::fs::MemfdFlags;
use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(3);
/// The longest list of files that is taken from git.
const LONGEST_OUTPUT: u64 = 256 * 1024 * 1024;

/// The name of a blob: 20 or 32 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ObjectId {
    bytes: [u8; 32],
    length: u8,
}

pub struct Tracked {
    root: PathBuf,
    /// Sorted by path.
    files: Vec<(Relative, Blob)>,
}

struct Blob {
    id: ObjectId,
    clean: bool,
}

/// Git, looking through the working tree for files that are not as the index has them.
pub struct Dirty(Option<Running>);

impl Tracked {
    pub fn nothing() -> Self {
        Self { root: PathBuf::new(), files: Vec::new() }
    }

    /// Reads the index. The search for changed files runs on meanwhile; `settle` takes its answer.
    pub fn read(root: &Path) -> (Self, Dirty) {
        if rustix::fs::lstat(root.join(".git")).is_err() {
            return (Self::nothing(), Dirty(None));
        }
        // `git diff` would rewrite the index in passing; `status` leaves it alone when told so.
        let status = ["status", "--porcelain", "-z", "-uno", "--no-renames", "--ignore-submodules=all"];
        let dirty = Running::start(root, &status, None);
        let list = Running::start(root, &["ls-files", "-s", "-v", "-z"], None).and_then(Running::output);
        let files = list.map_or_else(Vec::new, |list| tracked(&list));
        (Self { root: root.to_path_buf(), files }, Dirty(dirty))
    }

    /// Until this is called no file counts as clean.
    pub fn settle(&mut self, dirty: Dirty) {
        let Some(dirty) = dirty.0.and_then(Running::output) else { return };
        for (_, blob) in &mut self.files {
            blob.clean = true;
        }
        // `XY <path>`: X compares the index with the last commit, Y the file with the index.
        for record in dirty.split(|byte| *byte == 0) {
            if let Some(found) = record.get(3..).filter(|_| record[1] != b' ').and_then(|path| self.find(path)) {
                self.files[found].1.clean = false;
            }
        }
    }

    pub fn has(&self, path: &[u8]) -> bool {
        self.find(path).is_some()
    }

    pub fn has_under(&self, directory: &[u8]) -> bool {
        let under = Under::new(directory);
        let std::ops::Bound::Included(low) = under.range().0 else { return !self.files.is_empty() };
        let first = self.files.partition_point(|(path, _)| **path < *low);
        self.files.get(first).is_some_and(|(path, _)| path.starts_with(low))
    }

    /// The blob of a file that was as git had it at the beginning.
    pub fn clean(&self, path: &[u8]) -> Option<ObjectId> {
        let (_, blob) = &self.files[self.find(path)?];
        blob.clean.then_some(blob.id)
    }

    /// The contents of blobs, in the order asked; nothing for those that git does not have (any more).
    pub fn contents(&self, ids: &[ObjectId]) -> Vec<Option<Vec<u8>>> {
        let asked: String = ids.iter().map(|id| format!("{}\n", id.hexadecimal())).collect();
        let output = memory_file(asked.as_bytes())
            .and_then(|input| Running::start(&self.root, &["cat-file", "--batch"], Some(input)))
            .and_then(Running::output)
            .unwrap_or_default();
        let mut rest = output.as_slice();
        ids.iter().map(|id| take_blob(&mut rest, *id)).collect()
    }

    fn find(&self, path: &[u8]) -> Option<usize> {
        self.files.binary_search_by(|(tracked, _)| (**tracked).cmp(path)).ok()
    }
}

impl ObjectId {
    fn parsed(text: &[u8]) -> Option<Self> {
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

    fn hexadecimal(self) -> String {
        self.bytes.iter().take(self.length.into()).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// The output of `ls-files -s -v -z`: `H 100644 <id> 0<tab><path><nul>`. Only plain entries (`H`) count: of files that
/// git was told not to look at nobody knows whether they are clean; nor of unmerged ones (stage above 0).
fn tracked(list: &[u8]) -> Vec<(Relative, Blob)> {
    let mut files: Vec<_> = list.split(|byte| *byte == 0).filter_map(tracked_file).collect();
    files.sort_by(|(left, _), (right, _)| left.cmp(right));
    files
}

fn tracked_file(record: &[u8]) -> Option<(Relative, Blob)> {
    let tab = record.iter().position(|byte| *byte == b'\t')?;
    let mut fields = record[..tab].split(|byte| *byte == b' ');
    let (tag, mode, id, stage) = (fields.next()?, fields.next()?, fields.next()?, fields.next()?);
    let plain = tag == b"H" && stage == b"0" && (mode.starts_with(b"100") || mode == b"120000");
    let id = ObjectId::parsed(id)?;
    plain.then(|| (record[tab + 1..].into(), Blob { id, clean: false }))
}

/// `<id> blob <size>\n<content>\n`, or `<id> missing\n`.
fn take_blob(rest: &mut &[u8], id: ObjectId) -> Option<Vec<u8>> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let (line, after) = (&rest[..end], &rest[end + 1..]);
    *rest = after;
    let mut fields = line.split(|byte| *byte == b' ');
    let (name, kind, size) = (fields.next()?, fields.next()?, fields.next()?);
    let size: usize = std::str::from_utf8(size).ok()?.parse().ok()?;
    let content = after.get(..size)?;
    *rest = after.get(size + 1..).unwrap_or_default();
    (name == id.hexadecimal().as_bytes() && kind == b"blob").then(|| content.to_vec())
}

/// One git process. Its input and output are files in memory, so that neither side ever waits for the other.
struct Running {
    child: Child,
    output: File,
    until: Instant,
}

impl Running {
    fn start(root: &Path, arguments: &[&str], input: Option<File>) -> Option<Self> {
        let output = memory_file(b"")?;
        // What the repository's own settings could start runs as its owner, like everything here; these only keep git
        // quick, away from hooks and monitors, and from refusing a workspace whose owner it does not know.
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
        Some(Self { child, output, until: Instant::now() + PATIENCE })
    }

    /// What it wrote, if it ended well and in time.
    fn output(mut self) -> Option<Vec<u8>> {
        let mut pause = Duration::from_micros(200);
        let ended = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < self.until => std::thread::sleep(pause),
                Ok(None) | Err(_) => return None,
            }
            pause = (pause * 2).min(Duration::from_millis(5));
        };
        if !ended.success() {
            return None;
        }
        let mut bytes = Vec::new();
        self.output.rewind().ok()?;
        (&self.output).take(LONGEST_OUTPUT).read_to_end(&mut bytes).ok()?;
        Some(bytes)
    }
}

impl Drop for Running {
    /// Also what git itself started (a filter, say) ends: it is all one process group.
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
