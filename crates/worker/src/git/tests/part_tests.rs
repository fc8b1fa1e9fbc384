//! Tests of `git-parts`, of sparse checkouts, and of the results of both.

use super::{GitFixture, code, commit, git, write};
use atoll_forge::plumbing::checkout_parts::{CheckoutPart, SubmodulePart};
use atoll_forge::plumbing::large_files::{LargeFile, copy_and_hash};
use serde_json::json;
use std::fs;
use std::io;
use std::path::Path;

/// The bundle of a repository's HEAD, as the server writes it.
fn bundle_head(fixture: &GitFixture, repository: &Path) -> Vec<u8> {
    git(repository, ["update-ref", "refs/atoll/base", "HEAD"]);
    let bundle = fixture.path("part.bundle");
    git(repository, ["bundle", "create", "-q", bundle.to_str().unwrap(), "refs/atoll/base"]);
    fs::read(bundle).unwrap()
}

fn stream(parts: Vec<(CheckoutPart, Vec<u8>)>) -> Vec<u8> {
    let mut stream = Vec::new();
    for (part, content) in parts {
        part.write_header(content.len() as u64, &mut stream).unwrap();
        stream.extend(content);
    }
    stream
}

fn submodule(path: &str, git_dir: &str, parent: &str, commit: &str) -> SubmodulePart {
    SubmodulePart {
        path: path.to_owned(),
        git_dir: git_dir.to_owned(),
        parent: parent.to_owned(),
        name: path.rsplit_once('/').map_or(path, |(_, name)| name).to_owned(),
        url: format!("https://example.org/{path}"),
        commit: commit.to_owned(),
    }
}

struct SubmoduleFixture {
    fixture: GitFixture,
    base: String,
    inner: String,
}

impl SubmoduleFixture {
    /// A workspace with the submodule `lib`, which has the submodule `lib/deep`.
    fn new() -> Self {
        let fixture = GitFixture::new();
        let own = fixture.repository(&[]);
        let (lib, deep) = (fixture.path("lib"), fixture.path("deep"));
        for (directory, file) in [(&deep, "deep.txt"), (&lib, "lib.txt")] {
            fs::create_dir(directory).unwrap();
            git(directory, ["init", "-q", "-b", "main"]);
            write(directory, file, "x\n");
            commit(directory, "first");
        }
        let link = |repository: &Path, path: &str, id: &str| {
            write(
                repository,
                ".gitmodules",
                format!("[submodule \"{path}\"]\n\tpath = {path}\n\turl = ../{path}.git\n"),
            );
            git(repository, ["add", ".gitmodules"]);
            git(repository, ["update-index", "--add", "--cacheinfo", &format!("160000,{id},{path}")]);
            git(repository, ["commit", "-q", "-m", "link"]);
            git(repository, ["rev-parse", "HEAD"])
        };
        let deepest = git(&deep, ["rev-parse", "HEAD"]);
        let inner = link(&lib, "deep", &deepest);
        let base = link(&own, "lib", &inner);
        fixture.fill(&own, &["--base", &base]).0.unwrap();
        let parts = vec![
            (CheckoutPart::Submodule(submodule("lib", ".git/modules/lib", "", &inner)), bundle_head(&fixture, &lib)),
            (
                CheckoutPart::Submodule(submodule("lib/deep", ".git/modules/lib/modules/deep", "lib", &deepest)),
                bundle_head(&fixture, &deep),
            ),
        ];
        let report = fixture.run_job(&["git-parts"], &stream(parts)).0.unwrap();
        assert_eq!(report, json!({ "submodules": 2, "large_files": 0 }));
        Self { fixture, base, inner }
    }

    fn unsaved(&self) -> serde_json::Value {
        self.fixture.export(&self.base).0.unwrap()["unsaved"].clone()
    }
}

