//! Hostile bundles, and repositories whose configuration would run programs.

use crate::fixture::{TestRepositories, commit_all, git, git_with_input, repository_state, try_git, write_file};
use atoll_forge::{Error, GitLimits, HostRepository, ImportOutcome};
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

struct HostileScenario {
    repositories: TestRepositories,
    own: PathBuf,
    base: String,
    /// A valid bundle.
    valid_bundle: Vec<u8>,
    result: String,
}

impl HostileScenario {
    fn new() -> Self {
        let repositories = TestRepositories::new();
        let own = repositories.create_repository("own");
        let base = git(&own, ["rev-parse", "HEAD"]);
        git(&own, ["clone", "-q", "--no-local", ".", "../inside"]);
        let inside = repositories.path("inside");
        write_file(&inside, "file", "x");
        let result = commit_all(&inside, "more");
        let valid_bundle = fs::read(repositories.bundle_result(&inside, &base)).unwrap();
        Self { repositories, own, base, valid_bundle, result }
    }

    fn import_bundle(&self, bytes: &[u8]) -> Result<ImportOutcome, Error> {
        self.import_with_limits(bytes, GitLimits::default())
    }

    /// Imports a bundle and checks that a refusal leaves no trace.
    fn import_with_limits(&self, bytes: &[u8], limits: GitLimits) -> Result<ImportOutcome, Error> {
        let bundle = self.repositories.path("bundle");
        fs::write(&bundle, bytes).unwrap();
        let before = repository_state(&self.own, None);
        let objects = git(&self.own, ["count-objects", "-v"]);
        let repository = HostRepository::open_with_limits(&self.own, limits).unwrap();
        let outcome = repository.import_result(&bundle, &self.base, "atoll/work", &self.repositories.scratch_dir());
        if outcome.is_err() {
            assert_eq!(repository_state(&self.own, None), before);
            assert_eq!(git(&self.own, ["count-objects", "-v"]), objects);
        }
        assert_eq!(fs::read_dir(self.repositories.scratch_dir()).unwrap().count(), 0);
        outcome
    }

    fn expect_refusal(&self, bytes: &[u8]) -> Error {
        self.import_bundle(bytes).unwrap_err()
    }

    fn bundle_with_refs(&self, lines: &[String]) -> Vec<u8> {
        let end = self.valid_bundle.windows(2).position(|pair| pair == b"\n\n").unwrap() + 2;
        let head: String = lines.iter().map(|line| format!("{line}\n")).collect();
        [format!("# v2 git bundle\n{head}\n").as_bytes(), &self.valid_bundle[end..]].concat()
    }

    /// Bundles arbitrary objects.
    fn bundle_objects(&self, objects: &[&str], result: &str) -> Vec<u8> {
        let inside = self.repositories.path("inside");
        let pack = self.repositories.path("pack");
        let names: String = objects.iter().map(|name| format!("{name}\n")).collect();
        let name = git_with_input(&inside, ["pack-objects", "-q", pack.to_str().unwrap()], names.as_bytes());
        let pack = fs::read(self.repositories.path(format!("pack-{name}.pack"))).unwrap();
        [format!("# v2 git bundle\n{result} refs/atoll/result\n\n").as_bytes(), &pack].concat()
    }

    /// A commit on the base with a hand-made tree.
    fn commit_of_tree(&self, tree: &str) -> String {
        git(&self.repositories.path("inside"), ["commit-tree", "-m", "x", "-p", &self.base, tree])
    }
}

#[test]
fn rejects_malformed_bundles_and_leaves_no_trace() {
    let scenario = HostileScenario::new();
    for cut in [1, 10, 60, scenario.valid_bundle.len() / 2, scenario.valid_bundle.len() - 1] {
        assert_eq!(scenario.expect_refusal(&scenario.valid_bundle[..cut]).code(), "bundle_refused", "{cut}");
    }
    assert_eq!(scenario.expect_refusal(b"not a bundle at all").code(), "bundle_refused");
    assert_eq!(scenario.expect_refusal(&vec![0; 100 << 20]).code(), "bundle_refused");
    let mut flipped = scenario.valid_bundle.clone();
    let offset = flipped.len() - 30;
    flipped[offset] ^= 0xff;
    assert!(["bundle_refused", "result_refused"].contains(&scenario.expect_refusal(&flipped).code()));
    assert!(matches!(scenario.import_bundle(&scenario.valid_bundle), Ok(ImportOutcome::Branch(_))));
}

