//! Tests of set-up layers: `git-in --over-layer`, `git-exclude`, `cache-seal` and `cache-downloads`.

use super::{GitFixture, code, commit, git, write};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;

const OVER_LAYER: &[&str] = &["--over-layer"];

fn read(root: &Path, name: &str) -> String {
    fs::read_to_string(root.join(name)).unwrap()
}

#[test]
fn a_new_checkout_replaces_that_of_the_layer_and_keeps_what_set_up_left() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    write(&own, "gone/deep/file", "old\n");
    write(&own, "mixed/tracked", "old\n");
    write(&own, "lock", "old\n");
    commit(&own, "second");
    fixture.fill(&own, &[]).0.unwrap();
    let root = fixture.root().to_owned();
    // What set-up left: ignored files, untracked ones, and changed ones.
    write(&root, "ignored", "set-up\n");
    write(&root, "mixed/left", "set-up\n");
    write(&root, ".venv/bin/python", "set-up\n");
    write(&root, "lock", "changed by set-up\n");
    write(&root, "both", "set-up\n");
    fs::remove_file(root.join("src/code.rs")).unwrap();

    git(&own, ["rm", "-q", "-r", "gone", "mixed/tracked"]);
    write(&own, "both", "commit\n");
    write(&own, "new/file", "commit\n");
    let base = commit(&own, "third");
    let (report, _) = fixture.fill(&own, &["--over-layer", "--base", &base]);
    assert_eq!(report.unwrap(), json!({ "commit": base, "files": 6, "shallow": false }));
    assert_eq!(git(&root, ["rev-parse", "HEAD"]), base);
    assert_eq!(git(&root, ["status", "--porcelain", "-uall"]), "");
    assert!(!root.join("gone").exists() && !root.join("mixed/tracked").exists());
    for (name, text) in [
        ("ignored", "set-up\n"),
        ("mixed/left", "set-up\n"),
        (".venv/bin/python", "set-up\n"),
        ("lock", "old\n"),
        ("both", "commit\n"),
        ("new/file", "commit\n"),
        ("src/code.rs", "fn main() {}\n"),
    ] {
        assert_eq!(read(&root, name), text, "{name}");
    }
    // None of it is in the result; the agent's own work is.
    write(&root, ".venv/bin/python", "changed\n");
    write(&root, "work", "new\n");
    fixture.export_and_fetch(&base);
    assert_eq!(git(&own, ["diff", "--name-status", &base, "result"]), "A\twork");
}

#[test]
fn a_hostile_layer_changes_nothing_outside_and_runs_nothing() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    write(&own, "dir/file", "text\n");
    write(&own, "link/file", "text\n");
    commit(&own, "second");
    fixture.fill(&own, &[]).0.unwrap();
    let (root, outside) = (fixture.root().to_owned(), fixture.path("outside"));
    write(&outside, "file", "outside\n");
    let ran = fixture.path("ran");
    // Configuration and hooks that would run a program.
    let script = fixture.path("program");
    fs::write(&script, format!("#!/bin/sh\ntouch {}\ncat\n", ran.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let program = script.to_str().unwrap();
    for (key, value) in [
        ("core.fsmonitor", program),
        ("filter.x.clean", program),
        ("filter.x.smudge", program),
        ("core.worktree", outside.to_str().unwrap()),
    ] {
        git(&root, ["config", key, value]);
    }
    write(&root, ".git/info/attributes", "* filter=x\n");
    fs::copy(&script, root.join(".git/hooks/post-checkout")).unwrap();
    // A tracked directory is now a link to the outside, a tracked file a directory, and a new file's parent a link.
    fs::remove_dir_all(root.join("link")).unwrap();
    symlink(&outside, root.join("link")).unwrap();
    symlink(&outside, root.join("new")).unwrap();
    fs::remove_file(root.join("dir/file")).unwrap();
    write(&root, "dir/file/inner", "set-up\n");
    write(&own, "new/file", "commit\n");
    let base = commit(&own, "third");
    fixture.fill(&own, OVER_LAYER).0.unwrap();
    assert_eq!(git(&root, ["rev-parse", "HEAD"]), base);
    assert_eq!(git(&root, ["status", "--porcelain", "-uall"]), "");
    for (name, text) in [("link/file", "text\n"), ("new/file", "commit\n"), ("dir/file", "text\n")] {
        assert_eq!(read(&root, name), text, "{name}");
    }
    assert!(!root.join("link").is_symlink() && !root.join("new").is_symlink());
    assert_eq!(read(&outside, "file"), "outside\n");
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 1);
    assert!(!ran.exists(), "no program of the layer ran");
    let settings = git(&root, ["config", "--local", "--list", "--name-only"]);
    assert!(!settings.contains("fsmonitor") && !settings.contains("filter"), "{settings}");
}

