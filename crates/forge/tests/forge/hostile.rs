//! Bundles that are not what they say, and repositories whose configuration would run something.

use crate::world::{World, commit, git, pipe, state, try_git, write};
use atoll_forge::{Bounds, Error, Outcome, Repository};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

struct Trap {
    world: World,
    own: PathBuf,
    base: String,
    /// A good bundle.
    good: Vec<u8>,
    result: String,
}

impl Trap {
    fn new() -> Self {
        let world = World::new();
        let own = world.repository("own");
        let base = git(&own, ["rev-parse", "HEAD"]);
        git(&own, ["clone", "-q", "--no-local", ".", "../inside"]);
        let inside = world.path("inside");
        write(&inside, "file", "x");
        let result = commit(&inside, "more");
        let good = fs::read(world.result(&inside, &base)).unwrap();
        Self { world, own, base, good, result }
    }

    fn take(&self, bytes: &[u8]) -> Result<Outcome, Error> {
        self.take_within(bytes, Bounds::default())
    }

    /// Takes a bundle, and checks that a refusal leaves nothing behind.
    fn take_within(&self, bytes: &[u8], bounds: Bounds) -> Result<Outcome, Error> {
        let bundle = self.world.path("bundle");
        fs::write(&bundle, bytes).unwrap();
        let before = state(&self.own, None);
        let objects = git(&self.own, ["count-objects", "-v"]);
        let repository = Repository::open_within(&self.own, bounds).unwrap();
        let taken = repository.take(&bundle, &self.base, "atoll/work", &self.world.scratch());
        if taken.is_err() {
            assert_eq!(state(&self.own, None), before);
            assert_eq!(git(&self.own, ["count-objects", "-v"]), objects);
        }
        assert_eq!(fs::read_dir(self.world.scratch()).unwrap().count(), 0);
        taken
    }

    fn refused(&self, bytes: &[u8]) -> Error {
        self.take(bytes).unwrap_err()
    }

    fn head(&self, lines: &[String]) -> Vec<u8> {
        let end = self.good.windows(2).position(|pair| pair == b"\n\n").unwrap() + 2;
        let head: String = lines.iter().map(|line| format!("{line}\n")).collect();
        [format!("# v2 git bundle\n{head}\n").as_bytes(), &self.good[end..]].concat()
    }

    /// A bundle of these objects, whatever they are.
    fn packed(&self, objects: &[&str], result: &str) -> Vec<u8> {
        let inside = self.world.path("inside");
        let pack = self.world.path("pack");
        let names: String = objects.iter().map(|name| format!("{name}\n")).collect();
        let name = pipe(&inside, ["pack-objects", "-q", pack.to_str().unwrap()], names.as_bytes());
        let pack = fs::read(self.world.path(format!("pack-{name}.pack"))).unwrap();
        [format!("# v2 git bundle\n{result} refs/atoll/result\n\n").as_bytes(), &pack].concat()
    }

    /// A commit on the base with a tree made by hand.
    fn commit_of_tree(&self, tree: &str) -> String {
        git(&self.world.path("inside"), ["commit-tree", "-m", "x", "-p", &self.base, tree])
    }
}

#[test]
fn bundles_that_are_none_are_refused_and_leave_nothing() {
    let trap = Trap::new();
    for cut in [1, 10, 60, trap.good.len() / 2, trap.good.len() - 1] {
        assert_eq!(trap.refused(&trap.good[..cut]).code(), "bundle_refused", "{cut}");
    }
    assert_eq!(trap.refused(b"not a bundle at all").code(), "bundle_refused");
    assert_eq!(trap.refused(&vec![0; 100 << 20]).code(), "bundle_refused");
    let mut flipped = trap.good.clone();
    let place = flipped.len() - 30;
    flipped[place] ^= 0xff;
    assert!(["bundle_refused", "result_refused"].contains(&trap.refused(&flipped).code()));
    assert!(matches!(trap.take(&trap.good), Ok(Outcome::Branch(_))));
}

