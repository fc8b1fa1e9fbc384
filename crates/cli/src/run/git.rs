//! The branch's changes, as the user's own git shows them.

use super::story::Branch;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::Command;

/// Far more than is shown.
const MOST: u64 = 64 << 10;
const DEADLINE: Duration = Duration::from_secs(10);

/// Nothing where git can't say it: the branch is named anyway.
pub async fn patch(repo: &Path, branch: &Branch) -> Option<String> {
    let base = branch.base.as_ref()?;
    let mut git = Command::new("git");
    git.arg("-C").arg(repo).args(["diff", "--no-color", "--no-ext-diff", "--no-textconv", "--end-of-options"]);
    git.arg(format!("{base}..{}", branch.name)).arg("--");
    git.env("GIT_OPTIONAL_LOCKS", "0").env("GIT_TERMINAL_PROMPT", "0");
    git.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).kill_on_drop(true);
    let asked = async {
        let mut child = git.spawn().ok()?;
        let mut patch = Vec::new();
        child.stdout.take()?.take(MOST).read_to_end(&mut patch).await.ok()?;
        (patch.len() < usize::try_from(MOST).ok()?).then_some(())?;
        child.wait().await.ok()?.success().then(|| String::from_utf8_lossy(&patch).into_owned())
    };
    tokio::time::timeout(DEADLINE, asked).await.ok().flatten()
}
