//! A double of GitHub on the loopback interface: the REST operations that Atoll uses, over real bare repositories.
//!
//! A test with the official client and GitHub's published description of its API checks the double itself
//! (`tests/tests/all/forge_double.rs`).

mod bare_repository;
mod device_flow;
mod faults;
mod git_hosting;
mod payloads;
mod pulls;
mod routes;

pub use bare_repository::BareRepository;
pub use faults::Fault;

use crate::git_server::GitServer;
use device_flow::DeviceFlow;
use faults::Faults;
use pulls::{CheckRun, PullState, Review};
use serde::Serialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The running double. It ends when it is dropped.
pub struct ForgeDouble {
    pub address: SocketAddr,
    state: Arc<Mutex<ForgeState>>,
    server: tokio::task::JoinHandle<()>,
}

#[derive(Default)]
pub(crate) struct ForgeState {
    url: String,
    tokens: BTreeSet<String>,
    /// Tokens of the App, each for one repository.
    installation_tokens: BTreeMap<String, String>,
    /// Repositories that the App is not installed on.
    without_app: BTreeSet<String>,
    /// Where git's own requests go.
    git_server: Option<SocketAddr>,
    repositories: BTreeMap<String, RepositoryState>,
    faults: Faults,
    requests: Vec<ReceivedRequest>,
    device_flow: DeviceFlow,
    next_id: u64,
}

pub(crate) struct RepositoryState {
    git: BareRepository,
    pulls: Vec<PullState>,
    check_runs: BTreeMap<String, Vec<CheckRun>>,
    reviews: BTreeMap<u64, Vec<Review>>,
    /// Reads of a pull request that answer `mergeable: null` first.
    unknown_mergeability_reads: u32,
}

/// A request that the double received.
#[derive(Debug, Clone, Serialize)]
pub struct ReceivedRequest {
    pub method: String,
    /// With the query.
    pub path: String,
    pub status: u16,
    pub body: Value,
    pub response: Value,
}

/// A response before it is sent.
pub(crate) struct ForgeReply {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Option<Value>,
}

impl ForgeReply {
    pub fn json(status: u16, body: Value) -> Self {
        Self { status, headers: Vec::new(), body: Some(body) }
    }

    pub fn message(status: u16, message: &str) -> Self {
        Self::json(
            status,
            serde_json::json!({ "message": message, "documentation_url": "https://docs.github.com/rest" }),
        )
    }
}

impl ForgeState {
    /// True if a token may use a repository.
    fn may_use(&self, token: &str, full_name: &str) -> bool {
        self.tokens.contains(token) || self.installation_tokens.get(token).is_some_and(|own| own == full_name)
    }
}

impl Drop for ForgeDouble {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl ForgeDouble {
    /// Starts a double that accepts this token.
    pub async fn start(token: &str) -> Self {
        let state = Arc::new(Mutex::new(ForgeState::default()));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::clone(&state);
        let router = axum::Router::new().fallback(move |request| routes::serve(Arc::clone(&shared), request));
        let server = tokio::spawn(async move {
            drop(axum::serve(listener, router).await);
        });
        let double = Self { address, state, server };
        double.lock().url = format!("http://{address}");
        double.accept_token(token);
        double
    }

    /// The URL of the API and of the site.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Serves a bare repository as `owner/name`.
    pub fn add_repository(&self, full_name: &str, git_dir: &Path) {
        let repository = RepositoryState {
            git: BareRepository::new(git_dir),
            pulls: Vec::new(),
            check_runs: BTreeMap::new(),
            reviews: BTreeMap::new(),
            unknown_mergeability_reads: 0,
        };
        self.lock().repositories.insert(full_name.to_owned(), repository);
    }

    pub fn accept_token(&self, token: &str) {
        self.lock().tokens.insert(token.to_owned());
    }

    /// Rejects a token from now on.
    pub fn revoke_token(&self, token: &str) {
        self.lock().tokens.remove(token);
    }

    /// Serves a repository of a git server, for the API and for git itself.
    pub fn host_repository(&self, full_name: &str, git_server: &GitServer) {
        self.add_repository(full_name, &git_server.path(full_name));
        self.lock().git_server = Some(git_server.address);
    }

    /// Answers the App as on a repository without it.
    pub fn uninstall_app(&self, full_name: &str) {
        self.lock().without_app.insert(full_name.to_owned());
    }

    /// Ends all tokens of the App, as a new installation does.
    pub fn reinstall_app(&self) {
        self.lock().installation_tokens.clear();
    }

    /// Issues user tokens with this lifetime from now on.
    pub fn set_token_lifetime(&self, seconds: u64) {
        self.lock().device_flow.set_lifetime(seconds);
    }

    /// Accepts the refresh token of the login no more.
    pub fn revoke_login(&self) {
        self.lock().device_flow.revoke();
    }

    /// The number of requests with this method and end of the path.
    pub fn count_requests(&self, method: &str, path_end: &str) -> usize {
        self.requests().iter().filter(|request| request.method == method && request.path.ends_with(path_end)).count()
    }

    pub fn inject_fault(&self, fault: Fault) {
        self.lock().faults.inject(fault);
    }

    /// Ends a fault that lasts until a test ends it.
    pub fn clear_faults(&self) {
        self.lock().faults = Faults::default();
    }

    /// Reports a check of a branch's newest commit.
    pub fn report_check(&self, full_name: &str, branch: &str, name: &str, conclusion: Option<&str>) {
        self.with_repository(full_name, |repository| {
            let head = repository.git.branch_commit(branch).expect("the branch exists");
            let runs = repository.check_runs.entry(head).or_default();
            runs.retain(|run| run.name != name);
            runs.push(CheckRun { name: name.to_owned(), conclusion: conclusion.map(str::to_owned) });
        });
    }

    /// Adds a review: `APPROVED`, `CHANGES_REQUESTED` or `COMMENTED`.
    pub fn add_review(&self, full_name: &str, number: u64, reviewer: &str, review_state: &str) {
        self.with_repository(full_name, |repository| {
            let review = Review { reviewer: reviewer.to_owned(), state: review_state.to_owned() };
            repository.reviews.entry(number).or_default().push(review);
        });
    }

    /// Answers the next reads of pull requests with `mergeable: null`.
    pub fn delay_mergeability(&self, full_name: &str, reads: u32) {
        self.with_repository(full_name, |repository| repository.unknown_mergeability_reads = reads);
    }

    /// Number and state (`open`, `closed`, `merged`) of each pull request.
    pub fn pull_requests(&self, full_name: &str) -> Vec<(u64, String)> {
        self.with_repository(full_name, |repository| {
            repository.pulls.iter().map(|pull| (pull.number, pull.word().to_owned())).collect()
        })
    }

    pub fn requests(&self) -> Vec<ReceivedRequest> {
        self.lock().requests.clone()
    }

    /// Confirms or denies the device logins that wait.
    pub fn answer_device_login(&self, token: Option<&str>) {
        self.lock().device_flow.answer(token);
    }

    fn with_repository<T>(&self, full_name: &str, use_it: impl FnOnce(&mut RepositoryState) -> T) -> T {
        use_it(self.lock().repositories.get_mut(full_name).expect("the repository exists"))
    }

    fn lock(&self) -> MutexGuard<'_, ForgeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
