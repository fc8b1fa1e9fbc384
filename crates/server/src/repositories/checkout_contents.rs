//! What a checkout needs besides the commits of its repository: submodules and large files.

use super::git_credentials::CredentialScope;
use super::git_source::{GitSource, run_blocking};
use super::large_files::{CommitLargeFiles, fetch_large_files};
use super::scratch_dir::ScratchDir;
use super::scratch_problem;
use super::submodules::{CommitSubmodules, fetch_submodules};
use crate::problem::Result;
use crate::state::App;
use atoll_core::sandbox::Repo;
use atoll_forge::plumbing::checkout_parts::{CheckoutPart, SubmodulePart};
use atoll_forge::plumbing::large_files::LargeFile;
use std::fs::File;
use std::io::{self, Seek};
use std::path::PathBuf;

/// What happens if a submodule or a large file cannot be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MissingContents {
    Refuse,
    /// For a commit that an agent wrote: its submodules' commits and its large files may exist nowhere else.
    Skip,
}

/// The submodules and large files of a commit, on this machine.
pub struct CheckoutContents {
    submodules: CommitSubmodules,
    large_files: Option<CommitLargeFiles>,
}

impl CheckoutContents {
    /// Fetches what is missing. Without the settings for it, the checkout has only its repository's files.
    pub async fn fetch(
        app: &App,
        scope: CredentialScope,
        origin: &GitSource,
        repo: &Repo,
        commit: &str,
        missing: MissingContents,
    ) -> Result<Self> {
        let submodules = fetch_submodules(app, scope, origin, repo, (commit, missing)).await?;
        let large_files = match repo.lfs {
            true => Some(fetch_large_files(app, origin, commit, &repo.sparse, missing).await?),
            false => None,
        };
        Ok(Self { submodules, large_files })
    }

    /// Paths of the submodules that stay empty.
    pub fn empty_submodules(&self) -> &[String] {
        &self.submodules.empty
    }

    /// Paths of the submodules that the sandbox has.
    pub fn filled_submodules(&self) -> Vec<String> {
        self.submodules.ready.iter().map(|ready| ready.part.path.clone()).collect()
    }

    pub fn large_files(&self) -> &[LargeFile] {
        self.large_files.as_ref().map(|found| found.files.as_slice()).unwrap_or_default()
    }

    /// The number of large files that stay pointers.
    pub fn missing_large_files(&self) -> usize {
        self.large_files.as_ref().map_or(0, |found| found.missing)
    }

    /// Writes the stream of parts for the sandbox; `None` if there are none.
    pub(super) async fn write_parts(&self, scratch: &ScratchDir) -> Result<Option<PathBuf>> {
        if self.submodules.ready.is_empty() && self.large_files().is_empty() {
            return Ok(None);
        }
        let (path, directory) = (scratch.path("parts"), scratch.directory().to_owned());
        // An earlier stream may be there, for a layer that is gone.
        drop(std::fs::remove_file(&path));
        let mut to = scratch.create("parts").map_err(|error| scratch_problem(&error))?;
        let ready = self.submodules.ready.iter();
        let submodules: Vec<_> = ready.map(|ready| (ready.part.clone(), ready.source.clone())).collect();
        let large_files = self.large_files.as_ref().map(|found| (found.store.clone(), found.files.clone()));
        run_blocking(move || {
            let failed = |source| atoll_forge::Error::Io { what: "writing the submodules and large files", source };
            for (part, source) in submodules {
                let bundle = tempfile::tempfile_in(&directory).map_err(failed)?;
                source.open()?.write_bundle(&part.commit, bundle.try_clone().map_err(failed)?)?;
                append_bundle(part, bundle, &mut to).map_err(failed)?;
            }
            for (store, file) in
                large_files.iter().flat_map(|(store, files)| files.iter().map(move |file| (store, file)))
            {
                CheckoutPart::of_file(file).write_header(file.size, &mut to).map_err(failed)?;
                store.copy_to(file, &mut to).map_err(failed)?;
            }
            Ok(())
        })
        .await?;
        Ok(Some(path))
    }
}

fn append_bundle(part: SubmodulePart, mut bundle: File, to: &mut File) -> io::Result<()> {
    let bytes = bundle.metadata()?.len();
    bundle.rewind()?;
    CheckoutPart::Submodule(part).write_header(bytes, to)?;
    io::copy(&mut bundle, to).map(drop)
}
