//! Tests of `git-out`.

use super::{GitFixture, code, commit, git, try_git, write};
use atoll_test_wait::wait_until;
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

fn files(fixture: &GitFixture, revision: &str) -> Vec<String> {
    let listed =
        git(&fixture.path("own"), ["-c", "core.quotePath=false", "ls-tree", "-r", "--name-only", "-z", revision]);
    listed.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

fn show(fixture: &GitFixture, name: &str) -> String {
    git(&fixture.path("own"), ["show", &format!("result:{name}")])
}

#[test]
fn exports_uncommitted_work_together_with_the_agents_commits() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    write(&root, "agent", "x");
    let agents = commit(&root, "by the agent");
    write(&root, "README.md", "changed\n");
    write(&root, "new file\n", "x");
    write(&root, "-dash", "x");
    write(&root, "ignored", "x");
    symlink("/nowhere", root.join("link")).unwrap();
    write(&root, "run", "x");
    fs::set_permissions(root.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::remove_file(root.join("src/code.rs")).unwrap();
    write(&root, "staged", "x");
    git(&root, ["add", "staged"]);
    write(&root, "meant", "x");
    git(&root, ["add", "-N", "meant"]);

    let report = fixture.export_and_fetch(&base);
    assert_eq!((&report["commits"], &report["committed"], report.get("warnings")), (&json!(2), &json!(true), None));
    let expected = ["-dash", ".gitignore", "README.md", "agent", "link", "meant", "new file\n", "run", "staged"];
    assert_eq!(files(&fixture, "result"), expected);
    let own = fixture.path("own");
    assert_eq!(git(&own, ["log", "-1", "--format=%an <%ae>|%cn|%B", "result"]), "Ann <a@b>|Ann|Remaining work");
    assert_eq!(git(&own, ["rev-parse", "result~1"]), agents);
    assert!(git(&own, ["ls-tree", "result", "run"]).starts_with("100755"));
    assert!(git(&own, ["ls-tree", "result", "link"]).starts_with("120000"));
    // The agent's branch has moved, and its work tree is clean.
    assert_eq!(git(&root, ["status", "--porcelain"]), "");
    assert_eq!(git(&root, ["symbolic-ref", "HEAD"]), "refs/heads/atoll/task");
    git(&root, ["fsck", "--strict"]);

    // Without changes, a second export yields the same commit.
    let again = fixture.export_and_fetch(&base);
    assert_eq!((&again["commit"], &again["committed"]), (&report["commit"], &json!(false)));
}

#[test]
fn reports_that_nothing_is_new_and_writes_nothing() {
    let (fixture, base) = GitFixture::with_repository();
    write(fixture.root(), "ignored", "x");
    let (report, output) = fixture.export(&base);
    assert_eq!((report.unwrap(), output), (json!({ "nothing": true }), vec![]));
    // Touched but unchanged.
    write(fixture.root(), "README.md", "one\ntwo\nthree\n");
    assert_eq!(fixture.export(&base).0.unwrap(), json!({ "nothing": true }));
}

#[test]
fn exports_a_detached_or_unborn_head() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    git(&root, ["checkout", "-q", "--detach"]);
    write(&root, "detached", "x");
    assert_eq!(fixture.export_and_fetch(&base)["commits"], 1);
    git(&root, ["checkout", "-q", "-b", "other/branch"]);
    write(&root, "other", "x");
    assert_eq!(fixture.export_and_fetch(&base)["commits"], 2);

    // HEAD is at the base; the work is on a branch that is not checked out.
    git(&root, ["checkout", "-q", "atoll/task"]);
    let report = fixture.export(&base).0.unwrap();
    assert_eq!(report["nothing"], true);
    assert!(report["warnings"][0].as_str().unwrap().contains("other/branch"), "{report}");

    // A branch without a commit: the result builds on the base.
    git(&root, ["checkout", "-q", "--orphan", "fresh"]);
    write(&root, "orphan", "x");
    assert_eq!(fixture.export_and_fetch(&base)["commits"], 1);
    assert_eq!(git(&fixture.path("own"), ["rev-parse", "result~1"]), base);
}

#[test]
fn exports_a_recreated_repository() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    fs::remove_dir_all(root.join(".git")).unwrap();
    assert_eq!(code(fixture.export(&base).0), "no_repository");
    git(&root, ["init", "-q"]);
    write(&root, "new", "x");
    let report = fixture.export_and_fetch(&base);
    assert_eq!(report["commits"], 1);
    assert_eq!(files(&fixture, "result"), [".gitignore", "README.md", "new", "src/code.rs"]);
}

