//! What can go wrong with the store, told apart by what the caller should do.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database can't be reached or can't write now; nothing was stored; trying again is right.
    #[error("the database is unavailable: {detail}")]
    Unavailable { detail: String },
    /// The connection broke while it was being stored; trying again under the same keys is right.
    #[error("the database did not say whether it stored it: {detail}")]
    InDoubt { detail: String },
    /// There is no room on the disk; nothing was stored.
    #[error("the disk is full: {detail}")]
    Full { detail: String },
    /// Somebody else changed the row first.
    #[error("the {what} was changed by somebody else at the same time")]
    Conflict { what: &'static str },
    /// A value that must be unique is taken.
    #[error("already taken: {what}")]
    Taken { what: String },
    /// Text that the databases can't both hold.
    #[error("text must not contain NUL characters")]
    BadText,
    /// The data directory belongs to another process.
    #[error("{0}")]
    Locked(String),
    /// The database was written by a newer Atoll.
    #[error("the database has schema version {found}, this program knows {known}; use a newer Atoll")]
    Newer { found: i64, known: i64 },
    /// What is stored is not what this program writes, or a statement is wrong: a bug.
    #[error("the database said something unexpected: {detail}")]
    Internal { detail: String },
}

impl Error {
    pub fn internal(detail: impl std::fmt::Display) -> Self {
        Self::Internal { detail: detail.to_string() }
    }

    pub fn unavailable(detail: impl std::fmt::Display) -> Self {
        Self::Unavailable { detail: detail.to_string() }
    }
}

pub type Result<T, E = Error> = std::result::Result<T, E>;
