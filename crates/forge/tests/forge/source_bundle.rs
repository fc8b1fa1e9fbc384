//! Tests of bundles for a sandbox.

use crate::fixture::{TestRepositories, commit_all, git, repository_state, write_awkward_files, write_file};
use atoll_forge::{Error, GitLimits, HostRepository};
use std::fs::{self, File};
use std::path::Path;

fn write_bundle(repositories: &TestRepositories, path: &Path, commit: &str) -> Result<u64, Error> {
    HostRepository::open(path).unwrap().write_bundle(commit, File::create(repositories.path("source.bundle")).unwrap())
}

#[test]
fn a_bundle_has_exactly_the_history_of_its_commit() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    write_awkward_files(&path);
    git(&path, ["update-index", "--add", "--cacheinfo", "160000,0123456789abcdef0123456789abcdef01234567,module"]);
    fs::create_dir(path.join("module")).unwrap();
    let head = commit_all(&path, "awkward");
    git(&path, ["checkout", "-q", "-b", "secret", "HEAD~1"]);
    write_file(&path, "secret", "not for the sandbox");
    let secret = commit_all(&path, "secret");
    let before = repository_state(&path, None);

    let bytes = write_bundle(&repositories, &path, &head).unwrap();
    assert_eq!(repository_state(&path, None), before);
    let bundle = repositories.path("source.bundle");
    assert_eq!(bytes, fs::metadata(&bundle).unwrap().len());
    // Git accepts the bundle too.
    assert!(git(&path, ["bundle", "list-heads", bundle.to_str().unwrap()]).ends_with("refs/atoll/base"));
    git(&path, ["bundle", "verify", "-q", bundle.to_str().unwrap()]);

    let inside = repositories.create_sandbox_clone(&bundle, "sha1");
    assert_eq!(git(&inside, ["rev-parse", "HEAD"]), head);
    assert_eq!(git(&inside, ["rev-list", "--count", "HEAD"]), "3");
    assert_eq!(git(&inside, ["status", "--porcelain"]), "");
    git(&inside, ["fsck", "--strict", "--connectivity-only"]);
    assert!(!crate::fixture::try_git(&inside, ["cat-file", "-e", &secret]).status.success());
    assert_eq!(fs::read_link(inside.join("dangling")).unwrap(), Path::new("/nowhere/at all"));
    assert_eq!(fs::read_to_string(inside.join("two\nlines")).unwrap(), "two\nlines\n");
}

#[test]
fn bundles_a_sha256_repository() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository_with("own", &["--object-format=sha256"]);
    let head = git(&path, ["rev-parse", "HEAD"]);
    write_bundle(&repositories, &path, &head).unwrap();
    let inside = repositories.create_sandbox_clone(&repositories.path("source.bundle"), "sha256");
    assert_eq!(git(&inside, ["rev-parse", "HEAD"]), head);
}

#[test]
fn bundles_a_shallow_clone() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    for number in 0..5 {
        write_file(&path, "README.md", format!("{number}\n"));
        commit_all(&path, "more");
    }
    let url = format!("file://{}", path.display());
    git(&path, ["clone", "-q", "--depth", "2", &url, "../shallow"]);
    let shallow = repositories.path("shallow");
    let head = git(&shallow, ["rev-parse", "HEAD"]);
    write_bundle(&repositories, &shallow, &head).unwrap();
    let inside = repositories.create_sandbox_clone(&repositories.path("source.bundle"), "sha1");
    assert_eq!(git(&inside, ["rev-list", "--count", "HEAD"]), "2");
    git(&inside, ["fsck", "--strict"]);
}

#[test]
fn bundles_a_partial_clone_without_fetching() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    git(&path, ["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", path.display());
    git(&path, ["clone", "-q", "--filter=blob:none", &url, "../partial"]);
    git(&path, ["clone", "-q", "--filter=blob:none", "--no-checkout", &url, "../hollow"]);
    let head = git(&path, ["rev-parse", "HEAD"]);
    write_bundle(&repositories, &repositories.path("partial"), &head).unwrap();
    let inside = repositories.create_sandbox_clone(&repositories.path("source.bundle"), "sha1");
    assert_eq!(git(&inside, ["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(fs::read_to_string(inside.join("README.md")).unwrap(), "first\nsecond\n");

    let error = write_bundle(&repositories, &repositories.path("hollow"), &head).unwrap_err();
    assert_eq!(error.code(), "source_incomplete");
    assert!(error.to_string().contains("git fetch --refetch"), "{error}");
}

#[test]
fn distinguishes_damage_from_limits() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    let head = git(&path, ["rev-parse", "HEAD"]);
    for wrong in ["main", "", "--all", "0123456789abcdef0123456789abcdef01234567"] {
        assert_eq!(write_bundle(&repositories, &path, wrong).unwrap_err().code(), "base_missing", "{wrong}");
    }
    let small =
        HostRepository::open_with_limits(&path, GitLimits { source_bytes: 100, ..GitLimits::default() }).unwrap();
    let error = small.write_bundle(&head, File::create(repositories.path("small")).unwrap()).unwrap_err();
    assert_eq!(error.code(), "source_too_large");

    let blob = git(&path, ["rev-parse", "HEAD~1:README.md"]);
    fs::remove_file(path.join(format!(".git/objects/{}/{}", &blob[..2], &blob[2..]))).unwrap();
    assert_eq!(write_bundle(&repositories, &path, &head).unwrap_err().code(), "source_incomplete");
}
