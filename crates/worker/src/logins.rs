//! Login files: fetched from the server and written into the agent's home before each prompt, by the hands. The worker
//! keeps nothing of them but where they are.

use crate::backoff::Backoff;
use crate::environment::Environment;
use crate::hands::{Handle, Placing, Written};
use crate::link::{Reply, Server};
use crate::spool::Stream;
use atoll_core::login;
use atoll_protocol::{LoginsAnswer, LoginsRequest};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// For the server to answer, which a moment ago had a message; then the prompt waits no longer.
const LONGEST: Duration = Duration::from_secs(10);
/// For removing them, before somebody else may look at the sandbox's files.
const REMOVING: Duration = Duration::from_secs(2);

/// What it works with. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Logins {
    pub hands: Handle,
    pub environment: Arc<Environment>,
    pub server: Server,
    pub stream: Stream,
}

/// What was written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// The server's name for it.
    version: Option<String>,
    /// Below the home.
    paths: Vec<String>,
}

impl Held {
    pub fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|held| held == path)
    }
}

impl Logins {
    /// Writes what the server has now. The other thing is what could not be done; the earlier files stay then.
    pub async fn renew(self, held: Held) -> (Held, Option<String>) {
        let answer = match timeout(LONGEST, self.ask(held.version.clone())).await {
            Ok(Ok(Some(answer))) => answer,
            Ok(Ok(None)) => return (held, None),
            Ok(Err(why)) => return (held, Some(why)),
            Err(_) => return (held, Some(format!("the server did not answer within {} s", LONGEST.as_secs()))),
        };
        let (next, placing) = self.placing(&held, answer);
        if placing == Placing::default() {
            return (next, None);
        }
        match self.hands.place(placing).await {
            Ok(()) => (next, None),
            Err(why) => (next, Some(why)),
        }
    }

    /// What is to be written and removed, and what is there then.
    fn placing(&self, held: &Held, answer: LoginsAnswer) -> (Held, Placing) {
        // The server has looked at them; but what is written where is not for it alone to say.
        let good = answer.files.into_iter().filter(|file| login::path("path", &file.path).is_ok());
        let files: Vec<_> = good.take(login::FILES).collect();
        let paths: Vec<String> = files.iter().map(|file| file.path.clone()).collect();
        let removed =
            held.paths.iter().filter(|path| !paths.contains(path)).map(|path| self.below_home(path)).collect();
        let written = |file: atoll_protocol::LoginFile| Written { path: self.below_home(&file.path), text: file.text };
        let files = files.into_iter().map(written).collect();
        (Held { version: Some(answer.version), paths }, Placing { files, removed })
    }

    /// Takes all of them away: what is kept of a sandbox's files has no login.
    pub async fn remove(&self, held: &mut Held) {
        let removed: Vec<_> = std::mem::take(&mut held.paths).iter().map(|path| self.below_home(path)).collect();
        if removed.is_empty() {
            return;
        }
        match timeout(REMOVING, self.hands.place(Placing { files: Vec::new(), removed })).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(error, "a login file could not be taken away"),
            Err(_) => tracing::warn!("login files could not be taken away in time"),
        }
    }

    /// Nothing from a server that knows of no such files.
    async fn ask(&self, known: Option<String>) -> Result<Option<LoginsAnswer>, String> {
        let request = LoginsRequest { stream: self.stream.id, boot: Some(self.stream.boot), known };
        let (mut client, mut backoff) = (self.server.client(), Backoff::default());
        loop {
            match client.post("logins", &request).await {
                Reply::Ok(body) => {
                    // Not what was read: it holds the secret.
                    let answer = serde_json::from_slice(&body);
                    return answer.map(Some).map_err(|_| "the server's answer can't be read".to_owned());
                }
                Reply::Refused(problem) if problem.status == 404 => return Ok(None),
                Reply::Later { after, .. } => backoff.wait(after).await,
                Reply::KeyGap { .. } => return Err("the server answered something else".to_owned()),
                Reply::Fenced(problem)
                | Reply::TooLarge(problem)
                | Reply::Unauthorized(problem)
                | Reply::Refused(problem) => return Err(problem.to_string()),
            }
        }
    }

    fn below_home(&self, path: &str) -> PathBuf {
        PathBuf::from(self.environment.home()).join(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hands::{Keeper, Starter};
    use crate::link::Dialer;
    use atoll_core::id::SandboxId;
    use atoll_protocol::LoginFile;
    use std::path::Path;

    fn logins() -> Logins {
        let starter = Starter { program: PathBuf::new(), user: None, groups: Vec::new() };
        let sandbox = SandboxId::new();
        Logins {
            hands: Keeper::new(starter).1,
            environment: Arc::new(Environment::new(sandbox, "/bin", "/home/agent", "agent")),
            server: Server::new(Arc::new(Dialer::new("http://127.0.0.1:1").unwrap()), sandbox, None),
            stream: Stream { boot: 1, id: uuid::Uuid::nil() },
        }
    }

    fn answer(paths: &[&str]) -> LoginsAnswer {
        let file = |path: &&str| LoginFile { path: (*path).to_owned(), text: "{}".to_owned() };
        LoginsAnswer { files: paths.iter().map(file).collect(), version: paths.concat() }
    }

    #[tokio::test]
    async fn what_is_no_longer_there_is_removed_and_the_rest_written_each_time() {
        let logins = logins();
        let (held, placing) = logins.placing(&Held::default(), answer(&["a/b", "c"]));
        let written = |placing: &Placing| placing.files.iter().map(|file| file.path.clone()).collect::<Vec<_>>();
        assert_eq!(written(&placing), [Path::new("/home/agent/a/b"), Path::new("/home/agent/c")]);
        assert!(placing.removed.is_empty() && held.has("c") && !held.has("b"));
        let (held, placing) = logins.placing(&held, answer(&["c"]));
        assert_eq!(
            (written(&placing), placing.removed),
            (vec!["/home/agent/c".into()], vec!["/home/agent/a/b".into()])
        );
        let (held, placing) = logins.placing(&held, answer(&[]));
        assert_eq!((placing.files.len(), placing.removed), (0, vec!["/home/agent/c".into()]));
        let (held, placing) = logins.placing(&held, answer(&["../x", "/etc/passwd", ".codex/config.toml", ""]));
        assert_eq!((placing, held.paths.len()), (Placing::default(), 0));
    }

    #[tokio::test]
    async fn a_helper_that_is_gone_is_a_sentence() {
        let (_, why) = {
            let logins = logins();
            let (held, placing) = logins.placing(&Held::default(), answer(&["a"]));
            (held, logins.hands.place(placing).await.unwrap_err())
        };
        assert!(why.contains("going"), "{why}");
    }
}