#[test]
fn exports_a_damaged_repository_as_far_as_possible() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    write(&root, "new", "x");
    write(&root, ".git/index", "nonsense");
    write(&root, ".git/index.lock", "");
    write(&root, ".git/HEAD.lock", "");
    let report = fixture.export_and_fetch(&base);
    assert_eq!((report["commits"].as_u64(), report.get("warnings")), (Some(1), None));
    assert_eq!(files(&fixture, "result"), [".gitignore", "README.md", "new", "src/code.rs"]);
    assert_eq!(git(&root, ["status", "--porcelain"]), "");

    fs::remove_file(root.join(".git/index")).unwrap();
    let status = std::process::Command::new("mkfifo").arg(root.join(".git/index")).status().unwrap();
    assert!(status.success());
    write(&root, "newer", "x");
    assert_eq!(fixture.export_and_fetch(&base)["commits"], 2);

    write(&root, ".git/HEAD", "nonsense\n");
    assert_eq!(code(fixture.export(&base).0), "broken_repository");
    write(&root, ".git/HEAD", "ref: refs/heads/atoll/task\n");
    write(&root, ".git/config", "[nonsense\n");
    assert_eq!(code(fixture.export(&base).0), "broken_repository");
}

/// Git trusts an index entry whose file is older than the index. Times count in whole seconds here.
#[test]
fn exports_an_edit_in_the_second_of_the_commit() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    let seconds = |name: &str| root.join(name).metadata().unwrap().mtime();
    loop {
        write(&root, "file", "one\n");
        commit(&root, "by the agent");
        let committed = seconds("file");
        write(&root, "file", "two\n");
        if committed == seconds("file") && committed == seconds(".git/index") {
            break;
        }
    }
    // A copy of the index from here on is newer than the file.
    let edited = seconds("file");
    wait_until("the next second", || {
        write(&fixture.path("."), "clock", "");
        fixture.path("clock").metadata().unwrap().mtime() > edited
    });
    assert!(fixture.diff(&base, &["--patch"]).1.contains("+two"), "the diff lacks the last edit");
    fixture.export_and_fetch(&base);
    assert_eq!(show(&fixture, "file"), "two");
    assert_eq!(git(&root, ["status", "--porcelain"]), "");
}

#[test]
fn exports_changes_of_files_that_the_index_hides() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    for name in ["gone", "absent"] {
        write(&root, name, "x");
    }
    commit(&root, "by the agent");
    git(&root, ["update-index", "--assume-unchanged", "README.md", "gone"]);
    git(&root, ["update-index", "--skip-worktree", "src/code.rs", "absent"]);
    git(&root, ["config", "core.ignoreStat", "true"]);
    write(&root, "README.md", "changed\n");
    write(&root, "src/code.rs", "changed\n");
    fs::remove_file(root.join("gone")).unwrap();
    // A file outside of a sparse checkout is not deleted.
    write(&root, ".git/info/sparse-checkout", "/*\n!absent\n");
    fs::remove_file(root.join("absent")).unwrap();
    let patch = fixture.diff(&base, &["--patch"]).1;
    assert_eq!(patch.matches("+changed").count(), 2, "{patch}");
    fixture.export_and_fetch(&base);
    assert_eq!((show(&fixture, "README.md"), show(&fixture, "src/code.rs")), ("changed".into(), "changed".into()));
    assert_eq!(files(&fixture, "result"), [".gitignore", "README.md", "absent", "src/code.rs"]);

    // Without a sparse checkout, a missing file is a deleted one.
    fs::remove_file(root.join(".git/info/sparse-checkout")).unwrap();
    git(&root, ["update-index", "--skip-worktree", "absent"]);
    fixture.export_and_fetch(&base);
    assert_eq!(files(&fixture, "result"), [".gitignore", "README.md", "src/code.rs"]);
}

#[test]
fn commits_a_merge_with_its_conflict_markers() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    git(&root, ["checkout", "-q", "-b", "side"]);
    write(&root, "README.md", "one\nside\nthree\n");
    let side = commit(&root, "side");
    git(&root, ["checkout", "-q", "atoll/task"]);
    write(&root, "README.md", "one\ntask\nthree\n");
    let task = commit(&root, "task");
    assert!(!try_git(&root, ["merge", "side"]).status.success());
    let report = fixture.export_and_fetch(&base);
    assert!(report["warnings"][0].as_str().unwrap().contains("merge"), "{report}");
    assert_eq!(git(&fixture.path("own"), ["rev-parse", "result^1", "result^2"]), format!("{task}\n{side}"));
    assert!(show(&fixture, "README.md").contains("<<<<<<<"));
    assert_eq!(git(&root, ["status", "--porcelain"]), "");
    assert!(!root.join(".git/MERGE_HEAD").exists());
}

