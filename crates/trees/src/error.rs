use std::io;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file system said no. `path` is as people may see it.
    #[error("{path}: {source}")]
    File { path: String, source: io::Error },
    #[error("this is not a whole tar: {0}")]
    Malformed(&'static str),
    #[error("{0}")]
    Unsupported(&'static str),
    /// Where the tar comes from, or goes to.
    #[error(transparent)]
    Stream(#[from] io::Error),
}

impl Error {
    pub(crate) fn file(path: &[u8], source: impl Into<io::Error>) -> Self {
        Self::File { path: crate::shown(path), source: source.into() }
    }
}
