use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed. `path` is in display form.
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("malformed tar: {0}")]
    Malformed(&'static str),
    #[error("{0}")]
    Unsupported(&'static str),
    /// Reading or writing the tar stream failed.
    #[error(transparent)]
    Stream(#[from] io::Error),
}

impl Error {
    pub(crate) fn at_path(path: &[u8], source: impl Into<io::Error>) -> Self {
        Self::File { path: crate::display_path(path), source: source.into() }
    }
}
