//! Tests of `git-in`.

use super::{GitFixture, code, commit, git, write};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::Instant;

#[test]
fn a_workspace_is_a_clean_repository_on_its_branch() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    for name in ["with space", "two\nlines", "-dash", "größe/日本", "quote\"\\"] {
        write(&own, name, name);
    }
    write(&own, "bin/run", "#!/bin/sh\n");
    fs::set_permissions(own.join("bin/run"), fs::Permissions::from_mode(0o755)).unwrap();
    symlink("/nowhere/at all", own.join("dangling")).unwrap();
    git(&own, ["add", "-A"]);
    git(&own, ["update-index", "--add", "--cacheinfo", "160000,0123456789abcdef0123456789abcdef01234567,module"]);
    git(&own, ["commit", "-q", "-m", "awkward"]);
    let base = git(&own, ["rev-parse", "HEAD"]);
    let (report, output) = fixture.fill(&own, &["--base", &base]);
    assert_eq!(report.unwrap(), json!({ "commit": base, "files": 11, "shallow": false }));
    assert!(output.is_empty());

    let root = fixture.root();
    assert_eq!(git(root, ["status", "--porcelain", "-uall"]), "");
    assert_eq!(git(root, ["symbolic-ref", "HEAD"]), "refs/heads/atoll/task");
    assert_eq!(git(root, ["rev-parse", "HEAD"]), base);
    assert_eq!(git(root, ["rev-list", "--count", "HEAD"]), "2");
    assert_eq!(git(root, ["remote"]), "");
    assert_eq!(git(root, ["for-each-ref", "--format=%(refname)"]), "refs/heads/atoll/task");
    assert_eq!(fs::read_to_string(root.join("two\nlines")).unwrap(), "two\nlines");
    assert_eq!(root.join("bin/run").metadata().unwrap().permissions().mode() & 0o111, 0o111);
    assert_eq!(fs::read_link(root.join("dangling")).unwrap(), Path::new("/nowhere/at all"));
    assert!(root.join("module").is_dir());
    let settings = git(root, ["config", "--local", "--list", "--name-only"]);
    let mut keys: Vec<&str> = settings.lines().filter(|key| !key.starts_with("core.")).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["user.email", "user.name"]);
    assert_eq!(git(root, ["config", "--local", "user.name"]), "Ann Lee");
    git(root, ["fsck", "--strict", "--no-dangling"]);
}

#[test]
fn preserves_unusual_author_names() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    let arguments = ["git-in", "--branch", "x", "--name", "-dash \"quote\" # ö", "--email", "--all"];
    git(&own, ["update-ref", "refs/atoll/base", "HEAD"]);
    git(&own, ["bundle", "create", "-q", "../source.bundle", "refs/atoll/base"]);
    fixture.run_job(&arguments, &fs::read(fixture.path("source.bundle")).unwrap()).0.unwrap();
    assert_eq!(git(fixture.root(), ["config", "--local", "user.name"]), "-dash \"quote\" # ö");
    assert_eq!(git(fixture.root(), ["config", "--local", "user.email"]), "--all");
}

#[test]
fn fills_a_sha256_repository() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&["--object-format=sha256"]);
    fixture.fill(&own, &[]).0.unwrap();
    assert_eq!(git(fixture.root(), ["rev-parse", "HEAD"]).len(), 64);
    assert_eq!(git(fixture.root(), ["status", "--porcelain"]), "");
}

#[test]
fn a_shallow_history_ends_where_the_bundle_ends() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    write(&own, "more", "x");
    let middle = commit(&own, "second");
    write(&own, "more", "y");
    let head = commit(&own, "third");
    git(&own, ["clone", "-q", "--depth", "2", &format!("file://{}", own.display()), "../shallow"]);
    let shallow = fixture.path("shallow");
    git(&shallow, ["update-ref", "refs/atoll/base", "HEAD"]);
    git(&shallow, ["update-ref", "refs/atoll/shallow/0", &middle]);
    git(&shallow, ["bundle", "create", "-q", "../source.bundle", "refs/atoll/base", "refs/atoll/shallow/0"]);
    let report = fixture.fill_with(&fs::read(fixture.path("source.bundle")).unwrap(), &[]).0.unwrap();
    assert_eq!(report, json!({ "commit": head, "files": 4, "shallow": true }));
    assert_eq!(git(fixture.root(), ["rev-list", "--count", "HEAD"]), "2");
    git(fixture.root(), ["fsck", "--strict"]);
    git(fixture.root(), ["status"]);
}