#[test]
fn a_layer_without_a_usable_index_is_refused() {
    let (fixture, _) = GitFixture::with_repository();
    let bundle = fs::read(fixture.path("source.bundle")).unwrap();
    let over = |fixture: &GitFixture| fixture.fill_with(&bundle, OVER_LAYER).0;
    fs::write(fixture.root().join(".git/index"), "nonsense").unwrap();
    assert_eq!(code(over(&fixture)), "git_failed");
    fs::remove_dir_all(fixture.root().join(".git")).unwrap();
    assert_eq!(code(over(&fixture)), "no_repository");
    symlink(fixture.path("own/.git"), fixture.root().join(".git")).unwrap();
    assert_eq!(code(over(&fixture)), "no_repository");
    assert!(fixture.path("own/.git/HEAD").exists());

    let fixture = GitFixture::new();
    let own = fixture.repository(&["--object-format=sha256"]);
    fixture.fill(&own, &[]).0.unwrap();
    assert_eq!(code(over(&fixture)), "broken_repository", "another object format");
}

#[test]
fn replaces_a_checkout_of_sha256() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&["--object-format=sha256"]);
    fixture.fill(&own, &[]).0.unwrap();
    git(&own, ["rm", "-q", "README.md"]);
    commit(&own, "second");
    fixture.fill(&own, OVER_LAYER).0.unwrap();
    assert!(!fixture.root().join("README.md").exists());
    assert_eq!(git(fixture.root(), ["status", "--porcelain"]), "");
}

#[test]
fn excludes_what_set_up_left_untracked() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    let names = [".venv/lib/x", "src/generated.rs", "with space ", "a*b", "quote\\", "two\nlines", "!x", "#y"];
    for name in names {
        write(&root, name, "set-up\n");
    }
    write(&root, "ignored", "set-up\n");
    write(&root, ".git/info/exclude", "own");
    let (report, _) = fixture.run_job(&["git-exclude"], b"");
    assert_eq!(report.unwrap(), json!({ "excluded": names.len(), "left": 0 }));
    assert_eq!(git(&root, ["status", "--porcelain", "-uall"]), "");
    assert!(read(&root, ".git/info/exclude").starts_with("own\n/"));
    // Only these paths are excluded.
    write(&root, "aXb", "work\n");
    write(&root, "src/more.rs", "work\n");
    assert_eq!(git(&root, ["status", "--porcelain", "-uall"]), "?? aXb\n?? src/more.rs");
    assert_eq!(fixture.run_job(&["git-exclude"], b"").0.unwrap(), json!({ "excluded": 2, "left": 0 }));
    assert_eq!(fixture.run_job(&["git-exclude"], b"").0.unwrap(), json!({ "excluded": 0, "left": 0 }));
    assert_eq!(fixture.export(&base).0.unwrap(), json!({ "nothing": true }));
}

#[test]
fn removes_what_a_layer_must_not_share() {
    let (fixture, base) = GitFixture::with_repository();
    let (root, home) = (fixture.root().to_owned(), fixture.workspace.home.clone());
    let transient = [
        "data/postmaster.pid",
        "repo/x/artifact.lastUpdated",
        "app/node_modules/.vite/deps/a.js",
        "app/node_modules/.cache/babel/b",
    ];
    let shared = ["data/PG_VERSION", "app/node_modules/a/index.js", "app/.vite/kept", "fixture.pid", ".cache/kept"];
    for name in transient {
        write(&home, name, "42\n/data\n");
    }
    for name in shared {
        write(&home, name, "text\n");
    }
    let _socket = UnixListener::bind(root.join("socket")).unwrap();
    symlink(home.join("data/PG_VERSION"), home.join("link.pid")).unwrap();
    write(&root, "tracked.pid", "7\n");
    git(&root, ["add", "tracked.pid"]);
    assert_eq!(fixture.run_job(&["cache-seal"], b"").0.unwrap(), json!({ "removed": 5 }));
    assert!(transient.iter().all(|name| !home.join(name).exists()) && !root.join("socket").exists());
    assert!(shared.iter().all(|name| home.join(name).exists()) && home.join("link.pid").is_symlink());
    assert!(root.join("tracked.pid").exists());
    assert!(fixture.export(&base).0.is_ok(), "the repository is intact");
}

#[test]
fn keeps_only_downloads() {
    let (fixture, _) = GitFixture::with_repository();
    let (root, home) = (fixture.root().to_owned(), fixture.workspace.home.clone());
    for name in [".cache/packages/npm/a", ".cache/pip/b", ".profile", "go/mod/x@1/f"] {
        write(&home, name, "text\n");
    }
    let closed = home.join("go/mod/x@1");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    symlink(fixture.path("own"), home.join("link")).unwrap();
    fixture.run_job(&["cache-downloads"], b"").0.unwrap();
    assert_eq!(fs::read_dir(&root).unwrap().count(), 0);
    let left = |directory: &Path| -> Vec<_> {
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    assert_eq!((left(&home), left(&home.join(".cache"))), (vec![".cache".to_owned()], vec!["packages".to_owned()]));
    assert_eq!(read(&home, ".cache/packages/npm/a"), "text\n");
    assert!(fixture.path("own/README.md").exists(), "links are not followed");
    // A link in the place of the downloads is not kept.
    fs::remove_dir_all(home.join(".cache")).unwrap();
    symlink(fixture.path("own"), home.join(".cache")).unwrap();
    fixture.run_job(&["cache-downloads"], b"").0.unwrap();
    assert_eq!(left(&home), Vec::<String>::new());
    assert!(fixture.path("own/README.md").exists());
}
