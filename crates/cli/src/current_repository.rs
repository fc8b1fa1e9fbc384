//! The repository of the current directory: the default of `--repo` where the server runs on this machine.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The top directory of the repository around the current directory; `None` without one, or if it has no commit.
pub fn find_current_repository() -> Option<PathBuf> {
    find_repository(&std::env::current_dir().ok()?)
}

fn find_repository(directory: &Path) -> Option<PathBuf> {
    let top = run_git(directory, &["rev-parse", "--show-toplevel"])?;
    run_git(directory, &["rev-parse", "--verify", "--quiet", "HEAD^{commit}"])?;
    Some(PathBuf::from(OsStr::from_bytes(&top)))
}

/// The output of git without its line end; `None` if git fails.
fn run_git(directory: &Path, arguments: &[&str]) -> Option<Vec<u8>> {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory).args(arguments).env("GIT_OPTIONAL_LOCKS", "0").env("GIT_TERMINAL_PROMPT", "0");
    let output = git.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    let text = output.stdout.strip_suffix(b"\n").map(<[u8]>::to_vec)?;
    (output.status.success() && !text.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_top_of_a_repository_with_a_commit() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().canonicalize().unwrap();
        let inside = top.join("a/b");
        std::fs::create_dir_all(&inside).unwrap();
        assert_eq!(find_repository(&inside), None, "no repository");
        let git = |arguments: &[&str]| {
            let identity = ["-c", "user.name=T", "-c", "user.email=t@example.org"];
            let done = Command::new("git").arg("-C").arg(&top).args(identity).args(arguments).output().unwrap();
            assert!(done.status.success(), "{done:?}");
        };
        git(&["init", "-q"]);
        assert_eq!(find_repository(&inside), None, "no commit");
        git(&["commit", "-q", "--allow-empty", "-m", "first"]);
        assert_eq!(find_repository(&inside), Some(top));
    }
}
