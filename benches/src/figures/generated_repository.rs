//! Large repositories, written with `git fast-import`.

use anyhow::{Context, Result, ensure};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy)]
pub struct RepositorySize {
    pub files: usize,
    /// Mean size of a file.
    pub file_bytes: usize,
    pub commits: usize,
}

/// Creates a repository with one file changed by each commit after the first, and checks it out.
pub fn create_repository(dir: &Path, size: RepositorySize) -> Result<()> {
    std::fs::create_dir(dir)?;
    run_git(dir, &["init", "--quiet", "--initial-branch", "main"])?;
    let mut import = git_command(dir);
    import.args(["-c", "core.compression=1", "-c", "pack.compression=1", "fast-import", "--quiet"]);
    let mut import = import.stdin(Stdio::piped()).spawn().context("cannot run git")?;
    let stream = import.stdin.take().context("git has no stdin")?;
    write_stream(BufWriter::with_capacity(1 << 20, stream), size)?;
    ensure!(import.wait()?.success(), "`git fast-import` failed");
    run_git(dir, &["reset", "--quiet", "--hard", "main"])?;
    Ok(())
}

fn write_stream(mut to: impl Write, size: RepositorySize) -> Result<()> {
    for commit in 0..size.commits {
        let time = 1_700_000_000 + commit;
        write!(to, "commit refs/heads/main\ncommitter Bench <bench@example.org> {time} +0000\ndata 4\nwork\n")?;
        let changed = if commit == 0 { 0..size.files } else { file_of(commit, size)..file_of(commit, size) + 1 };
        for number in changed {
            let text = file_text(number, commit, size.file_bytes);
            write!(to, "M 100644 inline {}\ndata {}\n{text}\n", file_path(number), text.len())?;
        }
    }
    Ok(to.flush()?)
}

const fn file_of(commit: usize, size: RepositorySize) -> usize {
    commit * 7919 % size.files
}

/// The path of a file: a hundred files in each directory.
pub fn file_path(number: usize) -> String {
    format!("src/{}/{}/file-{number}.txt", number / 5000, number / 100 % 50)
}

/// Text that compresses like source code.
fn file_text(number: usize, version: usize, mean_bytes: usize) -> String {
    let bytes = mean_bytes / 2 + number * 7919 % mean_bytes;
    let mut text = String::with_capacity(bytes + 80);
    let mut word = (number * 31 + version) as u64;
    while text.len() < bytes {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("    let value_{:x} = compute(input, {});\n", word >> 44, word >> 52));
    }
    text
}

pub fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command.arg("-C").arg(dir).env("GIT_CONFIG_NOSYSTEM", "1").env("GIT_CONFIG_GLOBAL", "/dev/null");
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Runs git and returns how long it took.
pub fn run_git(dir: &Path, arguments: &[&str]) -> Result<Duration> {
    let began = Instant::now();
    let status = git_command(dir).args(arguments).status().context("cannot run git")?;
    ensure!(status.success(), "git {arguments:?} failed");
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_repository_has_the_asked_size() {
        let dir = tempfile::tempdir().unwrap();
        let repository = dir.path().join("repository");
        create_repository(&repository, RepositorySize { files: 210, file_bytes: 300, commits: 12 }).unwrap();
        let output = git_command(&repository).args(["rev-list", "--count", "main"]).stdout(Stdio::piped()).output();
        assert_eq!(output.unwrap().stdout, b"12\n");
        assert!(repository.join(file_path(209)).is_file());
    }
}
