//! The server's credentials at a forge: users' own logins by device flow, the App, the deployment's token, and git with each.

use atoll_test_wait::wait_for;
use atoll_tests::actor::{Actor, ApiResponse};
use atoll_tests::forge_double::{Fault, ForgeDouble};
use atoll_tests::git_server::GitServer;
use atoll_tests::local::host_state::files_with;
use atoll_tests::local::{LocalServer, create_temp_dir};
use atoll_tests::process::{ServeOptions, ServerProcess, program_command};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const USER_TOKEN: &str = "user-token-that-stays-outside";
const SERVER_TOKEN: &str = "server-token-that-stays-outside";
const RENEWED_TOKEN: &str = "renewed-user-token-1";
const REPOSITORY: &str = "octo/hello";

/// A forge with one private repository, and `atoll serve` with it as its GitHub.
struct ForgeSetup {
    forge: ForgeDouble,
    git: GitServer,
    server: ServerProcess,
    admin: Actor,
    dir: TempDir,
}

async fn start_forge() -> (ForgeDouble, GitServer) {
    let (forge, git) = (ForgeDouble::start(SERVER_TOKEN).await, GitServer::start());
    git.create_repository(REPOSITORY);
    forge.host_repository(REPOSITORY, &git);
    (forge, git)
}