#[test]
fn refs_that_are_not_the_result_are_refused() {
    let trap = Trap::new();
    let (result, absent) = (&trap.result, "0123456789abcdef0123456789abcdef01234567");
    for lines in [
        vec![],
        vec![format!("{result} refs/heads/main")],
        vec![format!("{result} refs/atoll/result"), format!("{result} refs/heads/main")],
        vec![format!("{result} refs/atoll/result"), format!("{result} refs/atoll/result")],
        vec![format!("{result} ../../HEAD")],
        vec![format!("{result} --upload-pack=touch")],
        vec![format!("{absent} refs/atoll/result")],
        vec![format!("-{absent}"), format!("{result} refs/atoll/result")],
    ] {
        assert_eq!(trap.refused(&trap.head(&lines)).code(), "bundle_refused", "{lines:?}");
    }
    let tree = git(&trap.world.path("inside"), ["rev-parse", "HEAD^{tree}"]);
    assert_eq!(trap.refused(&trap.head(&[format!("{tree} refs/atoll/result")])).code(), "bundle_refused");
    for branch in ["", "-d", "HEAD", "a..b", "../x", "a b", "x.lock"] {
        let repository = Repository::open(&trap.own).unwrap();
        let error = repository.take(Path::new("/dev/null"), &trap.base, branch, &trap.world.scratch()).unwrap_err();
        assert_eq!(error.code(), "branch_refused", "{branch}");
    }
}

#[test]
fn objects_that_are_missing_or_broken_are_refused() {
    let trap = Trap::new();
    let inside = trap.world.path("inside");
    let tree = git(&inside, ["rev-parse", "HEAD^{tree}"]);
    // The new file itself is left out.
    assert_eq!(trap.refused(&trap.packed(&[&trap.result, &tree], &trap.result)).code(), "result_refused");
    // The commit alone.
    assert_eq!(trap.refused(&trap.packed(&[&trap.result], &trap.result)).code(), "result_refused");

    let blob = git(&inside, ["rev-parse", "HEAD:file"]);
    for name in [".git", "..", ".GIT", "a/b"] {
        let entry = [b"100644 ", name.as_bytes(), b"\0", &unhex(&blob)].concat();
        let tree = pipe(&inside, ["hash-object", "-t", "tree", "-w", "--literally", "--stdin"], &entry);
        let commit = trap.commit_of_tree(&tree);
        let error = trap.refused(&trap.packed(&[&commit, &tree, &blob], &commit));
        assert_eq!(error.code(), "result_refused", "{name}: {error}");
    }
    let modules = b"[submodule \"x\"]\n\tpath = x\n\turl = --upload-pack=touch canary\n";
    let modules = pipe(&inside, ["hash-object", "-w", "--stdin"], modules);
    let tree = pipe(&inside, ["mktree"], format!("100644 blob {modules}\t.gitmodules\n").as_bytes());
    let commit = trap.commit_of_tree(&tree);
    let error = trap.refused(&trap.packed(&[&commit, &tree, &modules], &commit));
    assert_eq!(error.code(), "result_refused", "{error}");
}

fn unhex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|place| u8::from_str_radix(&hex[2 * place..2 * place + 2], 16).unwrap()).collect()
}

#[test]
fn size_is_bounded_packed_and_unpacked() {
    let trap = Trap::new();
    let small = Bounds { result_bytes: 100, ..Bounds::default() };
    assert_eq!(trap.take_within(&trap.good, small).unwrap_err().code(), "result_too_large");

    // A hundred megabytes that pack into a hundred kilobytes.
    let inside = trap.world.path("inside");
    fs::write(inside.join("zeros"), vec![0; 100 << 20]).unwrap();
    commit(&inside, "zeros");
    let bundle = fs::read(trap.world.result(&inside, &trap.base)).unwrap();
    assert!(bundle.len() < 1 << 20);
    let bounds = Bounds { unpacked_bytes: 50 << 20, ..Bounds::default() };
    assert_eq!(trap.take_within(&bundle, bounds).unwrap_err().code(), "result_too_large");
    assert!(matches!(trap.take(&bundle), Ok(Outcome::Branch(_))));
}

#[test]
fn a_tree_that_unfolds_without_end_is_refused_in_bounded_time() {
    let trap = Trap::new();
    let inside = trap.world.path("inside");
    let mut objects = vec![git(&inside, ["rev-parse", "HEAD:file"])];
    let mut entry = format!("100644 blob {}\tf%d\n", objects[0]);
    for _ in 0..10 {
        let lines: String = (0..10).map(|number| entry.replace("%d", &number.to_string())).collect();
        let tree = pipe(&inside, ["mktree"], lines.as_bytes());
        entry = format!("040000 tree {tree}\td%d\n");
        objects.push(tree);
    }
    let commit = trap.commit_of_tree(objects.last().unwrap());
    objects.push(commit.clone());
    let names: Vec<&str> = objects.iter().map(String::as_str).collect();
    let error = trap.refused(&trap.packed(&names, &commit));
    assert_eq!(error.code(), "result_too_large", "{error}");
}

