//! Login files: fetched from the server before each prompt and written to the agent's home through the spawner. The
//! worker remembers only their paths.

use crate::environment::Environment;
use crate::link::Server;
use crate::spawner::{FileToWrite, FileUpdate, Spawner};
use atoll_core::login;
use atoll_dispatcher::link::Reply;
use atoll_dispatcher::link::backoff::Backoff;
use atoll_protocol::{LoginsAnswer, LoginsRequest};
use atoll_spool::SpoolStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// After this time the prompt starts without new login files.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// Removal precedes snapshots, which must not contain logins.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(2);

/// Fetches and writes login files. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Logins {
    pub spawner: Spawner,
    pub environment: Arc<Environment>,
    pub server: Server,
    pub stream: SpoolStream,
}

/// The login files in the agent's home.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstalledLogins {
    /// The server's version of the files.
    version: Option<String>,
    /// Paths relative to the home.
    paths: Vec<String>,
}

impl InstalledLogins {
    pub fn contains(&self, path: &str) -> bool {
        self.paths.iter().any(|known| known == path)
    }
}

impl Logins {
    /// Writes the server's current files. On failure returns the reason; the earlier files stay.
    pub async fn renew(self, installed: InstalledLogins) -> (InstalledLogins, Option<String>) {
        let answer = match timeout(FETCH_TIMEOUT, self.fetch_logins(installed.version.clone())).await {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return (installed, None),
            Ok(Err(why)) => return (installed, Some(why)),
            Err(_) => {
                return (installed, Some(format!("the server did not answer within {} s", FETCH_TIMEOUT.as_secs())));
            }
        };
        let (next, placing) = self.plan_changes(&installed, answer);
        if placing == FileUpdate::default() {
            return (next, None);
        }
        match self.spawner.update_files(placing).await {
            Ok(()) => (next, None),
            Err(why) => (next, Some(why)),
        }
    }

    /// Computes the files to write and remove, and the resulting state.
    fn plan_changes(&self, installed: &InstalledLogins, answer: LoginsAnswer) -> (InstalledLogins, FileUpdate) {
        // The worker checks the paths itself, too.
        let good = answer.files.into_iter().filter(|file| login::check_login_path("path", &file.path).is_ok());
        let files: Vec<_> = good.take(login::MAX_LOGIN_FILES).collect();
        let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
        let removed =
            installed.paths.iter().filter(|path| !paths.contains(path)).map(|path| self.home_path(path)).collect();
        let written =
            |file: atoll_protocol::LoginFile| FileToWrite { path: self.home_path(&file.path), text: file.text };
        let files = files.into_iter().map(written).collect();
        (InstalledLogins { version: Some(answer.version), paths }, FileUpdate { files, removed })
    }

    /// Removes all login files, so that snapshots contain none.
    pub async fn remove_all(&self, installed: &mut InstalledLogins) {
        let removed: Vec<_> = std::mem::take(&mut installed.paths).iter().map(|path| self.home_path(path)).collect();
        if removed.is_empty() {
            return;
        }
        match timeout(REMOVE_TIMEOUT, self.spawner.update_files(FileUpdate { files: Vec::new(), removed })).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error, "failed to remove a login file"),
            Err(_) => tracing::warn!("timed out while removing login files"),
        }
    }

    /// Returns `None` if the server does not support login files.
    async fn fetch_logins(&self, known: Option<String>) -> Result<Option<LoginsAnswer>, String> {
        let request = LoginsRequest { stream: self.stream.id, boot: Some(self.stream.boot), known };
        let (mut client, mut backoff) = (self.server.client(), Backoff::default());
        loop {
            match client.post("logins", &request).await {
                Reply::Ok(body) => {
                    // The error must not contain the body: it includes the secret.
                    let answer = serde_json::from_slice(&body);
                    return answer.map(Some).map_err(|_| "failed to parse the server's response".to_owned());
                }
                Reply::Refused(problem) if problem.status == 404 => return Ok(None),
                Reply::Later { after, .. } => backoff.wait(after).await,
                Reply::KeyGap { .. } => return Err("unexpected response of the server".to_owned()),
                Reply::Fenced(problem)
                | Reply::TooLarge(problem)
                | Reply::Unauthorized(problem)
                | Reply::Refused(problem) => return Err(problem.to_string()),
            }
        }
    }

    fn home_path(&self, path: &str) -> PathBuf {
        PathBuf::from(self.environment.home()).join(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Dialer;
    use crate::spawner::{SpawnerLauncher, SpawnerSupervisor};
    use atoll_core::id::SandboxId;
    use atoll_protocol::LoginFile;
    use std::path::Path;

    fn logins() -> Logins {
        let starter = SpawnerLauncher { program: PathBuf::new(), user: None, groups: Vec::new() };
        let sandbox = SandboxId::new();
        Logins {
            spawner: SpawnerSupervisor::new(starter).1,
            environment: Arc::new(Environment::new(sandbox, "/bin", "/home/agent", "agent")),
            server: Server::new(Arc::new(Dialer::new("http://127.0.0.1:1").unwrap()), sandbox, None, Path::new("/")),
            stream: SpoolStream { boot: 1, id: uuid::Uuid::nil() },
        }
    }

    fn answer(paths: &[&str]) -> LoginsAnswer {
        let file = |path: &&str| LoginFile { path: (*path).to_owned(), text: "{}".to_owned() };
        LoginsAnswer { files: paths.iter().map(file).collect(), version: paths.concat() }
    }

    #[tokio::test]
    async fn writes_current_files_and_removes_old_ones() {
        let logins = logins();
        let (installed, placing) = logins.plan_changes(&InstalledLogins::default(), answer(&["a/b", "c"]));
        let written = |placing: &FileUpdate| placing.files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        assert_eq!(written(&placing), [Path::new("/home/agent/a/b"), Path::new("/home/agent/c")]);
        assert!(placing.removed.is_empty() && installed.contains("c") && !installed.contains("b"));
        let (installed, placing) = logins.plan_changes(&installed, answer(&["c"]));
        assert_eq!(
            (written(&placing), placing.removed),
            (vec!["/home/agent/c".into()], vec!["/home/agent/a/b".into()])
        );
        let (installed, placing) = logins.plan_changes(&installed, answer(&[]));
        assert_eq!((placing.files.len(), placing.removed), (0, vec!["/home/agent/c".into()]));
        let (installed, placing) =
            logins.plan_changes(&installed, answer(&["../x", "/etc/passwd", ".codex/config.toml", ""]));
        assert_eq!((placing, installed.paths.len()), (FileUpdate::default(), 0));
    }

    #[tokio::test]
    async fn reports_a_missing_spawner() {
        let (_, why) = {
            let logins = logins();
            let (installed, placing) = logins.plan_changes(&InstalledLogins::default(), answer(&["a"]));
            (installed, logins.spawner.update_files(placing).await.unwrap_err())
        };
        assert!(why.contains("exiting"), "{why}");
    }
}
