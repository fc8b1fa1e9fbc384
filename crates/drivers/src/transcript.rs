//! Agents' own transcripts: where each agent stores the conversation, so that another sandbox can resume it.

use std::path::{Path, PathBuf};

/// How to export and restore an agent's transcripts.
#[derive(Debug, Clone)]
pub struct TranscriptSupport {
    /// The agent's name.
    pub agent: String,
    pub storage: TranscriptStorage,
    /// Export while the agent runs if possible: afterwards it takes long.
    pub prefers_running_agent: bool,
    /// Variables that the agent's program needs for the export.
    pub env: Vec<(String, String)>,
}

#[derive(Debug, Clone)]
pub enum TranscriptStorage {
    /// One JSON Lines file per conversation in the agent's home.
    Files(TranscriptFiles),
    /// OpenCode's database, which only its program and its server read.
    OpenCode,
    /// All sessions of the agent, in this directory below the home.
    Directory(String),
}

/// Location of an agent's transcript files.
#[derive(Debug, Clone, Copy)]
pub struct TranscriptFiles {
    /// Path components of the directory to search, below the home.
    pub directory: &'static [&'static str],
    /// Number of directory levels between that directory and the file.
    pub depth: usize,
    /// Returns the end of the file's name for a conversation id.
    pub file_suffix: fn(id: &str) -> String,
    /// Returns the path below the home where the agent looks for the transcript when it resumes in `workspace`.
    pub restore_path: fn(id: &str, workspace: &Path, first_line: &str) -> PathBuf,
}
