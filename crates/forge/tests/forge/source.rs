//! What goes into a sandbox.

use crate::world::{World, awkward, commit, git, state, write};
use atoll_forge::{Bounds, Error, Repository};
use std::fs::{self, File};
use std::path::Path;

fn bundled(world: &World, path: &Path, commit: &str) -> Result<u64, Error> {
    Repository::open(path).unwrap().bundle(commit, File::create(world.path("source.bundle")).unwrap())
}

#[test]
fn all_of_a_commit_goes_in_and_nothing_else() {
    let world = World::new();
    let path = world.repository("own");
    awkward(&path);
    git(&path, ["update-index", "--add", "--cacheinfo", "160000,0123456789abcdef0123456789abcdef01234567,module"]);
    fs::create_dir(path.join("module")).unwrap();
    let head = commit(&path, "awkward");
    git(&path, ["checkout", "-q", "-b", "secret", "HEAD~1"]);
    write(&path, "secret", "not for the sandbox");
    let secret = commit(&path, "secret");
    let before = state(&path, None);

    let bytes = bundled(&world, &path, &head).unwrap();
    assert_eq!(state(&path, None), before);
    let bundle = world.path("source.bundle");
    assert_eq!(bytes, fs::metadata(&bundle).unwrap().len());
    // It is a bundle to git as well.
    assert!(git(&path, ["bundle", "list-heads", bundle.to_str().unwrap()]).ends_with("refs/atoll/base"));
    git(&path, ["bundle", "verify", "-q", bundle.to_str().unwrap()]);

    let inside = world.inside(&bundle, "sha1");
    assert_eq!(git(&inside, ["rev-parse", "HEAD"]), head);
    assert_eq!(git(&inside, ["rev-list", "--count", "HEAD"]), "3");
    assert_eq!(git(&inside, ["status", "--porcelain"]), "");
    git(&inside, ["fsck", "--strict", "--connectivity-only"]);
    assert!(!crate::world::try_git(&inside, ["cat-file", "-e", &secret]).status.success());
    assert_eq!(fs::read_link(inside.join("dangling")).unwrap(), Path::new("/nowhere/at all"));
    assert_eq!(fs::read_to_string(inside.join("two\nlines")).unwrap(), "two\nlines\n");
}

#[test]
fn sha256_goes_in() {
    let world = World::new();
    let path = world.repository_with("own", &["--object-format=sha256"]);
    let head = git(&path, ["rev-parse", "HEAD"]);
    bundled(&world, &path, &head).unwrap();
    let inside = world.inside(&world.path("source.bundle"), "sha256");
    assert_eq!(git(&inside, ["rev-parse", "HEAD"]), head);
}

#[test]
fn a_shallow_clone_gives_what_it_has() {
    let world = World::new();
    let path = world.repository("own");
    for number in 0..5 {
        write(&path, "README.md", format!("{number}\n"));
        commit(&path, "more");
    }
    let url = format!("file://{}", path.display());
    git(&path, ["clone", "-q", "--depth", "2", &url, "../shallow"]);
    let shallow = world.path("shallow");
    let head = git(&shallow, ["rev-parse", "HEAD"]);
    bundled(&world, &shallow, &head).unwrap();
    let inside = world.inside(&world.path("source.bundle"), "sha1");
    assert_eq!(git(&inside, ["rev-list", "--count", "HEAD"]), "2");
    git(&inside, ["fsck", "--strict"]);
}

#[test]
fn a_partial_clone_gives_the_commit_if_it_has_it_and_never_asks_its_remote() {
    let world = World::new();
    let path = world.repository("own");
    git(&path, ["config", "uploadpack.allowFilter", "true"]);
    let url = format!("file://{}", path.display());
    git(&path, ["clone", "-q", "--filter=blob:none", &url, "../partial"]);
    git(&path, ["clone", "-q", "--filter=blob:none", "--no-checkout", &url, "../hollow"]);
    let head = git(&path, ["rev-parse", "HEAD"]);
    bundled(&world, &world.path("partial"), &head).unwrap();
    let inside = world.inside(&world.path("source.bundle"), "sha1");
    assert_eq!(git(&inside, ["rev-list", "--count", "HEAD"]), "1");
    assert_eq!(fs::read_to_string(inside.join("README.md")).unwrap(), "first\nsecond\n");

    let error = bundled(&world, &world.path("hollow"), &head).unwrap_err();
    assert_eq!(error.code(), "source_incomplete");
    assert!(error.to_string().contains("git fetch --refetch"), "{error}");
}

#[test]
fn damage_and_bounds_are_told_apart() {
    let world = World::new();
    let path = world.repository("own");
    let head = git(&path, ["rev-parse", "HEAD"]);
    for wrong in ["main", "", "--all", "0123456789abcdef0123456789abcdef01234567"] {
        assert_eq!(bundled(&world, &path, wrong).unwrap_err().code(), "base_missing", "{wrong}");
    }
    let small = Repository::open_within(&path, Bounds { source_bytes: 100, ..Bounds::default() }).unwrap();
    let error = small.bundle(&head, File::create(world.path("small")).unwrap()).unwrap_err();
    assert_eq!(error.code(), "source_too_large");

    let blob = git(&path, ["rev-parse", "HEAD~1:README.md"]);
    fs::remove_file(path.join(format!(".git/objects/{}/{}", &blob[..2], &blob[2..]))).unwrap();
    assert_eq!(bundled(&world, &path, &head).unwrap_err().code(), "source_incomplete");
}