#[test]
fn submodules_are_as_git_creates_them() {
    let SubmoduleFixture { fixture, base, inner } = SubmoduleFixture::new();
    let root = fixture.root();
    assert_eq!(git(root, ["status", "--porcelain"]), "");
    assert_eq!(fs::read_to_string(root.join("lib/deep/deep.txt")).unwrap(), "x\n");
    let status = git(root, ["submodule", "status", "--recursive"]);
    let lines: Vec<&str> = status.lines().map(str::trim_start).collect();
    assert!(lines[0].starts_with(&format!("{inner} lib")) && lines[1].contains(" lib/deep"), "{status}");
    assert_eq!(git(&root.join("lib"), ["config", "--local", "user.name"]), "Ann Lee");
    assert_eq!(git(&root.join("lib"), ["rev-list", "--count", "HEAD"]), "2");
    git(&root.join("lib"), ["fsck", "--strict"]);
    // The workspace can move.
    let moved = fixture.path("moved");
    fs::rename(root, &moved).unwrap();
    assert_eq!(git(&moved.join("lib/deep"), ["status", "--porcelain"]), "");
    fs::rename(&moved, root).unwrap();
    assert_eq!(fixture.export(&base).0.unwrap(), json!({ "nothing": true }));
}

#[test]
fn only_work_in_a_submodule_is_unsaved() {
    let scenario = SubmoduleFixture::new();
    let (root, lib) = (scenario.fixture.root().to_owned(), scenario.fixture.root().join("lib"));
    // An earlier commit of the submodule is no work: the result has its id.
    git(&lib, ["checkout", "-q", "HEAD~1"]);
    fs::remove_dir_all(lib.join("deep")).unwrap();
    let report = scenario.fixture.export_and_fetch(&scenario.base);
    assert_eq!(report.get("unsaved"), None, "{report}");
    let earlier = git(&lib, ["rev-parse", "HEAD"]);
    let own = scenario.fixture.path("own");
    assert!(git(&own, ["ls-tree", "result", "lib"]).contains(&earlier));
    let diff = scenario.fixture.diff(&scenario.base, &[]).1;
    assert!(diff.contains("\"submodule\":true"), "{diff}");
    git(&lib, ["checkout", "-q", &scenario.inner]);
    git(&lib, ["submodule", "deinit", "-q", "--all"]);

    for (what, change) in [
        ("a file", &["--version"] as &[&str]),
        ("a commit", &["-c", "user.name=x", "commit", "-q", "--allow-empty", "-m", "work"]),
        ("a branch", &["branch", "work", "HEAD~1"]),
        ("a stash", &["stash", "-q"]),
    ] {
        if matches!(what, "a file" | "a stash") {
            write(&lib, "lib.txt", what);
        }
        git(&lib, change);
        let expected = if what == "a branch" { json!(null) } else { json!(["submodule lib"]) };
        assert_eq!(scenario.unsaved(), expected, "{what}");
        git(&lib, ["checkout", "-q", "--detach"]);
        git(&lib, ["reset", "-q", "--hard", &scenario.inner]);
        drop(super::try_git(&lib, ["branch", "-D", "work"]));
        drop(super::try_git(&lib, ["stash", "drop", "-q"]));
        assert_eq!(scenario.unsaved(), json!(null), "{what}");
    }
    fs::remove_file(lib.join(".git")).unwrap();
    assert_eq!(scenario.unsaved(), json!(["submodule lib"]), "the submodule's repository is gone");
    fs::remove_dir_all(&lib).unwrap();
    assert_eq!(scenario.unsaved(), json!(null));
    assert!(!root.join("lib").exists());
}

#[test]
fn work_in_a_nested_submodule_is_unsaved() {
    let scenario = SubmoduleFixture::new();
    write(scenario.fixture.root(), "lib/deep/new", "x");
    assert_eq!(scenario.unsaved(), json!(["submodule lib/deep"]));
}

