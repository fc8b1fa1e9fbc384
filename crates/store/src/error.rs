//! Store errors, classified by the caller's reaction.

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The database is unreachable or cannot write now; nothing was stored. Retry.
    #[error("the database is unavailable: {detail}")]
    Unavailable { detail: String },
    /// The connection broke during the commit. Retry with the same keys.
    #[error("the database did not confirm the commit: {detail}")]
    CommitUnconfirmed { detail: String },
    /// The disk is full; nothing was stored.
    #[error("the disk is full: {detail}")]
    DiskFull { detail: String },
    /// A concurrent change of the row.
    #[error("the {what} was changed concurrently; try again")]
    Conflict { what: &'static str },
    /// A unique value already exists.
    #[error("already taken: {what}")]
    AlreadyExists { what: String },
    /// Text that one of the databases cannot store.
    #[error("text must not contain NUL characters")]
    InvalidText,
    /// Another process holds the data directory.
    #[error("{0}")]
    Locked(String),
    /// Another server uses the database.
    #[error("the database is held by {0}; stop it, or name another database with --database-url")]
    DatabaseHeld(String),
    /// A newer Atoll wrote the database.
    #[error("the database has schema version {found}, this program knows {known}; use a newer Atoll")]
    NewerSchema { found: i64, known: i64 },
    /// No server of this version has used the database yet.
    #[error("the database has not been used by this version of Atoll; start `atoll serve` once")]
    NotMigrated,
    /// A bug: unexpected stored data or an invalid statement.
    #[error("unexpected database error: {detail}")]
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
