//! Tests of reading the files that decide what set-up runs.

use crate::fixture::{TestRepositories, commit_all, git, write_awkward_files, write_file};
use atoll_core::setup::{RepositoryFiles, plan_setup};
use atoll_forge::{Error, HostRepository};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

fn read_head(path: &Path) -> RepositoryFiles {
    let repository = HostRepository::open(path).unwrap();
    repository.read_setup_files(&repository.head().unwrap().commit).unwrap()
}

#[test]
fn reads_only_setup_files_of_the_commit() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    assert_eq!(read_head(&path).paths().count(), 0);
    write_awkward_files(&path);
    write_file(&path, "package.json", "{}\n");
    write_file(&path, "package-lock.json", "");
    write_file(&path, "web app/$(id)/package.json", "{\"a\": 1}\nblob 3\n");
    write_file(&path, "node_modules/x/package.json", "{}");
    write_file(&path, "Cargo.toml", "# \u{e9}\n");
    symlink("/etc/passwd", path.join("Cargo.lock")).unwrap();
    commit_all(&path, "add manifests");
    write_file(&path, "package.json", "uncommitted");
    write_file(&path, "go.mod", "uncommitted");

    let files = read_head(&path);
    let paths: Vec<_> = files.paths().collect();
    assert_eq!(paths, ["Cargo.toml", "package-lock.json", "package.json", "web app/$(id)/package.json"]);
    assert_eq!((files.text("package.json"), files.text("package-lock.json")), (Some("{}\n"), Some("")));
    assert_eq!(files.text("web app/$(id)/package.json"), Some("{\"a\": 1}\nblob 3\n"));
    let plan = plan_setup(None, None, &files).unwrap().unwrap();
    assert_eq!(plan.steps[0].command.to_string(), "npm ci");
}

#[test]
fn a_large_file_has_no_content() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository_with("own", &["--object-format=sha256"]);
    write_file(&path, "package-lock.json", " ".repeat(17 << 20));
    write_file(&path, "package.json", "{}");
    commit_all(&path, "add a large file");
    let files = read_head(&path);
    assert!(files.contains("package-lock.json") && files.content("package-lock.json").is_none());
    assert_eq!(files.text("package.json"), Some("{}"));
}

#[test]
fn refuses_what_is_no_commit_and_names_missing_objects() {
    let repositories = TestRepositories::new();
    let path = repositories.create_repository("own");
    write_file(&path, "go.mod", "module x\n");
    let commit = commit_all(&path, "add a module");
    let repository = HostRepository::open(&path).unwrap();
    for bad in ["HEAD", "--help", "", "0123"] {
        assert!(matches!(repository.read_setup_files(bad), Err(Error::BaseRefused { .. })), "{bad}");
    }
    let object = git(&path, ["rev-parse", "HEAD:go.mod"]);
    fs::remove_file(path.join(".git/objects").join(&object[..2]).join(&object[2..])).unwrap();
    let error = repository.read_setup_files(&commit).unwrap_err();
    assert!(matches!(&error, Error::ObjectsMissing { detail, .. } if detail.contains("go.mod")), "{error}");
}