#[test]
fn a_failure_has_a_code_and_leaves_the_workspace_empty() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    git(&own, ["update-ref", "refs/atoll/base", "HEAD"]);
    git(&own, ["update-ref", "refs/atoll/other", "HEAD"]);
    git(&own, ["bundle", "create", "-q", "../good", "refs/atoll/base"]);
    git(&own, ["bundle", "create", "-q", "../other", "refs/atoll/base", "refs/atoll/other"]);
    let good = fs::read(fixture.path("good")).unwrap();
    let other = fs::read(fixture.path("other")).unwrap();
    let zeros = vec![0; 1 << 20];
    let absent = "0123456789abcdef0123456789abcdef01234567";
    for (bundle, more, expected) in [
        (&good[..0], &[] as &[&str], "bad_bundle"),
        (b"nonsense", &[], "bad_bundle"),
        (&zeros, &[], "bad_bundle"),
        (&good[..40], &[], "bad_bundle"),
        (&good[..good.len() - 1], &[], "bad_bundle"),
        (&other, &[], "bad_bundle"),
        (&good, &["--base", absent], "base_mismatch"),
    ] {
        assert_eq!(code(fixture.fill_with(bundle, more).0), expected);
        assert_eq!(fs::read_dir(fixture.root()).unwrap().count(), 0, "{expected}");
    }
    for branch in ["-x", "a..b", "HEAD", "a b", ""] {
        let arguments = ["git-in", "--branch", branch, "--name", "n", "--email", "e"];
        assert_eq!(code(fixture.run_job(&arguments, &good).0), "bad_branch", "{branch:?}");
    }
    let nameless = ["git-in", "--branch", "x", "--name", " ", "--email", "e"];
    assert_eq!(code(fixture.run_job(&nameless, &good).0), "arguments");
    // A later attempt succeeds.
    fixture.fill_with(&good, &[]).0.unwrap();
    assert_eq!(code(fixture.fill_with(&good, &[]).0), "not_empty");
    assert_eq!(git(fixture.root(), ["status", "--porcelain"]), "");
}

#[test]
fn git_status_rereads_no_files_after_filling() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    for number in 0..3000 {
        write(&own, &format!("many/{number}"), number.to_string());
    }
    commit(&own, "many");
    fixture.fill(&own, &[]).0.unwrap();
    let newest = fs::read_dir(fixture.root().join("many")).unwrap();
    let newest = newest.map(|entry| entry.unwrap().metadata().unwrap().modified().unwrap()).max().unwrap();
    let index = fixture.root().join(".git/index").metadata().unwrap().modified().unwrap();
    let second = |time: std::time::SystemTime| time.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(second(index) > second(newest));
    let began = Instant::now();
    assert_eq!(git(fixture.root(), ["status", "--porcelain"]), "");
    assert!(began.elapsed().as_secs() < 10);
}

/// The agent removed or broke `.git`: `git-in --restore` creates it again around the files.
#[test]
fn restores_a_removed_repository() {
    for damage in [Damage::Removed, Damage::Broken, Damage::LinkedElsewhere] {
        let fixture = GitFixture::new();
        let own = fixture.repository(&[]);
        // Tracked although it is ignored.
        write(&own, "ignored", "x\n");
        git(&own, ["add", "-f", "ignored"]);
        let base = commit(&own, "second");
        fixture.fill(&own, &["--base", &base]).0.unwrap();
        let root = fixture.root().to_owned();
        write(&root, "README.md", "changed\n");
        write(&root, "new", "x\n");
        fs::remove_file(root.join("src/code.rs")).unwrap();
        let expected = match damage {
            Damage::Removed => {
                fs::remove_dir_all(root.join(".git")).unwrap();
                "no_repository"
            }
            Damage::Broken => {
                write(&root, ".git/HEAD", "nonsense\n");
                "broken_repository"
            }
            Damage::LinkedElsewhere => {
                fs::remove_dir_all(root.join(".git")).unwrap();
                write(&root, ".git", "gitdir: /nowhere/at/all\n");
                "broken_repository"
            }
        };
        assert_eq!(code(fixture.export(&base).0), expected);
        let bundle = fs::read(fixture.path("source.bundle")).unwrap();
        // A failure leaves the files as they are.
        assert_eq!(code(fixture.fill_with(b"nonsense", &["--restore"]).0), "bad_bundle");
        assert_eq!(code(fixture.export(&base).0), expected);
        fixture.fill_with(&bundle, &["--restore", "--base", &base]).0.unwrap();
        let report = fixture.export_and_fetch(&base);
        assert_eq!((&report["commits"], report.get("warnings")), (&json!(1), None));
        assert_eq!(git(&own, ["rev-parse", "result~1"]), base);
        let changed = git(&own, ["diff", "--name-status", &base, "result"]);
        assert_eq!(changed, "M\tREADME.md\nA\tnew\nD\tsrc/code.rs", "{damage:?}");
        assert_eq!(git(&root, ["status", "--porcelain"]), "");
    }
}

#[derive(Debug, Clone, Copy)]
enum Damage {
    Removed,
    Broken,
    LinkedElsewhere,
}

#[test]
fn restores_no_usable_repository() {
    let (fixture, base) = GitFixture::with_repository();
    write(fixture.root(), "new", "x");
    let bundle = fs::read(fixture.path("source.bundle")).unwrap();
    assert_eq!(code(fixture.fill_with(&bundle, &["--restore", "--base", &base]).0), "not_empty");
    assert_eq!(git(fixture.root(), ["status", "--porcelain"]), "?? new");
}