impl ForgeSetup {
    /// Starts the server with these keys of `github` besides the URLs.
    async fn new(keys: &[(&str, &str)]) -> Self {
        let ((forge, git), dir) = (start_forge().await, create_temp_dir("atoll-forge-"));
        let urls = [("URL", forge.url()), ("API_URL", forge.url())];
        let keys = keys.iter().map(|(key, value)| (*key, (*value).to_owned()));
        let environment = urls.into_iter().chain(keys).map(|(key, value)| (format!("ATOLL_GITHUB_{key}"), value));
        let options = ServeOptions { environment: environment.collect(), ..ServeOptions::default() };
        let server = ServerProcess::start_with_options(dir.path(), options);
        let admin = Actor::new(&server.url, Some(&server.admin_token()));
        Self { forge, git, server, admin, dir }
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program_command("atoll");
        command.args(arguments).args(["--server", &self.server.url]).env("ATOLL_TOKEN", self.server.admin_token());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs `atoll forge login github`, and answers once it shows its code. Returns its success and its whole output.
    fn log_in(&self, token: Option<&str>) -> (bool, String) {
        let mut child = atoll_tests::process::spawn_process(self.command(&["forge", "login", "github"]));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        stdout.read_line(&mut text).unwrap();
        assert!(text.contains("WDJB-MJHT") && text.contains("/login/device"), "{text}");
        self.forge.answer_device_login(token);
        stdout.read_to_string(&mut text).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        let status = wait_for("the end of the login", || child.try_wait().unwrap());
        (status.success(), text)
    }

    /// Resolves a sandbox of a private repository, for which the server fetches it.
    async fn fetch_repository(&self, full_name: &str) -> ApiResponse {
        let repo = json!({ "url": format!("{}/{full_name}.git", self.forge.url()) });
        let body = json!({ "provider": "local", "agent": "demo", "approvals": "full", "repo": repo });
        self.admin.post("/sandboxes/preview", body).await
    }

    async fn fetch(&self) -> ApiResponse {
        self.fetch_repository(REPOSITORY).await
    }

    async fn login(&self) -> Value {
        self.admin.get("/forges").await.expect_status(200)["items"][0]["login"].clone()
    }

    /// Nothing that the server stores or logs contains a token.
    fn assert_no_token_stored(&self) {
        for token in [USER_TOKEN, SERVER_TOKEN, RENEWED_TOKEN, "user-refresh-", "installation-token-"] {
            assert_eq!(files_with(self.dir.path(), token), [] as [&str; 0]);
            assert!(!self.server.stderr_text().contains(token));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_logs_in_by_device_flow_and_out_again() {
    let setup = ForgeSetup::new(&[("CLIENT_ID", "Iv1.x")]).await;
    setup.fetch().await.expect_problem(422, "clone_failed");
    let (is_granted, text) = setup.log_in(None);
    assert!(!is_granted && text.contains("you denied the login"), "{text}");
    let (is_granted, text) = setup.log_in(Some(USER_TOKEN));
    assert!(is_granted && text.contains("logged in to github as octo"), "{text}");
    assert!(!text.contains(USER_TOKEN));
    let listed = setup.run(&["forge", "ls"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("octo") && listed.contains("logins") && !listed.contains(USER_TOKEN), "{listed}");
    setup.fetch().await.expect_status(200);

    // The login belongs to one user.
    let user = setup.admin.post("/users", json!({ "name": "ada", "role": "member" })).await.expect_status(201);
    let token = setup.admin.post("/tokens", json!({ "name": "t", "user_id": user["id"] })).await.expect_status(201);
    let other = setup.admin.with_token(token["token"].as_str().unwrap());
    let forges = other.get("/forges").await.expect_status(200);
    assert_eq!(forges["items"][0]["login"], Value::Null);
    // The key rotation includes it.
    let rotated = setup.admin.post("/secrets/rotate", json!({})).await.expect_status(200);
    assert_eq!(rotated["sealed"], 1);
    assert_eq!(setup.login().await["account"], "octo");
    setup.assert_no_token_stored();

    assert!(setup.run(&["forge", "logout", "github"]).status.success());
    assert_eq!(setup.login().await, Value::Null);
    setup.fetch().await.expect_problem(422, "clone_failed");
    let problem = setup.admin.post("/forges/github/login/poll", json!({})).await.expect_problem(409, "forge_access");
    assert_eq!(problem["cause"], "forge_login_missing");
    setup.admin.post("/forges/gitlab/login", json!({})).await.expect_problem(404, "not_found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expiring_login_is_renewed_once_and_an_expired_one_names_the_remedy() {
    let mut setup = ForgeSetup::new(&[("CLIENT_ID", "Iv1.x")]).await;
    // Less than the margin, so that the first use renews it.
    setup.forge.set_token_lifetime(60);
    assert!(setup.log_in(Some(USER_TOKEN)).0);
    setup.forge.set_token_lifetime(28_800);
    let polls = setup.forge.count_requests("POST", "/login/oauth/access_token");
    let created = tokio::join!(setup.fetch(), setup.fetch(), setup.fetch());
    for response in [created.0, created.1, created.2] {
        response.expect_status(200);
    }
    assert_eq!(setup.forge.count_requests("POST", "/login/oauth/access_token"), polls + 1, "one renewal for all");
    setup.assert_no_token_stored();

    // The renewed login outlives the server.
    setup.server.restart();
    setup.fetch().await.expect_status(200);
    assert_eq!(setup.forge.count_requests("POST", "/login/oauth/access_token"), polls + 1);

    setup.forge.set_token_lifetime(0);
    assert!(setup.log_in(Some(USER_TOKEN)).0);
    setup.forge.inject_fault(Fault::Down);
    let down = setup.fetch().await.expect_problem(503, "forge_unavailable");
    assert!(down["detail"].as_str().unwrap().contains("retry later"), "{down}");
    setup.forge.clear_faults();
    setup.forge.revoke_login();
    let expired = setup.fetch().await.expect_problem(409, "forge_access");
    assert_eq!(expired["cause"], "forge_login_expired");
    assert!(expired["detail"].as_str().unwrap().contains("run `atoll forge login github` again"), "{expired}");
    setup.assert_no_token_stored();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_app_serves_its_repositories_and_the_servers_token_all_others() {
    let key = Command::new("openssl").args(["genrsa", "-traditional", "2048"]).output().unwrap().stdout;
    let dir = create_temp_dir("atoll-key-");
    let path = dir.path().join("app.pem");
    let keys = [("APP_ID", "3"), ("APP_KEY", path.to_str().unwrap()), ("TOKEN", SERVER_TOKEN)];
    let setup = ForgeSetup::new(&keys).await;
    let unreadable = setup.fetch().await.expect_problem(409, "forge_access");
    assert!(unreadable["detail"].as_str().unwrap().starts_with("github.app_key: cannot read"), "{unreadable}");
    std::fs::write(&path, &key).unwrap();
    setup.forge.revoke_token(SERVER_TOKEN);
    for _ in 0..2 {
        setup.fetch().await.expect_status(200);
    }
    assert_eq!(setup.forge.count_requests("POST", "/access_tokens"), 1, "the token is used again");
    let requests = setup.forge.requests();
    let issued = requests.iter().find(|request| request.path.ends_with("/access_tokens")).unwrap();
    assert_eq!(issued.body, json!({ "repositories": ["hello"] }), "limited to the repository");

    // A repository without the App.
    setup.git.create_repository("octo/other");
    setup.forge.host_repository("octo/other", &setup.git);
    setup.forge.uninstall_app("octo/other");
    let refused = setup.fetch_repository("octo/other").await.expect_problem(422, "clone_failed");
    assert_eq!(refused["cause"], "remote_auth");
    setup.forge.accept_token(SERVER_TOKEN);
    setup.fetch_repository("octo/other").await.expect_status(200);
    setup.assert_no_token_stored();
    let disabled = setup.admin.post("/forges/github/login", json!({})).await.expect_problem(409, "forge_access");
    assert!(disabled["detail"].as_str().unwrap().contains("github.client_id"), "{disabled}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sandbox_of_a_private_repository_contains_no_token() {
    let (forge, git) = start_forge().await;
    let url = forge.url();
    let server = LocalServer::start_with_config(&format!(
        "github: {{url: \"{url}\", api_url: \"{url}\", client_id: Iv1.x, token: {SERVER_TOKEN}}}\n"
    ));
    server.admin.post("/forges/github/login", json!({})).await.expect_status(200);
    forge.answer_device_login(Some(USER_TOKEN));
    let granted = atoll_test_wait::try_poll_for(async || {
        let progress = server.admin.post("/forges/github/login/poll", json!({})).await.expect_status(200);
        if progress["state"] == "granted" { Ok(progress) } else { Err(progress) }
    });
    granted.await.expect("the login is granted");
    // Only the user's own token works.
    forge.revoke_token(SERVER_TOKEN);
    let id = server.create_idle_sandbox(json!({ "repo": { "url": format!("{url}/{REPOSITORY}.git") } })).await;
    let main = git.branch(REPOSITORY, "main").unwrap();
    let found = "git rev-parse HEAD; env; cat /proc/*/environ /proc/*/cmdline ~/.git-credentials .git/config 2>/dev/null \
                 | tr '\\0' '\\n'; git remote -v";
    let found = server.run_shell(&id, found).await.stdout;
    assert!(found.starts_with(&main), "{found}");
    let events = json!(server.admin.all_events(&id).await).to_string();
    for token in [USER_TOKEN, SERVER_TOKEN, "user-refresh-"] {
        assert!(!found.contains(token) && !events.contains(token), "{token}");
        assert!(!server.process.stderr_text().contains(token));
        assert_eq!(files_with(&server.data_dir(), token), [] as [&str; 0]);
    }
    server.stop_and_check().await;
}
