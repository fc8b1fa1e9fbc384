//! The forge double, checked with GitHub's official client and published description, and Atoll's own client against it.

use atoll_core::pull_request::{ChecksState, MergeMethod, MergeVerdict, Mergeability, ReviewsState, decide_merge};
use atoll_forges::github::device_login::{DeviceLogin, PollOutcome};
use atoll_forges::github::{AppCredentials, Credentials, GitHub, GitHubOptions};
use atoll_forges::{Error, Forge, MergeOutcome, MergeRequest, NewPullRequest, RepositoryName};
use atoll_tests::forge_double::{BareRepository, Fault, ForgeDouble};
use atoll_tests::local::report_skipped;
use atoll_tests::node::{find_in_target, find_node};
use secrecy::{ExposeSecret, SecretString};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

const TOKEN: &str = "forge-token-secret";
const BRANCH: &str = "feature/ATL-1-größe";

/// The double with the repository `octo/hello`, whose branch has one commit more than `main`.
struct Setup {
    forge: ForgeDouble,
    git: BareRepository,
    name: RepositoryName,
    _dir: TempDir,
}

fn run_git(dir: &Path, arguments: &[&str]) {
    let output = Command::new("git").current_dir(dir).args(arguments).output().unwrap();
    assert!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

impl Setup {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (bare, clone) = (dir.path().join("hello.git"), dir.path().join("clone"));
        run_git(dir.path(), &["init", "--quiet", "--bare", "--initial-branch=main", "hello.git"]);
        run_git(dir.path(), &["clone", "--quiet", "hello.git", "clone"]);
        run_git(&clone, &["config", "user.name", "Test"]);
        run_git(&clone, &["config", "user.email", "test@localhost"]);
        commit_file(&clone, "a.txt", "one\n");
        run_git(&clone, &["push", "--quiet", "origin", "HEAD:refs/heads/main"]);
        run_git(&clone, &["checkout", "--quiet", "-b", BRANCH]);
        commit_file(&clone, "b.txt", "two\n");
        run_git(&clone, &["push", "--quiet", "origin", BRANCH]);
        let forge = ForgeDouble::start(TOKEN).await;
        forge.add_repository("octo/hello", &bare);
        let name = RepositoryName { owner: "octo".into(), name: "hello".into() };
        Self { forge, git: BareRepository::new(&bare), name, _dir: dir }
    }

    fn clone_dir(&self) -> PathBuf {
        self._dir.path().join("clone")
    }

    fn client(&self) -> GitHub {
        self.client_with(Credentials::Token(TOKEN.into()))
    }

    fn client_with(&self, credentials: Credentials) -> GitHub {
        let max_wait = Duration::from_secs(5);
        GitHub::new(GitHubOptions { api_url: self.forge.url(), credentials, max_wait }).unwrap()
    }

    fn new_pull(&self) -> NewPullRequest {
        NewPullRequest { title: "Two".into(), body: "text".into(), branch: BRANCH.into(), base: "main".into() }
    }
}

fn app_credentials() -> Credentials {
    let key = Command::new("openssl").args(["genrsa", "-traditional", "2048"]).output().unwrap();
    let private_key = SecretString::from(String::from_utf8(key.stdout).unwrap());
    Credentials::App(AppCredentials { app_id: "Iv1.x".into(), private_key })
}