#[test]
fn a_repository_s_configuration_runs_nothing() {
    let trap = Trap::new();
    let canary = trap.world.path("canary");
    let script = trap.world.path("script");
    fs::write(&script, format!("#!/bin/sh\necho \"$0 $*\" >> {}\ncat\n", canary.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    let hooks = trap.world.path("hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in ["reference-transaction", "post-index-change", "pre-push", "post-checkout", "update", "pre-auto-gc"] {
        for place in [hooks.clone(), trap.own.join(".git/hooks")] {
            fs::create_dir_all(&place).unwrap();
            fs::copy(script, place.join(hook)).unwrap();
        }
    }
    // A change that only a filter could tell to be none.
    write(&trap.own, ".git/info/attributes", "* filter=evil diff=evil\n");
    write(&trap.own, "README.md", "changed\n");
    let settings = [
        ("core.fsmonitor", script),
        ("core.hooksPath", hooks.to_str().unwrap()),
        ("core.sshCommand", script),
        ("core.pager", script),
        ("core.editor", script),
        ("core.askPass", script),
        ("core.gitProxy", script),
        ("core.alternateRefsCommand", script),
        ("credential.helper", script),
        ("gpg.program", script),
        ("commit.gpgSign", "true"),
        ("diff.external", script),
        ("diff.evil.command", script),
        ("diff.evil.textconv", script),
        ("filter.evil.clean", script),
        ("filter.evil.smudge", script),
        ("filter.evil.process", script),
        ("filter.evil.required", "true"),
        ("filter.a=b.clean", script),
        ("uploadpack.packObjectsHook", script),
        ("gc.auto", "1"),
        ("alias.status", &format!("!{script}")),
        ("alias.rev-parse", &format!("!{script}")),
        ("extensions.partialClone", "origin"),
        ("remote.origin.url", &format!("ext::{script}")),
        ("remote.origin.uploadpack", script),
        ("protocol.allow", "always"),
        ("protocol.ext.allow", "always"),
        ("core.worktree", "/"),
    ];
    for (key, value) in settings {
        git(&trap.own, ["config", "--file", ".git/more", key, value]);
    }
    git(&trap.own, ["config", "include.path", "more"]);
    git(&trap.own, ["config", "core.repositoryFormatVersion", "1"]);
    // The trap works: plain git walks into it.
    drop(try_git(&trap.own, ["-c", "core.worktree=", "status"]));
    assert!(canary.exists());
    fs::remove_file(&canary).unwrap();

    let repository = Repository::open(&trap.own).unwrap();
    repository.head().unwrap();
    repository.resolve("main").unwrap();
    assert_eq!(repository.resolve("0123456789abcdef0123456789abcdef01234567").unwrap_err().code(), "base_missing");
    assert_eq!(repository.uncommitted().unwrap(), 1);
    repository.author();
    repository.bundle(&trap.base, File::create(trap.world.path("source")).unwrap()).unwrap();
    let bundle = trap.world.path("bundle");
    fs::write(&bundle, &trap.good).unwrap();
    let taken = repository.take(&bundle, &trap.base, "atoll/work", &trap.world.scratch()).unwrap();
    assert!(matches!(taken, Outcome::Branch(_)));
    assert!(!canary.exists(), "{}", fs::read_to_string(&canary).unwrap());
}

#[test]
fn replaced_objects_do_not_go_in_for_the_real_ones() {
    let world = World::new();
    let own = world.repository("own");
    let head = git(&own, ["rev-parse", "HEAD"]);
    git(&own, ["replace", "HEAD", "HEAD~1"]);
    Repository::open(&own).unwrap().bundle(&head, File::create(world.path("source")).unwrap()).unwrap();
    let inside = world.inside(&world.path("source"), "sha1");
    assert_eq!(fs::read_to_string(inside.join("README.md")).unwrap(), "first\nsecond\n");
}