#[test]
fn leaves_a_rebase_unchanged() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    git(&root, ["checkout", "-q", "-b", "side"]);
    write(&root, "README.md", "one\nside\nthree\n");
    let side = commit(&root, "side");
    git(&root, ["checkout", "-q", "atoll/task"]);
    write(&root, "README.md", "one\ntask\nthree\n");
    commit(&root, "task");
    assert!(!try_git(&root, ["rebase", "side"]).status.success());
    let before = git(&root, ["status", "--porcelain=v2", "--branch"]);
    let report = fixture.export_and_fetch(&base);
    assert!(report["warnings"][0].as_str().unwrap().contains("rebase"), "{report}");
    assert!(report["warnings"][1].as_str().unwrap().contains("atoll/task"), "{report}");
    assert_eq!(git(&fixture.path("own"), ["rev-parse", "result~1"]), side);
    assert!(show(&fixture, "README.md").contains("<<<<<<<"));
    assert_eq!(git(&root, ["status", "--porcelain=v2", "--branch"]), before);
}

#[test]
fn exports_files_of_nested_repositories() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    for name in ["nested", "nested/deep/er"] {
        fs::create_dir_all(root.join(name)).unwrap();
        git(&root.join(name), ["init", "-q"]);
        write(&root, &format!("{name}/file"), "x");
        write(&root, &format!("{name}/skip.log"), "x");
        write(&root, &format!("{name}/.gitignore"), "*.log\n");
    }
    write(&root, "nested/committed", "x");
    git(&root.join("nested"), ["add", "committed"]);
    git(&root.join("nested"), ["commit", "-q", "-m", "x"]);
    let report = fixture.export_and_fetch(&base);
    assert_eq!(report.get("warnings"), None);
    let all = files(&fixture, "result");
    let nested: Vec<&str> = all.iter().map(String::as_str).filter(|name| name.starts_with("nested")).collect();
    let deep = ["nested/deep/er/.gitignore", "nested/deep/er/file", "nested/file"];
    assert_eq!(nested, [&["nested/.gitignore", "nested/committed"], &deep[..]].concat());
}

#[test]
fn reports_files_in_submodules_as_unsaved() {
    let fixture = GitFixture::new();
    let own = fixture.repository(&[]);
    let inner = git(&own, ["rev-parse", "HEAD"]);
    for path in ["lib/one", "two", "three"] {
        git(&own, ["update-index", "--add", "--cacheinfo", &format!("160000,{inner},{path}")]);
    }
    git(&own, ["commit", "-q", "-m", "submodules"]);
    let base = git(&own, ["rev-parse", "HEAD"]);
    fixture.fill(&own, &[]).0.unwrap();
    let root = fixture.root().to_owned();
    assert_eq!(fixture.export(&base).0.unwrap(), json!({ "nothing": true }));
    write(&root, "lib/one/new", "x");
    assert_eq!(fixture.export(&base).0.unwrap(), json!({ "nothing": true, "unsaved": ["submodule lib/one"] }));
    git(&root.join("two"), ["init", "-q"]);
    write(&root, "two/new", "x");
    commit(&root.join("two"), "in the submodule");
    write(&root, "saved", "x");
    let report = fixture.export_and_fetch(&base);
    assert_eq!((&report["unsaved"], &report["commits"]), (&json!(["submodule lib/one", "submodule two"]), &json!(1)));
    assert!(files(&fixture, "result").contains(&"saved".to_owned()));
}

#[test]
fn omits_and_reports_files_that_git_rejects() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    write(&root, "good", "x");
    write(&root, "git~1/file", "x");
    write(&root, ".g\u{200c}it/file", "x");
    write(&root, "zood", "x");
    fs::create_dir(root.join("pipes")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(root.join("pipes/pipe")).status().unwrap().success());
    let report = fixture.export_and_fetch(&base);
    let refused = [".g\u{200c}it/file", "git~1/file"].map(|name| format!("git does not take a file named {name:?}"));
    assert_eq!(report["warnings"], json!(refused));
    assert_eq!(files(&fixture, "result"), [".gitignore", "README.md", "good", "src/code.rs", "zood"]);
}

#[test]
fn rejected_files_without_a_commit_are_unsaved() {
    let (fixture, base) = GitFixture::with_repository();
    write(fixture.root(), ".git/info/attributes", "* working-tree-encoding=UTF-16\n");
    write(fixture.root(), "new", "x");
    let report = fixture.export(&base).0.unwrap();
    assert_eq!((&report["nothing"], &report["unsaved"]), (&json!(true), &json!(["files that git does not take"])));
    assert!(report["warnings"][0].as_str().is_some(), "{report}");
}

