//! From the user's repository to a sandbox: one commit and all that it stands on, as a bundle.

use crate::error::Error;
use crate::plumbing::bundle::{self, Head};
use crate::repository::Repository;
use std::fs::File;

const WHAT: &str = "packing the repository";

impl Repository {
    /// Writes everything reachable from a commit and returns how many bytes that is.
    ///
    /// A shallow repository gives what it has, and the bundle says where its history ends. A partial
    /// clone has only what was looked at: of that, the commit goes in without its history.
    pub fn bundle(&self, commit: &str, mut to: File) -> Result<u64, Error> {
        let missing = || Error::BaseMissing { path: self.path.clone(), base: commit.chars().take(100).collect() };
        let named = self.format.names(commit).then(|| self.commit_of(commit)).transpose()?;
        let commit = named.flatten().ok_or_else(missing)?;
        let (shallow, wanted) = if self.is_partial()? {
            (vec![commit.clone()], format!("--shallow {commit}\n{commit}\n"))
        } else {
            (self.shallow()?, format!("{commit}\n"))
        };
        let mut refs = vec![(bundle::BASE.to_owned(), commit.clone())];
        refs.extend(shallow.into_iter().enumerate().map(|(place, id)| (format!("{}{place}", bundle::SHALLOW), id)));
        let mut head = Vec::new();
        let written = Head { format: self.format, prerequisites: Vec::new(), refs }.write(&mut head);
        written
            .and_then(|()| std::io::Write::write_all(&mut to, &head))
            .map_err(|source| Error::Io { what: WHAT, source })?;
        let packing = self.run(WHAT, self.bounds.slow)?.args(PACK).input(wanted.as_bytes())?;
        let (bytes, answer) = match packing.write(&mut to, self.bounds.source_bytes) {
            Err(Error::TooMuchSaid { bound, .. }) => {
                return Err(Error::SourceTooLarge { path: self.path.clone(), bound });
            }
            other => other?,
        };
        if !answer.succeeded() {
            return Err(Error::Incomplete { path: self.path.clone(), commit, detail: answer.detail() });
        }
        Ok(head.len() as u64 + bytes)
    }

    /// Whether some objects were left at the remote when this was cloned.
    fn is_partial(&self) -> Result<bool, Error> {
        let promised =
            self.read(["config", "--null", "--get-regexp", r"^(extensions\.partialclone|remote\..*\.promisor)$"])?;
        Ok(promised.succeeded())
    }
}

pub(crate) const PACK: [&str; 5] = ["pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet"];
