//! The files of a commit that decide what set-up runs.

use crate::error::Error;
use crate::repository::HostRepository;
use atoll_core::setup::{MAX_SETUP_FILE_BYTES, MAX_SETUP_FILES, MAX_TOTAL_BYTES, RepositoryFiles, is_setup_file};

const ACTION: &str = "reading the files of set-up";

/// Modes of regular files in a tree. Symbolic links and submodules are left out.
const FILE_MODES: [&[u8]; 2] = [b"100644", b"100755"];

/// Bytes of `<id> blob <size>` and two line breaks, for each file.
const MAX_HEADER_BYTES: u64 = 128;

struct TreeFile {
    path: String,
    object: String,
}

impl HostRepository {
    /// Reads the setup files of a commit, which is a full object id. A file that is too large has no content.
    pub fn read_setup_files(&self, commit: &str) -> Result<RepositoryFiles, Error> {
        if !self.format.is_object_id(commit) {
            return Err(Error::BaseRefused { base: commit.chars().take(100).collect() });
        }
        let found = self.list_setup_files(commit)?;
        let mut files = RepositoryFiles::default();
        let mut wanted = Vec::new();
        let mut total = 0;
        for (file, size) in found.iter().zip(self.read_sizes(commit, &found)?) {
            if size <= MAX_SETUP_FILE_BYTES && total + size <= MAX_TOTAL_BYTES {
                total += size;
                wanted.push(file);
            } else {
                files.insert(file.path.clone(), None);
            }
        }
        let bound = total + wanted.len() as u64 * MAX_HEADER_BYTES;
        let contents = self.query_objects("--batch", wanted.iter().copied(), bound)?;
        let mut rest = contents.as_slice();
        for file in wanted {
            let content = take_object(&mut rest).ok_or_else(|| self.missing_object(commit, file))?;
            files.insert(file.path.clone(), Some(content.to_vec()));
        }
        Ok(files)
    }

    fn list_setup_files(&self, commit: &str) -> Result<Vec<TreeFile>, Error> {
        let mut found = Vec::new();
        let command = self.git_command(ACTION, self.limits.bulk_timeout)?;
        let listed = command.args(["ls-tree", "-r", "-z", "--full-tree", commit]);
        let listed = listed.read_records(self.limits.listing_bytes, &mut |record| {
            let file = parse_tree_record(record).filter(|file| is_setup_file(&file.path));
            // Files at the root matter most, and there are only a few names.
            found.extend(file.filter(|file| found.len() < MAX_SETUP_FILES || !file.path.contains('/')));
        });
        listed?.require_success()?;
        Ok(found)
    }

    fn read_sizes(&self, commit: &str, files: &[TreeFile]) -> Result<Vec<u64>, Error> {
        let bound = files.len() as u64 * MAX_HEADER_BYTES;
        let answer = self.query_objects("--batch-check=%(objectsize)", files.iter(), bound)?;
        let answer = String::from_utf8_lossy(&answer);
        let sizes = files.iter().zip(answer.lines());
        let sizes = sizes.map(|(file, size)| size.parse().map_err(|_| self.missing_object(commit, file)));
        sizes.collect()
    }

    fn query_objects<'a>(
        &self,
        mode: &str,
        files: impl Iterator<Item = &'a TreeFile>,
        bound: u64,
    ) -> Result<Vec<u8>, Error> {
        let query: String = files.map(|file| format!("{}\n", file.object)).collect();
        let command = self.git_command(ACTION, self.limits.lookup_timeout)?.args(["cat-file", mode]);
        Ok(command.input_bytes(query.as_bytes())?.capture_output(bound)?.require_success()?.stdout)
    }

    fn missing_object(&self, commit: &str, file: &TreeFile) -> Error {
        let detail = format!("{} of {}", file.object, file.path);
        Error::ObjectsMissing { path: self.path.clone(), commit: commit.to_owned(), detail }
    }
}

/// Parses `<mode> blob <id><tab><path>`; `None` for other entries and for names that are not UTF-8.
fn parse_tree_record(record: &[u8]) -> Option<TreeFile> {
    let tab = record.iter().position(|byte| *byte == b'\t')?;
    let mut fields = record[..tab].split(|byte| *byte == b' ');
    let (mode, _, object) = (fields.next()?, fields.next()?, fields.next()?);
    let text = |bytes: &[u8]| std::str::from_utf8(bytes).ok().map(str::to_owned);
    FILE_MODES.contains(&mode).then_some(())?;
    Some(TreeFile { path: text(&record[tab + 1..])?, object: text(object)? })
}

/// Takes `<id> blob <size>\n<content>\n` from the start.
fn take_object<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let end = rest.iter().position(|byte| *byte == b'\n')?;
    let header = std::str::from_utf8(&rest[..end]).ok()?;
    let size: usize = header.split_once(" blob ")?.1.parse().ok()?;
    let content = rest.get(end + 1..)?.get(..size)?;
    *rest = rest.get(end + 1 + size + 1..)?;
    Some(content)
}