#[test]
fn limits_the_number_of_warnings() {
    let (fixture, base) = GitFixture::with_repository();
    for number in 0..300 {
        write(fixture.root(), &format!("{number}/git~1/file"), "x");
    }
    write(fixture.root(), "good", "x");
    let report = fixture.export_and_fetch(&base);
    let warnings = report["warnings"].as_array().unwrap();
    assert_eq!(warnings.len(), 51);
    assert!(warnings[50].as_str().unwrap().contains("there may be more"), "{}", warnings[50]);
    assert_eq!(files(&fixture, "result"), [".gitignore", "README.md", "good", "src/code.rs"]);
}

#[test]
fn runs_no_hooks_filters_or_signatures_of_the_workspace() {
    let (fixture, base) = GitFixture::with_repository();
    let root = fixture.root().to_owned();
    let canary = fixture.path("canary");
    let script = fixture.path("script");
    fs::write(&script, format!("#!/bin/sh\ntouch {}\nsleep 600\n", canary.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let script = script.to_str().unwrap();
    for hook in ["pre-commit", "commit-msg", "post-commit", "reference-transaction", "post-index-change"] {
        write(&root, &format!(".git/hooks/{hook}"), format!("#!/bin/sh\nexec {script}\n"));
        fs::set_permissions(root.join(".git/hooks").join(hook), fs::Permissions::from_mode(0o755)).unwrap();
    }
    for (key, value) in [
        ("filter.evil.clean", script),
        ("filter.evil.process", script),
        ("filter.evil.required", "true"),
        ("commit.gpgSign", "true"),
        ("gpg.program", script),
        ("core.fsmonitor", script),
        ("diff.external", script),
        ("core.splitIndex", "true"),
        ("core.bare", "true"),
        ("core.worktree", "/nowhere"),
    ] {
        git(&root, ["config", "--file", ".git/config", key, value]);
    }
    write(&root, ".gitattributes", "* filter=evil\n");
    write(&root, "README.md", "changed\n");
    let began = Instant::now();
    assert_eq!(fixture.export_and_fetch(&base)["commits"], 1);
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_eq!(show(&fixture, "README.md"), "changed");
    assert!(!canary.exists());
}

#[test]
fn stops_a_job_at_its_time_limit() {
    let (mut fixture, base) = GitFixture::with_repository();
    fixture.workspace.quick = Duration::ZERO;
    assert_eq!(code(fixture.export(&base).0), "timed_out");
    assert_eq!(code(fixture.diff(&base, &[]).0), "timed_out");
}

#[test]
fn stops_a_job_at_its_size_limit() {
    let (mut fixture, base) = GitFixture::with_repository();
    fixture.workspace.output_bytes = 100 << 10;
    let noise: Vec<u8> = (0..200_000_u32).flat_map(|number| number.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    write(fixture.root(), "noise", &noise);
    let (report, output) = fixture.export(&base);
    assert_eq!(code(report), "too_much");
    assert!(output.len() < 200 << 10);
    let text: String = noise.iter().map(|byte| format!("{byte}\n")).collect();
    write(fixture.root(), "noise", text);
    assert_eq!(code(fixture.diff(&base, &["--patch"]).0), "too_much");
}

#[test]
fn validates_arguments() {
    let (fixture, base) = GitFixture::with_repository();
    write(fixture.root(), "new", "x");
    assert_eq!(code(fixture.export("HEAD").0), "arguments");
    assert_eq!(code(fixture.export("--all").0), "arguments");
    let blank = ["git-out", "--base", &base, "--message", "m", "--name", " ", "--email", "e"];
    assert_eq!(code(fixture.run_job(&blank, b"").0), "arguments");
    let dashed = ["git-out", "--base", &base, "--message", "--amend\n\n# kept", "--name", "-n", "--email", "-e"];
    let (report, _) = fixture.run_job(&dashed, b"");
    assert_eq!(report.unwrap()["commits"], 1);
    assert_eq!(git(fixture.root(), ["log", "-1", "--format=%B|%an"]), "--amend\n\n# kept\n|-n");
    write(fixture.root(), "newer", "x");
    let untitled = ["git-out", "--base", &base, "--message", " ", "--name", "n", "--email", "e"];
    assert_eq!(fixture.run_job(&untitled, b"").0.unwrap()["commits"], 2);
    assert_eq!(git(fixture.root(), ["log", "-1", "--format=%s"]), "Work of an agent");
}