#[test]
fn rejects_refs_other_than_the_result() {
    let scenario = HostileScenario::new();
    let (result, absent) = (&scenario.result, "0123456789abcdef0123456789abcdef01234567");
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
        assert_eq!(scenario.expect_refusal(&scenario.bundle_with_refs(&lines)).code(), "bundle_refused", "{lines:?}");
    }
    let tree = git(&scenario.repositories.path("inside"), ["rev-parse", "HEAD^{tree}"]);
    assert_eq!(
        scenario.expect_refusal(&scenario.bundle_with_refs(&[format!("{tree} refs/atoll/result")])).code(),
        "bundle_refused"
    );
    for branch in ["", "-d", "HEAD", "a..b", "../x", "a b", "x.lock"] {
        let repository = HostRepository::open(&scenario.own).unwrap();
        let error = repository
            .import_result(Path::new("/dev/null"), &scenario.base, branch, &scenario.repositories.scratch_dir())
            .unwrap_err();
        assert_eq!(error.code(), "branch_refused", "{branch}");
    }
}

#[test]
fn rejects_missing_and_malformed_objects() {
    let scenario = HostileScenario::new();
    let inside = scenario.repositories.path("inside");
    let tree = git(&inside, ["rev-parse", "HEAD^{tree}"]);
    // Without the new file's blob.
    assert_eq!(
        scenario.expect_refusal(&scenario.bundle_objects(&[&scenario.result, &tree], &scenario.result)).code(),
        "result_refused"
    );
    // The commit alone.
    assert_eq!(
        scenario.expect_refusal(&scenario.bundle_objects(&[&scenario.result], &scenario.result)).code(),
        "result_refused"
    );

    let blob = git(&inside, ["rev-parse", "HEAD:file"]);
    for name in [".git", "..", ".GIT", "a/b"] {
        let entry = [b"100644 ", name.as_bytes(), b"\0", &decode_hex(&blob)].concat();
        let tree = git_with_input(&inside, ["hash-object", "-t", "tree", "-w", "--literally", "--stdin"], &entry);
        let commit = scenario.commit_of_tree(&tree);
        let error = scenario.expect_refusal(&scenario.bundle_objects(&[&commit, &tree, &blob], &commit));
        assert_eq!(error.code(), "result_refused", "{name}: {error}");
    }
    let modules = b"[submodule \"x\"]\n\tpath = x\n\turl = --upload-pack=touch canary\n";
    let modules = git_with_input(&inside, ["hash-object", "-w", "--stdin"], modules);
    let tree = git_with_input(&inside, ["mktree"], format!("100644 blob {modules}\t.gitmodules\n").as_bytes());
    let commit = scenario.commit_of_tree(&tree);
    let error = scenario.expect_refusal(&scenario.bundle_objects(&[&commit, &tree, &modules], &commit));
    assert_eq!(error.code(), "result_refused", "{error}");
}

fn decode_hex(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|index| u8::from_str_radix(&hex[2 * index..2 * index + 2], 16).unwrap()).collect()
}

#[test]
fn limits_packed_and_unpacked_size() {
    let scenario = HostileScenario::new();
    let small = GitLimits { result_bytes: 100, ..GitLimits::default() };
    assert_eq!(scenario.import_with_limits(&scenario.valid_bundle, small).unwrap_err().code(), "result_too_large");

    // A hundred megabytes that pack into a hundred kilobytes.
    let inside = scenario.repositories.path("inside");
    fs::write(inside.join("zeros"), vec![0; 100 << 20]).unwrap();
    commit_all(&inside, "zeros");
    let bundle = fs::read(scenario.repositories.bundle_result(&inside, &scenario.base)).unwrap();
    assert!(bundle.len() < 1 << 20);
    let limits = GitLimits { unpacked_bytes: 50 << 20, ..GitLimits::default() };
    assert_eq!(scenario.import_with_limits(&bundle, limits).unwrap_err().code(), "result_too_large");
    assert!(matches!(scenario.import_bundle(&bundle), Ok(ImportOutcome::Branch(_))));
}