#[test]
fn refuses_malformed_parts() {
    let (fixture, _) = GitFixture::with_repository();
    let bundle = bundle_head(&fixture, &fixture.path("own"));
    let id = git(&fixture.path("own"), ["rev-parse", "HEAD"]);
    let refuse = |part: SubmodulePart, expected: &str| {
        let parts = stream(vec![(CheckoutPart::Submodule(part), bundle.clone())]);
        assert_eq!(code(fixture.run_job(&["git-parts"], &parts).0), expected);
    };
    for (path, git_dir) in [
        ("../outside", ".git/modules/x"),
        ("/outside", ".git/modules/x"),
        (".git/hooks", ".git/modules/x"),
        ("lib", ".git/hooks"),
        ("lib", ".git/modules/../../../outside"),
        ("", ".git/modules/x"),
    ] {
        refuse(submodule(path, git_dir, "", &id), "bad_bundle");
    }
    refuse(submodule("lib", ".git/modules/lib", "", &"0".repeat(40)), "base_mismatch");
    let whole = stream(vec![(CheckoutPart::Submodule(submodule("lib", ".git/modules/lib", "", &id)), bundle.clone())]);
    assert_eq!(code(fixture.run_job(&["git-parts"], &whole[..whole.len() - 9]).0), "bad_bundle");
    let file = CheckoutPart::LargeFile { oid: "0".repeat(64) };
    assert_eq!(code(fixture.run_job(&["git-parts"], &stream(vec![(file, b"x".to_vec())])).0), "io");
    assert!(!fixture.path("outside").exists());
}

#[test]
fn large_files_of_the_start_are_complete_and_new_ones_are_not() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    let pointer = |content: &[u8]| -> LargeFile { copy_and_hash(&mut &content[..], &mut io::sink()).unwrap() };
    write(&own, ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n");
    write(&own, "a.bin", pointer(b"first").pointer());
    let base = commit(&own, "large");
    fixture.fill(&own, &["--base", &base]).0.unwrap();
    let root = fixture.root().to_owned();
    fs::rename(root.join("a.bin"), root.join("b.bin")).unwrap();
    write(&root, "not-large.txt", pointer(b"an example").pointer());
    assert_eq!(fixture.export_and_fetch(&base).get("unsaved"), None, "a renamed pointer is the same file");
    write(&root, "c.bin", pointer(b"second").pointer());
    write(&root, "d.bin", "content");
    let report = fixture.export_and_fetch(&base);
    assert_eq!(report["unsaved"], json!(["large file c.bin"]));
    let warning = report["warnings"][0].as_str().unwrap();
    assert!(warning.contains("\"d.bin\" belongs to large-file storage"), "{report}");
}

#[test]
fn a_sparse_checkout_has_its_directories_and_loses_no_other_file() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    for name in ["a/file", "a b/deep/file", "a b/side/file", "other/file"] {
        write(&own, name, "x\n");
    }
    let base = commit(&own, "many");
    let sparse = ["--base", &base, "--sparse", "src", "--sparse", "a b/deep"];
    fixture.fill(&own, &sparse).0.unwrap();
    let root = fixture.root().to_owned();
    let exists = |name: &str| root.join(name).exists();
    assert!(exists("README.md") && exists("src/code.rs") && exists("a b/deep/file"));
    assert!(!exists("a") && !exists("a b/side") && !exists("other"));
    assert_eq!(git(&root, ["status", "--porcelain"]), "");
    assert_eq!(git(&root, ["sparse-checkout", "list"]), "a b/deep\nsrc");
    assert_eq!(fixture.export(&base).0.unwrap(), json!({ "nothing": true }));

    write(&root, "src/new", "x\n");
    write(&root, "other/new", "x\n");
    fs::remove_file(root.join("README.md")).unwrap();
    let expected = "D\tREADME.md\nA\tother/new\nA\tsrc/new";
    // With a damaged index and without a repository, the files outside are not deleted either.
    for damage in ["", ".git/index", ".git"] {
        if damage == ".git" {
            fs::remove_dir_all(root.join(damage)).unwrap();
            let bundle = fs::read(fixture.path("source.bundle")).unwrap();
            fixture.fill_with(&bundle, &[&sparse[..], &["--restore"]].concat()).0.unwrap();
        } else if !damage.is_empty() {
            write(&root, damage, "nonsense");
        }
        fixture.export_and_fetch(&base);
        assert_eq!(git(&own, ["diff", "--name-status", &base, "result"]), expected, "{damage}");
    }
}
