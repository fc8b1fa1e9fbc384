//! The jobs on real repositories, with plain git in the roles of the user and the agent.

mod cache_tests;
mod checkout_tests;
mod diff_tests;
mod input_tests;
mod out_tests;
mod part_tests;

use super::{Error, GitWorkspace, run_job};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// The user's repository and a workspace with a copy of it.
struct GitFixture {
    directory: TempDir,
    workspace: GitWorkspace,
}

impl GitFixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let workspace = GitWorkspace {
            root: directory.path().join("workspace"),
            home: directory.path().join("home"),
            temporary: directory.path().join("tmp"),
            ..GitWorkspace::default()
        };
        fs::create_dir(&workspace.root).unwrap();
        fs::create_dir(&workspace.home).unwrap();
        fs::create_dir(&workspace.temporary).unwrap();
        Self { directory, workspace }
    }

    /// Creates a workspace with a small repository; returns it with its first commit.
    fn with_repository() -> (Self, String) {
        let fixture = Self::new();
        let own = fixture.repository(&[]);
        let base = git(&own, ["rev-parse", "HEAD"]);
        fixture.fill(&own, &[]).0.unwrap();
        (fixture, base)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn root(&self) -> &Path {
        &self.workspace.root
    }

    fn repository(&self, options: &[&str]) -> PathBuf {
        let own = self.path("own");
        fs::create_dir(&own).unwrap();
        git(&own, [&["init", "-q", "-b", "main"], options].concat());
        write(&own, "README.md", "one\ntwo\nthree\n");
        write(&own, "src/code.rs", "fn main() {}\n");
        write(&own, ".gitignore", "ignored\n");
        commit(&own, "first");
        own
    }

    /// Fills the workspace with a bundle of HEAD, created with plain git.
    fn fill(&self, own: &Path, more: &[&str]) -> (Result<Value, Error>, Vec<u8>) {
        git(own, ["update-ref", "refs/atoll/base", "HEAD"]);
        let bundle = self.path("source.bundle");
        git(own, ["bundle", "create", "-q", bundle.to_str().unwrap(), "refs/atoll/base"]);
        self.fill_with(&fs::read(bundle).unwrap(), more)
    }

    fn fill_with(&self, bundle: &[u8], more: &[&str]) -> (Result<Value, Error>, Vec<u8>) {
        let arguments = ["git-in", "--branch", "atoll/task", "--name", "Ann Lee", "--email", "ann@example.org"];
        self.run_job(&[&arguments, more].concat(), bundle)
    }

    fn export(&self, base: &str) -> (Result<Value, Error>, Vec<u8>) {
        let arguments = ["git-out", "--base", base, "--message", "Remaining work", "--name", "Ann", "--email", "a@b"];
        self.run_job(&arguments, b"")
    }

    /// Exports the work and fetches it into the user's repository as branch `result`.
    fn export_and_fetch(&self, base: &str) -> Value {
        let (report, bundle) = self.export(base);
        let report = report.unwrap();
        let file = self.path("result.bundle");
        fs::write(&file, bundle).unwrap();
        let own = self.path("own");
        git(&own, ["bundle", "verify", "-q", file.to_str().unwrap()]);
        git(
            &own,
            [
                "fetch",
                "-q",
                "--no-recurse-submodules",
                "--force",
                file.to_str().unwrap(),
                "refs/atoll/result:refs/heads/result",
            ],
        );
        git(&own, ["fsck", "--strict"]);
        assert_eq!(report["commit"], git(&own, ["rev-parse", "result"]));
        report
    }

    fn diff(&self, base: &str, more: &[&str]) -> (Result<Value, Error>, String) {
        let (report, output) = self.run_job(&[&["git-diff", "--base", base], more].concat(), b"");
        (report, String::from_utf8_lossy(&output).into_owned())
    }

    fn run_job(&self, arguments: &[&str], input: &[u8]) -> (Result<Value, Error>, Vec<u8>) {
        let mut from = tempfile::tempfile().unwrap();
        from.write_all(input).unwrap();
        from.rewind().unwrap();
        let mut to: File = tempfile::tempfile().unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let report = run_job(arguments, &self.workspace, from, to.try_clone().unwrap());
        to.rewind().unwrap();
        let mut output = Vec::new();
        to.read_to_end(&mut output).unwrap();
        assert_eq!(fs::read_dir(&self.workspace.temporary).unwrap().count(), 0, "the job left temporary files");
        (report, output)
    }
}

fn try_git<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> Output {
    let mut command = Command::new("git");
    command.current_dir(directory).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("HOME", "/nonexistent")]);
    command.args(["-c", "user.name=Agent", "-c", "user.email=agent@example.org", "-c", "protocol.file.allow=always"]);
    command.args(arguments).output().unwrap()
}

fn git<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> String {
    let output = try_git(directory, arguments);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

fn write(directory: &Path, name: &str, text: impl AsRef<[u8]>) {
    let path = directory.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn commit(directory: &Path, message: &str) -> String {
    git(directory, ["add", "-A"]);
    git(directory, ["commit", "-q", "--allow-empty", "-m", message]);
    git(directory, ["rev-parse", "HEAD"])
}

fn code(report: Result<Value, Error>) -> &'static str {
    report.unwrap_err().code()
}

#[test]
fn rejects_invalid_jobs() {
    let fixture = GitFixture::new();
    for arguments in
        [&[] as &[&str], &["git-push"], &["git-in"], &["git-out", "--base"], &["git-diff", "--base", "x", "y"]]
    {
        assert_eq!(code(fixture.run_job(arguments, b"").0), "arguments", "{arguments:?}");
    }
    let missing = super::command::Git::find_in(&fixture.workspace, "/nowhere".into());
    assert!(missing.unwrap_err().to_string().contains("apt install git"));
}