fn commit_file(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).unwrap();
    run_git(dir, &["add", "."]);
    run_git(dir, &["commit", "--quiet", "-m", name]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn githubs_client_and_description_accept_the_double() {
    let setup = Setup::new().await;
    setup.forge.report_check("octo/hello", BRANCH, "build", Some("success"));
    setup.forge.add_review("octo/hello", 1, "ann", "APPROVED");
    run_script("check.mjs", &[&setup.forge.url(), TOKEN, "octo", "hello", BRANCH]).await;
}

/// Runs a script of `tests/forge-double` with GitHub's packages.
async fn run_script(name: &str, arguments: &[&str]) {
    let Some(modules) = find_in_target("forge-tools/node_modules") else {
        assert!(std::env::var_os("CI").is_none(), "run scripts/forge-tools first");
        return report_skipped("GitHub's client and description of its API", "scripts/forge-tools did not run");
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("forge-double").join(name);
    let mut command = tokio::process::Command::new(find_node());
    let checked = command.arg(script).args(arguments).env("NODE_MODULES", modules).output().await.unwrap();
    let output = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{output}{}", String::from_utf8_lossy(&checked.stderr));
    assert!(output.contains("checked "), "{output}");
}

/// Every request of Atoll's client and every response to it has the form that GitHub describes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn githubs_description_accepts_atolls_requests() {
    let setup = Setup::new().await;
    let (github, name) = (setup.client(), &setup.name);
    setup.forge.report_check("octo/hello", BRANCH, "build", Some("success"));
    setup.forge.add_review("octo/hello", 1, "ann", "APPROVED");
    assert_eq!(github.read_account().await.unwrap(), "octo");
    github.default_branch(name).await.unwrap();
    github.create_pull_request(name, &setup.new_pull()).await.unwrap();
    github.create_pull_request(name, &setup.new_pull()).await.unwrap();
    github.find_pull_request(name, BRANCH).await.unwrap();
    github.update_pull_request(name, 1, "Changed", "more").await.unwrap();
    github.read_pull_request(name, 99).await.unwrap_err();
    let head = github.read_status(name, 1).await.unwrap().head;
    for expected_head in ["0".repeat(40), head.clone(), head] {
        let title = "Two (#1)".to_owned();
        let merge = MergeRequest { number: 1, expected_head, method: MergeMethod::Squash, title };
        github.merge_pull_request(name, &merge).await.unwrap();
    }
    for _ in 0..2 {
        github.delete_branch(name, BRANCH).await.unwrap();
    }
    setup.client_with(app_credentials()).default_branch(name).await.unwrap();
    let requests = setup.forge.requests();
    let statuses: BTreeSet<u16> = requests.iter().map(|request| request.status).collect();
    assert_eq!(statuses, BTreeSet::from([200, 201, 204, 404, 405, 409, 422]));
    let file = setup.clone_dir().with_extension("json");
    std::fs::write(&file, serde_json::to_vec(&requests).unwrap()).unwrap();
    run_script("check-exchanges.mjs", &[file.to_str().unwrap()]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pull_request_is_opened_checked_merged_and_its_branch_deleted() {
    let setup = Setup::new().await;
    let (github, name) = (setup.client(), &setup.name);
    assert_eq!(github.default_branch(name).await.unwrap(), "main");
    assert_eq!(github.find_pull_request(name, BRANCH).await.unwrap(), None);
    let created = github.create_pull_request(name, &setup.new_pull()).await.unwrap();
    assert_eq!((created.number, created.branch.as_str(), created.base.as_str()), (1, BRANCH, "main"));
    let again = github.create_pull_request(name, &setup.new_pull()).await.unwrap();
    assert_eq!(again, created, "a second attempt finds the first one's pull request");
    assert_eq!(github.find_pull_request(name, BRANCH).await.unwrap(), Some(created.clone()));
    let changed = github.update_pull_request(name, 1, "Changed", "more").await.unwrap();
    assert_eq!(changed.title, "Changed");

    setup.forge.delay_mergeability("octo/hello", 1);
    setup.forge.report_check("octo/hello", BRANCH, "build", None);
    let status = github.read_status(name, 1).await.unwrap();
    assert_eq!((status.mergeability, status.checks), (Mergeability::Unknown, ChecksState::Pending));
    assert!(matches!(decide_merge(&status), MergeVerdict::Wait(_)));
    setup.forge.report_check("octo/hello", BRANCH, "build", Some("failure"));
    setup.forge.add_review("octo/hello", 1, "ann", "CHANGES_REQUESTED");
    let status = github.read_status(name, 1).await.unwrap();
    assert_eq!(status.failed_checks, ["build"]);
    assert_eq!((status.mergeability, status.reviews), (Mergeability::Clean, ReviewsState::ChangesRequested));
    assert!(matches!(decide_merge(&status), MergeVerdict::Refused(_)));
    setup.forge.report_check("octo/hello", BRANCH, "build", Some("success"));
    setup.forge.add_review("octo/hello", 1, "ann", "APPROVED");
    let status = github.read_status(name, 1).await.unwrap();
    assert_eq!(decide_merge(&status), MergeVerdict::Allowed, "{status:?}");

    let merge = |head: &str| MergeRequest {
        number: 1,
        expected_head: head.to_owned(),
        method: MergeMethod::Squash,
        title: "Two (#1)".into(),
    };
    let moved = github.merge_pull_request(name, &merge(&"0".repeat(40))).await.unwrap();
    assert_eq!(moved, MergeOutcome::HeadMoved);
    let merged = github.merge_pull_request(name, &merge(&status.head)).await.unwrap();
    let main = setup.git.branch_commit("main").unwrap();
    assert_eq!(merged, MergeOutcome::Merged { commit: main.clone() });
    assert_eq!(setup.git.text(&["log", "-1", "--format=%s", "main"]), "Two (#1)");
    assert_eq!(setup.git.text(&["rev-list", "--count", "main"]), "2", "a squash has one commit");
    let again = github.merge_pull_request(name, &merge(&status.head)).await.unwrap();
    assert!(matches!(again, MergeOutcome::Merged { .. }), "a second attempt finds the merge: {again:?}");
    for _ in 0..2 {
        github.delete_branch(name, BRANCH).await.unwrap();
    }
    assert_eq!(setup.git.branch_commit(BRANCH), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_are_reported_as_conflicts() {
    let setup = Setup::new().await;
    let (github, name) = (setup.client(), &setup.name);
    github.create_pull_request(name, &setup.new_pull()).await.unwrap();
    let clone = setup.clone_dir();
    run_git(&clone, &["checkout", "--quiet", "-B", "main", "origin/main"]);
    commit_file(&clone, "b.txt", "other\n");
    run_git(&clone, &["push", "--quiet", "origin", "main"]);
    let status = github.read_status(name, 1).await.unwrap();
    assert_eq!(decide_merge(&status), MergeVerdict::Conflict, "{status:?}");
    let merge = MergeRequest { number: 1, expected_head: status.head, method: MergeMethod::Squash, title: "x".into() };
    let outcome = github.merge_pull_request(name, &merge).await.unwrap();
    assert!(matches!(outcome, MergeOutcome::NotMergeable { .. }), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_response_opens_no_second_pull_request() {
    let setup = Setup::new().await;
    setup.forge.inject_fault(Fault::LostResponse { method: "POST", path_end: "/pulls" });
    let created = setup.client().create_pull_request(&setup.name, &setup.new_pull()).await.unwrap();
    assert_eq!((created.number, setup.forge.count_requests("POST", "/pulls")), (1, 1));
    assert_eq!(setup.forge.pull_requests("octo/hello").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waits_as_the_forge_asks_and_no_longer_than_allowed() {
    let setup = Setup::new().await;
    let github = setup.client();
    setup.forge.inject_fault(Fault::SecondaryRateLimit { requests: 1, retry_after: 1 });
    assert_eq!(github.default_branch(&setup.name).await.unwrap(), "main");
    assert_eq!(setup.forge.requests().len(), 2);
    setup.forge.inject_fault(Fault::PrimaryRateLimit { requests: 1, reset_after: 1 });
    assert_eq!(github.default_branch(&setup.name).await.unwrap(), "main");
    setup.forge.inject_fault(Fault::BadGateway { requests: 2 });
    assert_eq!(github.default_branch(&setup.name).await.unwrap(), "main");
    assert_eq!(setup.forge.requests().len(), 7, "one repeat after each limit, two after the errors");
    setup.forge.inject_fault(Fault::PrimaryRateLimit { requests: 1, reset_after: 600 });
    let refused = github.default_branch(&setup.name).await.unwrap_err();
    assert!(matches!(refused, Error::RateLimited { retry_after } if retry_after.as_secs() > 590), "{refused:?}");
    setup.forge.inject_fault(Fault::SecondaryRateLimit { requests: 1, retry_after: 600 });
    let refused = github.default_branch(&setup.name).await.unwrap_err();
    assert_eq!(refused, Error::RateLimited { retry_after: Duration::from_secs(600) });
    setup.forge.clear_faults();
    setup.forge.inject_fault(Fault::Down);
    let down = github.default_branch(&setup.name).await.unwrap_err();
    assert!(down.is_retryable() && matches!(down, Error::Unavailable { .. }), "{down:?}");
    setup.forge.clear_faults();
    assert_eq!(github.default_branch(&setup.name).await.unwrap(), "main");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_are_named_without_the_token() {
    let setup = Setup::new().await;
    let github = setup.client_with(Credentials::Token("wrong-token-secret".into()));
    let error = github.default_branch(&setup.name).await.unwrap_err();
    assert!(matches!(error, Error::Unauthorized { .. }) && !error.to_string().contains("secret"), "{error}");
    let missing = RepositoryName { owner: "octo".into(), name: "missing".into() };
    let error = setup.client().default_branch(&missing).await.unwrap_err();
    assert_eq!(error, Error::NotFound { what: "repository" });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_app_requests_one_token_per_repository() {
    let setup = Setup::new().await;
    let github = setup.client_with(app_credentials());
    for _ in 0..3 {
        assert_eq!(github.default_branch(&setup.name).await.unwrap(), "main");
    }
    assert_eq!(setup.forge.count_requests("POST", "/access_tokens"), 1);
    assert_eq!(github.repository_token(&setup.name).await.unwrap().expose_secret(), "installation-token-1");
    // A new installation of the App ends its tokens.
    setup.forge.reinstall_app();
    assert_eq!(github.default_branch(&setup.name).await.unwrap(), "main");
    assert_eq!(setup.forge.count_requests("POST", "/access_tokens"), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_logs_in_by_device_flow() {
    let setup = Setup::new().await;
    let login = DeviceLogin::new(&setup.forge.url(), "Iv1.x").unwrap();
    let code = login.request_code("repo").await.unwrap();
    assert_eq!(code.user_code, "WDJB-MJHT");
    assert!(!format!("{code:?}").contains("secret"));
    assert!(matches!(login.poll(&code.device_code).await.unwrap(), PollOutcome::SlowDown));
    assert!(matches!(login.poll(&code.device_code).await.unwrap(), PollOutcome::Pending));
    setup.forge.answer_device_login(Some("user-token"));
    let PollOutcome::Granted(grant) = login.poll(&code.device_code).await.unwrap() else { panic!("no token") };
    assert_eq!(grant.access_token.expose_secret(), "user-token");
    let renewed = login.refresh(&grant.refresh_token.unwrap()).await.unwrap();
    assert_eq!(renewed.access_token.expose_secret(), "renewed-user-token-1");
    let used_up = login.refresh(&"user-refresh-1".into()).await.unwrap_err();
    assert!(matches!(used_up, Error::Unauthorized { .. }), "{used_up}");
    setup.forge.answer_device_login(None);
    assert!(matches!(login.poll(&code.device_code).await.unwrap(), PollOutcome::Denied));
}
