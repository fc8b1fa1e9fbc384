//! Reads the patch of the result branch with the user's git.

use super::progress::ResultBranch;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Far more than the summary shows.
const MAX_PATCH_BYTES: u64 = 64 << 10;
const GIT_TIMEOUT: Duration = Duration::from_secs(10);

/// The patch of the branch; `None` if git fails, because the summary names the branch anyway.
pub async fn read_patch(repo: &Path, branch: &ResultBranch) -> Option<String> {
    let base = branch.base.as_ref()?;
    let mut git = Command::new("git");
    git.arg("-C").arg(repo).args(["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--end-of-options"]);
    git.arg(format!("{base}..{}", branch.name)).arg("--");
    git.env("GIT_OPTIONAL_LOCKS", "0").env("GIT_TERMINAL_PROMPT", "0");
    git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let read = async {
        let mut child = git.spawn().ok()?;
        let mut patch = Vec::new();
        child.stdout.take()?.take(MAX_PATCH_BYTES).read_to_end(&mut patch).await.ok()?;
        (patch.len() < usize::try_from(MAX_PATCH_BYTES).ok()?).then_some(())?;
        child.wait().await.ok()?.success().then(|| String::from_utf8_lossy(&patch).into_owned())
    };
    tokio::time::timeout(GIT_TIMEOUT, read).await.ok().flatten()
}
