//! A repository that belongs to someone else. Only root can act for others, so without root these have nothing to show.

use crate::world::{World, commit, git, write};
use atoll_forge::{Outcome, Repository};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;

const SOMEONE: u32 = 54_321;

fn is_root() -> bool {
    let here = tempfile::tempdir().unwrap();
    here.path().metadata().unwrap().uid() == 0
}

fn give(path: &Path) {
    lchown(path, Some(SOMEONE), Some(SOMEONE)).unwrap();
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
    }
}

fn owners(path: &Path, found: &mut Vec<u32>) {
    found.push(path.symlink_metadata().unwrap().uid());
    if path.symlink_metadata().unwrap().is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| owners(&entry.unwrap().path(), found));
    }
}

#[test]
fn git_runs_as_the_owner_and_what_it_makes_is_the_owner_s() {
    if !is_root() {
        return;
    }
    for closed in [false, true] {
        let world = World::new();
        let own = world.repository("own");
        let base = git(&own, ["rev-parse", "HEAD"]);
        give(&own);
        let repository = Repository::open(&own.join("src")).unwrap();
        assert_eq!(repository.head().unwrap().commit, base);
        write(&own, "new", "x");
        assert_eq!(repository.uncommitted().unwrap(), 1);
        fs::remove_file(own.join("new")).unwrap();
        // The server's files are its own, and may be closed to everyone else.
        let scratch = world.scratch();
        fs::set_permissions(&scratch, fs::Permissions::from_mode(if closed { 0o700 } else { 0o755 })).unwrap();
        let source = scratch.join("source");
        repository.bundle(&base, File::create(&source).unwrap()).unwrap();
        let inside = world.inside(&source, "sha1");
        for number in 0..120 {
            write(&inside, format!("file{number}"), format!("{number}"));
        }
        let result = commit(&inside, "more");
        let bundle = world.result(&inside, &base);
        fs::set_permissions(&bundle, fs::Permissions::from_mode(0o600)).unwrap();
        let taken = repository.take(&bundle, &base, "atoll/work", &scratch).unwrap();
        assert!(matches!(taken, Outcome::Branch(taken) if taken.commit == result));
        let mut found = Vec::new();
        owners(&own, &mut found);
        assert!(found.iter().all(|uid| *uid == SOMEONE));
        assert_eq!(git(&own, ["rev-parse", "atoll/work"]), result);
        assert_eq!(fs::read_dir(&scratch).unwrap().count(), 1);
    }
}

#[test]
fn what_the_owner_may_not_do_is_not_done_for_them() {
    if !is_root() {
        return;
    }
    let world = World::new();
    let own = world.repository("own");
    give(&own);
    // A file of root's in the middle of it: git as root would read it.
    let config = own.join(".git/config");
    lchown(&config, Some(0), Some(0)).unwrap();
    fs::set_permissions(&config, fs::Permissions::from_mode(0o600)).unwrap();
    let error = Repository::open(&own).unwrap_err();
    assert_eq!(error.code(), "source_not_allowed", "{error}");

    // Someone's link to a repository of root's: git looks at it as someone.
    let hidden = world.repository("hidden");
    fs::set_permissions(&hidden, fs::Permissions::from_mode(0o700)).unwrap();
    let trap = world.path("trap");
    fs::create_dir(&trap).unwrap();
    std::os::unix::fs::symlink(hidden.join(".git"), trap.join(".git")).unwrap();
    give(&trap);
    let error = Repository::open(&trap).unwrap_err();
    assert!(["source_not_allowed", "not_a_repository"].contains(&error.code()), "{error}");
}
