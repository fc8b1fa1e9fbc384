//! `handed.log`: one record per line, compacted at each start.

use super::{Acknowledgement, DeliveryJournal, JournalRecord};
use crate::{Context, Error, replace_durably};
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const NAME: &str = "handed.log";

#[derive(Debug)]
pub struct JournalFile {
    file: fs::File,
    path: PathBuf,
    bytes: u64,
    pending: Vec<u8>,
}

/// Loads and compacts the journal; also returns the acknowledgements that the server does not have.
pub fn load_journal(dir: &Path) -> Result<(DeliveryJournal, JournalFile, Vec<Acknowledgement>), Error> {
    let path = dir.join(NAME);
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error).context("read", &path),
    };
    let mut journal = DeliveryJournal::replay(bytes.split(|byte| *byte == b'\n').filter_map(parse_line));
    let acknowledgements = journal.acknowledge_open();
    let mut short = Vec::new();
    for record in journal.records() {
        append_line(&mut short, &record);
    }
    replace_durably(&path, &short)?;
    let file = fs::File::options().append(true).open(&path).context("open", &path)?;
    Ok((journal, JournalFile { file, path, bytes: short.len() as u64, pending: Vec::new() }, acknowledgements))
}

fn parse_line(line: &[u8]) -> Option<JournalRecord> {
    if line.is_empty() {
        return None;
    }
    let record = serde_json::from_slice(line);
    if let Err(error) = &record {
        // The last line of a killed worker may be torn: it had not taken effect.
        tracing::warn!(%error, "skipping a damaged line of {NAME}");
    }
    record.ok()
}

fn append_line(buffer: &mut Vec<u8>, record: &JournalRecord) {
    // Serializing this enum into memory cannot fail.
    drop(serde_json::to_writer(&mut *buffer, record));
    buffer.push(b'\n');
}

impl JournalFile {
    pub fn push(&mut self, record: &JournalRecord) {
        append_line(&mut self.pending, record);
    }

    /// Syncs all pushed records to disk; after an error they stay pending.
    pub fn commit(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.write_all(&self.pending).and_then(|()| self.file.sync_data()) {
            // The retry may repeat records, which is harmless; the newline ends a torn line.
            drop(self.file.set_len(self.bytes));
            self.pending.insert(0, b'\n');
            return Err(error).context("write", &self.path);
        }
        self.bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}
