//! A git server, a forge and an Atoll server that know each other.

use atoll_test_wait::try_poll_for;
use atoll_tests::forge_double::ForgeDouble;
use atoll_tests::git_server::{GitServer, git};
use atoll_tests::local::host_state::files_with;
use atoll_tests::local::{LocalServer, assert_log_is_complete};
use atoll_tests::ssh_server::SshServer;
use base64::Engine;
use serde_json::{Value, json};

/// The forge's and the git server's token.
pub const TOKEN: &str = "f0rge-token-that-stays-outside";
/// The repository of both.
pub const NAME: &str = "octo/hello";

/// A git server and a forge with one repository.
pub struct Hosts {
    pub git: GitServer,
    pub forge: ForgeDouble,
}

impl Hosts {
    pub async fn start() -> Self {
        let (git, forge) = (GitServer::start(), ForgeDouble::start(TOKEN).await);
        git.create_repository(NAME);
        git.require_login("x-access-token", TOKEN);
        forge.add_repository(NAME, &git.path(NAME));
        Self { git, forge }
    }

    /// The configuration of a server that knows both.
    pub fn config(&self) -> String {
        format!("github: {{url: \"http://{}\", api_url: \"{}\"}}\n", self.git.address, self.forge.url())
    }

    /// The variables of a server that may use both.
    pub fn environment() -> Vec<(String, String)> {
        vec![("GITHUB_TOKEN".to_owned(), TOKEN.to_owned())]
    }

    pub fn with_server(self, server: LocalServer) -> Workshop {
        let url = self.git.url(NAME);
        Workshop { git: self.git, forge: self.forge, server, url }
    }
}

/// The hosts and an Atoll server.
pub struct Workshop {
    pub git: GitServer,
    pub forge: ForgeDouble,
    pub server: LocalServer,
    /// The URL of the repository.
    pub url: String,
}

impl Workshop {
    pub async fn start() -> Self {
        Self::start_with(&[]).await
    }

    /// Starts with more variables of the server.
    pub async fn start_with(variables: &[(&str, &str)]) -> Self {
        let hosts = Hosts::start().await;
        let mut environment = Hosts::environment();
        environment.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let server = LocalServer::start_with_env(&hosts.config(), &environment);
        hosts.with_server(server)
    }

    /// Starts with a git server behind sshd; `None` if the machine has none.
    pub async fn start_over_ssh() -> Option<(Self, SshServer)> {
        let hosts = Hosts::start().await;
        let ssh = SshServer::start_below(hosts.git.root())?;
        let credential = format!(
            "git: {{credentials: [{{host: \"127.0.0.1\", ssh_key: {}, known_hosts: {}}}]}}\n",
            ssh.key().display(),
            ssh.known_hosts().display()
        );
        let config = format!("{}{credential}", hosts.config());
        let server = LocalServer::start_with_env(&config, &Hosts::environment());
        let url = ssh.url(format!("/{NAME}.git").as_ref());
        Some((Self { url, ..hosts.with_server(server) }, ssh))
    }

    pub fn repo(&self) -> Value {
        json!({ "url": self.url })
    }

    pub async fn create_ticket(&self, new: Value) -> Value {
        self.server.admin.post("/tickets", new).await.expect_status(201)
    }

    pub async fn read_ticket(&self, ticket: &Value) -> Value {
        self.server.admin.get(&format!("/tickets/{}", ticket["id"].as_str().unwrap())).await.expect_status(200)
    }

    /// Lets the demo agent work on a ticket, and waits for the end of its sandbox. Returns the session.
    pub async fn publish_ticket(&self, ticket: &Value, prompt: &str, merge: bool) -> Value {
        let git = json!({ "publish": "pull_request", "merge": merge });
        let body = json!({ "ticket_id": ticket["id"], "repo": self.repo(), "prompt": prompt, "git": git });
        let id = self.server.create_sandbox(body).await;
        self.server.wait_until_ended(&id).await["session_id"].clone()
    }

    /// Waits until the workflow of a session has a matching progress.
    pub async fn wait_for_progress(&self, session: &Value, is_match: impl Fn(&Value) -> bool) -> Value {
        let path = format!("/branch-workflow/status?session={}", session.as_str().unwrap());
        let polled = try_poll_for(async || {
            let status = self.server.admin.get(&path).await.expect_status(200);
            let progress = status["progress"].clone();
            if is_match(&progress) { Ok(progress) } else { Err(status) }
        });
        match polled.await {
            Ok(progress) => progress,
            Err(status) => panic!("{status}\n{}", self.server.process.stderr_text()),
        }
    }

    pub async fn wait_until_done(&self, session: &Value) -> Value {
        let ended = |progress: &Value| progress["state"] == "done" || progress["state"] == "failed";
        let progress = self.wait_for_progress(session, ended).await;
        assert_eq!(progress["state"], "done", "{progress}");
        progress
    }

    /// The sandboxes of a session, oldest first.
    pub async fn sandboxes_of(&self, session: &Value) -> Vec<Value> {
        let all = self.server.admin.list_all("/sandboxes", 100).await;
        let mut own: Vec<Value> = all.into_iter().filter(|row| row["session_id"] == *session).collect();
        own.reverse();
        own.iter().for_each(|row| self.server.track_sandbox(row["id"].as_str().unwrap()));
        own
    }

    pub async fn events_of(&self, session: &Value) -> Vec<Value> {
        let mut events = Vec::new();
        for row in self.sandboxes_of(session).await {
            let own = self.server.admin.all_events(row["id"].as_str().unwrap()).await;
            assert_log_is_complete(&own);
            events.extend(own);
        }
        events
    }

    /// Requests that changed something at the forge.
    pub fn forge_changes(&self, method: &str, path_end: &str) -> usize {
        let is_change = |path: &str| path.split('?').next().is_some_and(|path| path.ends_with(path_end));
        let requests = self.forge.requests();
        requests.iter().filter(|r| r.method == method && is_change(&r.path) && r.status < 300).count()
    }

    pub fn main_subjects(&self) -> String {
        git(&self.git.path(NAME), ["log", "--format=%s", "main"])
    }

    /// The token is in no file, log, event or process of the server.
    pub async fn assert_token_is_nowhere(&self, events: &[Value]) {
        let header = base64::engine::general_purpose::STANDARD.encode(format!("x-access-token:{TOKEN}"));
        for secret in [TOKEN, &header] {
            assert!(!json!(events).to_string().contains(secret), "the token is in an event");
            assert!(!self.server.process.stderr_text().contains(secret), "the token is in the log");
            assert!(!self.git.recorded_processes().contains(secret), "the token is in a process");
            assert_eq!(files_with(&self.server.data_dir(), secret), [] as [&str; 0]);
        }
        for path in ["/sandboxes", "/pull-requests", "/tickets", "/projects", "/config"] {
            let listed = self.server.admin.get(path).await;
            assert!(!listed.body.to_string().contains(TOKEN), "the token is in {path}");
        }
    }
}
