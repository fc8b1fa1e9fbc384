//! Bundles a commit of the user's repository with its history for a sandbox.

use crate::error::Error;
use crate::plumbing::bundle::{self, BundleHeader};
use crate::repository::HostRepository;
use std::fs::File;

const ACTION: &str = "packing the repository";

impl HostRepository {
    /// Writes everything reachable from a commit and returns the number of bytes.
    ///
    /// For a shallow repository, the bundle marks where the history ends. For a partial clone, it contains the commit
    /// without its history.
    pub fn write_bundle(&self, commit: &str, mut to: File) -> Result<u64, Error> {
        let missing = || Error::BaseMissing { path: self.path.clone(), base: commit.chars().take(100).collect() };
        let named = self.format.is_object_id(commit).then(|| self.commit_of(commit)).transpose()?;
        let commit = named.flatten().ok_or_else(missing)?;
        let (shallow, revisions) = if self.is_partial()? {
            (vec![commit.clone()], format!("--shallow {commit}\n{commit}\n"))
        } else {
            (self.shallow_commits()?, format!("{commit}\n"))
        };
        let mut refs = vec![(bundle::BASE_REF.to_owned(), commit.clone())];
        refs.extend(
            shallow.into_iter().enumerate().map(|(place, id)| (format!("{}{place}", bundle::SHALLOW_REF_PREFIX), id)),
        );
        let mut head = Vec::new();
        let written = BundleHeader { format: self.format, prerequisites: Vec::new(), refs }.write(&mut head);
        written
            .and_then(|()| std::io::Write::write_all(&mut to, &head))
            .map_err(|source| Error::Io { what: ACTION, source })?;
        let packing = self
            .git_command(ACTION, self.limits.bulk_timeout)?
            .args(PACK_ARGUMENTS)
            .input_bytes(revisions.as_bytes())?;
        let (bytes, answer) = match packing.write_output(&mut to, self.limits.source_bytes) {
            Err(Error::OutputTooLarge { bound, .. }) => {
                return Err(Error::SourceTooLarge { path: self.path.clone(), bound });
            }
            other => other?,
        };
        if !answer.is_success() {
            return Err(Error::ObjectsMissing { path: self.path.clone(), commit, detail: answer.failure_detail() });
        }
        Ok(head.len() as u64 + bytes)
    }

    /// Writes what a receiver with the commit `known` lacks of `commit`: nothing but a header if they are equal.
    pub fn write_bundle_above(&self, known: &str, commit: &str, mut to: File) -> Result<u64, Error> {
        let refs = vec![(bundle::BASE_REF.to_owned(), commit.to_owned())];
        let header = BundleHeader { format: self.format, prerequisites: vec![known.to_owned()], refs };
        let mut head = Vec::new();
        let written = header.write(&mut head).and_then(|()| std::io::Write::write_all(&mut to, &head));
        written.map_err(|source| Error::Io { what: ACTION, source })?;
        if known == commit {
            return Ok(head.len() as u64);
        }
        let packing = self.git_command(ACTION, self.limits.bulk_timeout)?.args(PACK_ARGUMENTS).args(["--thin"]);
        let packing = packing.input_bytes(format!("{commit}\n^{known}\n").as_bytes())?;
        let (bytes, answer) = packing.write_output(&mut to, self.limits.source_bytes)?;
        answer.require_success()?;
        Ok(head.len() as u64 + bytes)
    }

    /// Finds the commit with an abbreviated id.
    pub fn find_commit(&self, start: &str) -> Result<Option<String>, Error> {
        let is_id = start.len() >= 7 && start.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_id { self.commit_of(start) } else { Ok(None) }
    }

    /// True if the repository has all objects of its history.
    pub fn is_complete(&self) -> Result<bool, Error> {
        Ok(self.shallow_commits()?.is_empty() && !self.is_partial()?)
    }

    /// True for a partial clone, which lacks some objects.
    fn is_partial(&self) -> Result<bool, Error> {
        let promised = self.run_lookup([
            "config",
            "--null",
            "--get-regexp",
            r"^(extensions\.partialclone|remote\..*\.promisor)$",
        ])?;
        Ok(promised.is_success())
    }
}

pub(crate) const PACK_ARGUMENTS: [&str; 5] = ["pack-objects", "--revs", "--stdout", "--delta-base-offset", "--quiet"];
