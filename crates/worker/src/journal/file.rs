//! `handed.log`: one record a line, each on disk before it takes effect; rewritten short at each start.

use super::{Answer, Journal, Record};
use crate::spool::{Context, Error, replace_durably};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const NAME: &str = "handed.log";

#[derive(Debug)]
pub struct File {
    file: fs::File,
    path: PathBuf,
    bytes: u64,
    pending: Vec<u8>,
}

/// Reads what earlier workers wrote, rewrites it short, and gives what the server still has to know.
pub fn load(dir: &Path) -> Result<(Journal, File, Vec<Answer>), Error> {
    let path = dir.join(NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).context("read", &path),
    };
    let mut journal = Journal::replay(bytes.split(|byte| *byte == b'\n').filter_map(read));
    let answers = journal.take_over();
    let mut short = Vec::new();
    for record in journal.records() {
        write(&mut short, &record);
    }
    replace_durably(&path, &short)?;
    let file = fs::File::options().append(true).open(&path).context("open", &path)?;
    Ok((journal, File { file, path, bytes: short.len() as u64, pending: Vec::new() }, answers))
}

fn read(line: &[u8]) -> Option<Record> {
    if line.is_empty() {
        return None;
    }
    let record = serde_json::from_slice(line);
    if let Err(error) = &record {
        // The last line of a worker that was killed in the middle of it: it had not taken effect.
        tracing::warn!(%error, "a line of {NAME} is not whole and is passed over");
    }
    record.ok()
}

fn write(buffer: &mut Vec<u8>, record: &Record) {
    // Writing such an enum into memory can't fail.
    drop(serde_json::to_writer(&mut *buffer, record));
    buffer.push(b'\n');
}

impl File {
    pub fn push(&mut self, record: &Record) {
        write(&mut self.pending, record);
    }

    /// Returns when everything that was pushed is on disk; after an error all of it is pending still.
    pub fn commit(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(&self.pending).and_then(|()| self.file.sync_data()) {
            // What was written of it, if anything, is written again: a record twice says the same as
            // once, and the line end keeps a torn one apart from what follows.
            drop(self.file.set_len(self.bytes));
            self.pending.insert(0, b'\n');
            return Err(error).context("write", &self.path);
        }
        self.bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}