#[test]
fn rejects_a_tree_bomb_in_bounded_time() {
    let scenario = HostileScenario::new();
    let inside = scenario.repositories.path("inside");
    let mut objects = vec![git(&inside, ["rev-parse", "HEAD:file"])];
    let mut entry = format!("100644 blob {}\tf%d\n", objects[0]);
    for _ in 0..10 {
        let lines: String = (0..10).map(|number| entry.replace("%d", &number.to_string())).collect();
        let tree = git_with_input(&inside, ["mktree"], lines.as_bytes());
        entry = format!("040000 tree {tree}\td%d\n");
        objects.push(tree);
    }
    let commit = scenario.commit_of_tree(objects.last().unwrap());
    objects.push(commit.clone());
    let names: Vec<&str> = objects.iter().map(String::as_str).collect();
    let error = scenario.expect_refusal(&scenario.bundle_objects(&names, &commit));
    assert_eq!(error.code(), "result_too_large", "{error}");
}

#[test]
fn repository_configuration_starts_no_programs() {
    let scenario = HostileScenario::new();
    let canary = scenario.repositories.path("canary");
    let script = scenario.repositories.path("script");
    fs::write(&script, format!("#!/bin/sh\necho \"$0 $*\" >> {}\ncat\n", canary.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    let hooks = scenario.repositories.path("hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in ["reference-transaction", "post-index-change", "pre-push", "post-checkout", "update", "pre-auto-gc"] {
        for dir in [hooks.clone(), scenario.own.join(".git/hooks")] {
            fs::create_dir_all(&dir).unwrap();
            fs::copy(script, dir.join(hook)).unwrap();
        }
    }
    // To compare these files, git would run the filter.
    write_file(&scenario.own, ".git/info/attributes", "* filter=evil diff=evil\n");
    write_file(&scenario.own, "README.md", "changed\n");
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
        git(&scenario.own, ["config", "--file", ".git/more", key, value]);
    }
    git(&scenario.own, ["config", "include.path", "more"]);
    git(&scenario.own, ["config", "core.repositoryFormatVersion", "1"]);
    // Plain git does run the programs, so the test is meaningful.
    drop(try_git(&scenario.own, ["-c", "core.worktree=", "status"]));
    assert!(canary.exists());
    fs::remove_file(&canary).unwrap();

    let repository = HostRepository::open(&scenario.own).unwrap();
    repository.head().unwrap();
    repository.resolve_base("main").unwrap();
    assert_eq!(repository.resolve_base("0123456789abcdef0123456789abcdef01234567").unwrap_err().code(), "base_missing");
    assert_eq!(repository.count_uncommitted_files().unwrap(), 1);
    repository.author();
    repository.write_bundle(&scenario.base, File::create(scenario.repositories.path("source")).unwrap()).unwrap();
    let bundle = scenario.repositories.path("bundle");
    fs::write(&bundle, &scenario.valid_bundle).unwrap();
    let outcome =
        repository.import_result(&bundle, &scenario.base, "atoll/work", &scenario.repositories.scratch_dir()).unwrap();
    assert!(matches!(outcome, ImportOutcome::Branch(_)));
    assert!(!canary.exists(), "{}", fs::read_to_string(&canary).unwrap());
}

#[test]
fn bundles_ignore_replace_refs() {
    let repositories = TestRepositories::new();
    let own = repositories.create_repository("own");
    let head = git(&own, ["rev-parse", "HEAD"]);
    git(&own, ["replace", "HEAD", "HEAD~1"]);
    HostRepository::open(&own)
        .unwrap()
        .write_bundle(&head, File::create(repositories.path("source")).unwrap())
        .unwrap();
    let inside = repositories.create_sandbox_clone(&repositories.path("source"), "sha1");
    assert_eq!(fs::read_to_string(inside.join("README.md")).unwrap(), "first\nsecond\n");
}
