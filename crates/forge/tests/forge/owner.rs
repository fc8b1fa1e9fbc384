//! Repositories of another owner. These tests need root and are skipped otherwise.

use crate::fixture::{TestRepositories, commit_all, git, write_file};
use atoll_forge::{HostRepository, ImportOutcome};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

const OTHER_UID: u32 = 54_321;

fn is_root() -> bool {
    let dir = tempfile::tempdir().unwrap();
    dir.path().metadata().unwrap().uid() == 0
}

fn chown_recursively(path: &Path) {
    lchown(path, Some(OTHER_UID), Some(OTHER_UID)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| chown_recursively(&entry.unwrap().path()));
    }
}

fn collect_owners(path: &Path, owners: &mut Vec<u32>) {
    owners.push(path.symlink_metadata().unwrap().uid());
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| collect_owners(&entry.unwrap().path(), owners));
    }
}

#[test]
fn git_runs_as_the_owner_and_the_owner_owns_new_files() {
    if !is_root() {
        return;
    }
    for is_private in [false, true] {
        let repositories = TestRepositories::new();
        let own = repositories.create_repository("own");
        let base = git(&own, ["rev-parse", "HEAD"]);
        chown_recursively(&own);
        let repository = HostRepository::open(&own.join("src")).unwrap();
        assert_eq!(repository.head().unwrap().commit, base);
        write_file(&own, "new", "x");
        assert_eq!(repository.count_uncommitted_files().unwrap(), 1);
        fs::remove_file(own.join("new")).unwrap();
        // The server's files may be private.
        let scratch = repositories.scratch_dir();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(if is_private { 0o700 } else { 0o755 })).unwrap();
        let source = scratch.join("source");
        repository.write_bundle(&base, File::create(&source).unwrap()).unwrap();
        let inside = repositories.create_sandbox_clone(&source, "sha1");
        for number in 0..120 {
            write_file(&inside, format!("file{number}"), format!("{number}"));
        }
        let result = commit_all(&inside, "more");
        let bundle = repositories.bundle_result(&inside, &base);
        fs::set_permissions(&bundle, fs::Permissions::from_mode(0o600)).unwrap();
        let outcome = repository.import_result(&bundle, &base, "atoll/work", &scratch).unwrap();
        assert!(matches!(outcome, ImportOutcome::Branch(imported) if imported.commit == result));
        let mut owners = Vec::new();
        collect_owners(&own, &mut owners);
        assert!(owners.iter().all(|uid| *uid == OTHER_UID));
        assert_eq!(git(&own, ["rev-parse", "atoll/work"]), result);
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);
    }
}

#[test]
fn git_has_only_the_rights_of_the_owner() {
    if !is_root() {
        return;
    }
    let repositories = TestRepositories::new();
    let own = repositories.create_repository("own");
    chown_recursively(&own);
    // A file of root inside the repository: git as root would read it.
    let config = own.join(".git/config");
    lchown(&config, Some(0), Some(0)).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let error = HostRepository::open(&own).unwrap_err();
    assert_eq!(error.code(), "source_not_allowed", "{error}");

    // Another user's link to a repository of root: git must run as that user.
    let hidden = repositories.create_repository("hidden");
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
    let trap = repositories.path("trap");
    fs::create_dir(&trap).unwrap();
    std::os::unix::fs::symlink(hidden.join(".git"), trap.join(".git")).unwrap();
    chown_recursively(&trap);
    let error = HostRepository::open(&trap).unwrap_err();
    assert!(["source_not_allowed", "not_a_repository"].contains(&error.code()), "{error}");
}
