//! Starts and stops the server: data directory, store, listener and jobs.

use crate::app::sign_ins;
use crate::auth::{self, Caller, token_format};
use crate::blobs::Blobs;
use crate::connections::Connections;
use crate::data_dir::secure_data_dir;
use crate::gateway::{Gateway, Placeholders};
use crate::guard::Hosts;
use crate::jobs::Runner;
use crate::jobs::task_dispatcher::TaskDispatcher;
use crate::options::Options;
use crate::page::Page;
use crate::providers::Providers;
use crate::state::{App, AppParts};
use crate::{listener, router};
use atoll_core::id::{ProjectId, SandboxId, TokenId, UserId};
use atoll_core::principal::Role;
use atoll_core::provider::{Provider, ProviderState};
use atoll_core::time::{Clock, SystemClock, Timestamp};
use atoll_store::meta::{self, DataDirLock};
use atoll_store::projects::{self, ProjectRow};
use atoll_store::tokens::{self, TokenHolder, TokenRow};
use atoll_store::users::{self, UserRow};
use atoll_store::{DatabaseHold, Store, Tx, jobs, sandboxes};
use secrecy::ExposeSecret;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use the data directory {path}: {source}; name another one with --data-dir")]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error("cannot listen on {address}: {source}; name another address with --listen")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("cannot use the TLS certificate or key: {0}")]
    Tls(String),
    #[error(transparent)]
    Store(#[from] atoll_store::Error),
}

/// Time for open requests to end at shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub url: String,
    /// The file that holds the admin's token.
    pub admin_token: PathBuf,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    jobs: JoinHandle<()>,
    app: Arc<App>,
    providers: Arc<Providers>,
    store: Store,
    hold: DatabaseHold,
    _lock: DataDirLock,
}

impl Server {
    pub async fn start(options: Options) -> Result<Self, Error> {
        Self::start_with_clock(options, Arc::new(SystemClock::start())).await
    }

    /// Starts with a given clock, for tests and simulations.
    pub async fn start_with_clock(options: Options, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        let data_dir = &options.config.data_dir;
        secure_data_dir(data_dir).map_err(|source| data_dir_error(data_dir, source))?;
        let holder = describe_holder(&options);
        let lock = DataDirLock::acquire(data_dir, &holder)?;
        let (store, hold) = Store::open_exclusively(&options.store_location(), &holder).await?;
        let now = clock.now();
        let first = store.write(async move |tx| initialize_deployment(tx, now).await).await?;
        // Before the first request, which can claim a job of its own.
        store.write(async move |tx| jobs::release_all_claims(tx).await).await?;
        let admin_token = options.config.data_dir.join("admin-token");
        ensure_admin_token(&store, &admin_token, now).await?;
        let blobs =
            Blobs::open(&options.config.data_dir).map_err(|source| data_dir_error(&options.config.data_dir, source))?;

        let socket = listener::bind_socket(options.config.server.listen)
            .map_err(|source| Error::Listen { address: options.config.server.listen, source })?;
        let address =
            socket.local_addr().map_err(|source| Error::Listen { address: options.config.server.listen, source })?;
        let tls = options.config.server.tls();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", connectable_address(address));
        let server_id = load_server_id(&options.config.data_dir)
            .map_err(|source| data_dir_error(&options.config.data_dir, source))?;
        let (stop, stopping) = watch::channel(false);
        let parts = AppParts {
            store: store.clone(),
            clock,
            blobs,
            deployment: first.deployment,
            default_project: first.project,
            server_id,
            public_url: options.config.server.public_url.clone().unwrap_or_else(|| url.clone()),
            stopping: stopping.clone(),
            gateway: Gateway::new(&options.config, &options.no_proxy, first.placeholders),
        };
        let app = Arc::new(App::new(&options, parts));
        // A lost sealing key must not prevent the start.
        match crate::app::secrets::teach_redactor(&store, &app.secrets).await {
            Ok(None) => {}
            Ok(Some(sentence)) => tracing::warn!("{sentence}"),
            Err(problem) => tracing::warn!(detail = problem.detail, "failed to read the secrets"),
        }
        match crate::forge_logins::teach_redactor(&store, &app.secrets).await {
            Ok(0) => {}
            Ok(count) => tracing::warn!(count, "cannot open logins at forges; their users must log in again"),
            Err(problem) => tracing::warn!(detail = problem.detail, "failed to read the logins at forges"),
        }
        app.egress.set_server_address(address);
        let providers = Arc::new(Providers::new(&options, &app));
        app.set_providers(Arc::clone(&providers));
        let hosts = Hosts::new(address, &options.config.server.hosts, options.config.server.public_url.as_deref());
        let router = router::build_router(Arc::clone(&app), hosts, Page::new(options.page));
        providers.linked().open_links(router.clone());
        let most = listener::fit_connections(options.config.limits.max_connections);
        let connections = Arc::new(Connections::new(most));
        let serving =
            listener::serve_router(socket, tls.as_ref(), router, connections, stopping).map_err(Error::Tls)?;
        let runner = Runner::new(Arc::clone(&app), Arc::clone(&providers)).run();
        let watching = crate::samples::run_sampler(Arc::clone(&app));
        let conducting = crate::conductor::run_conductor(Arc::clone(&app));
        let dispatching = TaskDispatcher::new(Arc::clone(&app)).run();
        let guardian = crate::jobs::run_guardian(Arc::clone(&app));
        let jobs = tokio::spawn(async move {
            tokio::join!(runner, watching, conducting, dispatching, guardian);
        });
        write_address(&options.config.data_dir, &url)
            .map_err(|source| data_dir_error(&options.config.data_dir, source))?;
        Ok(Self { address, url, admin_token, stop, serving, jobs, app, providers, store, hold, _lock: lock })
    }

    /// Issues a link that signs a browser in once, with the rights of the admin's token.
    pub async fn issue_sign_in_link(&self) -> Option<String> {
        let token = std::fs::read_to_string(&self.admin_token).ok()?;
        let principal = auth::authenticate(&self.app, &token.trim().into()).await.ok()?;
        let link = sign_ins::issue_link(&self.app, Caller { principal, is_local: true, sign_in: None }).ok()?;
        Some(format!("{}{}", self.url, link.path))
    }

    /// Stops accepting requests, waits for open ones and closes everything.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(SHUTDOWN_GRACE, async {
            drop((&mut self.serving).await);
            drop((&mut self.jobs).await);
        });
        if ended.await.is_err() {
            tracing::warn!("aborted requests that did not end in time");
            self.serving.abort();
            self.jobs.abort();
        }
        for provider in self.providers.with_local_workers() {
            stop_ended_sandboxes(&self.app, &**provider).await;
        }
        self.providers.linked().close_links();
        self.providers.disconnect_all();
        self.app.gateway.wait_until_settled().await;
        self.app.telemetry.stop().await;
        self.store.close().await;
        self.hold.release().await;
    }
}

/// Describes this server for the error message of a second one.
fn describe_holder(options: &Options) -> String {
    let machine = rustix::system::uname();
    let name = machine.nodename().to_string_lossy();
    format!("{} (pid {} on {name}, {})", options.command, std::process::id(), options.config.server.listen)
}

/// Stops the processes of ended sandboxes. Running sandboxes outlive the server, and the next server adopts them.
async fn stop_ended_sandboxes(app: &App, provider: &dyn Provider) {
    let Ok(page) = provider.list(None).await else { return };
    for found in page.items.into_iter().filter(|found| found.state == ProviderState::Running) {
        let Ok(id) = found.id.0.parse::<SandboxId>() else { continue };
        let row = app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, id).await?)).await;
        if matches!(row, Ok(Some(row)) if row.state.has_ended())
            && let Err(error) = provider.stop(&found.id).await
        {
            tracing::warn!(sandbox = %id, %error, "failed to stop an ended sandbox's processes");
        }
    }
}

pub(crate) fn data_dir_error(path: &Path, source: std::io::Error) -> Error {
    Error::DataDir { path: path.to_owned(), source }
}

/// Replaces an unspecified address by loopback.
fn connectable_address(address: SocketAddr) -> SocketAddr {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    reachable
}

pub(crate) struct DeploymentRecord {
    pub(crate) deployment: String,
    pub(crate) placeholders: Placeholders,
    pub(crate) project: ProjectId,
}

/// Reads or creates the deployment's id, default project and gateway key.
pub(crate) async fn initialize_deployment(tx: &mut dyn Tx, now: Timestamp) -> atoll_store::Result<DeploymentRecord> {
    let deployment = match meta::find_meta_value(tx, "deployment").await? {
        Some(name) => name,
        None => {
            let name = uuid::Uuid::now_v7().to_string();
            meta::set_meta_value(tx, "deployment", &name).await?;
            name
        }
    };
    let project = match projects::find_default_project(tx).await? {
        Some(project) => project.id,
        None => {
            let project = ProjectRow {
                id: ProjectId::new(),
                name: "default".into(),
                is_default: true,
                repo: None,
                defaults: projects::DefaultsJson::new(),
                budget: None,
                created_at: now,
                updated_at: now,
            };
            projects::insert_project(tx, &project).await?;
            project.id
        }
    };
    let placeholders = match meta::find_meta_value(tx, "gateway").await?.as_deref().and_then(Placeholders::decode) {
        Some(known) => known,
        None => {
            let generated = Placeholders::generate();
            meta::set_meta_value(tx, "gateway", &generated.encode()).await?;
            generated
        }
    };
    Ok(DeploymentRecord { deployment, placeholders, project })
}

/// Ensures that the admin token file holds a valid token.
async fn ensure_admin_token(store: &Store, path: &Path, now: Timestamp) -> Result<(), Error> {
    let known = std::fs::read_to_string(path).ok();
    let token = known.map(|text| secrecy::SecretString::from(text.trim()));
    if let Some((id, hash)) = token.as_ref().and_then(token_format::parse_token) {
        let row = store.read(async move |tx| tokens::find_token(tx, id).await).await?;
        if row.is_some_and(|row| token_format::equal_hashes(&row.hash, &hash)) {
            return Ok(());
        }
    }
    let new_token = store.write(async move |tx| create_admin_token(tx, now).await).await?;
    let beside = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        writeln!(file, "{}", new_token.token.expose_secret())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|source| data_dir_error(path, source))
}

async fn create_admin_token(tx: &mut dyn Tx, now: Timestamp) -> atoll_store::Result<token_format::IssuedToken> {
    let admins = users::list_users(tx, None, 200).await?;
    let user = match admins.into_iter().find(|user| user.role == Role::Admin) {
        Some(user) => user.id,
        None => {
            let user = UserRow {
                id: UserId::new(),
                name: "admin".into(),
                role: Role::Admin,
                created_at: now,
                updated_at: now,
            };
            users::insert_user(tx, &user).await?;
            user.id
        }
    };
    let id = TokenId::new();
    let new_token = token_format::generate_token(id);
    let token = TokenRow {
        id,
        name: "first admin".into(),
        hash: new_token.hash.clone(),
        holder: TokenHolder::User { id: user, role: Role::Admin },
        created_at: now,
        expires_at: None,
    };
    tokens::insert_token(tx, &token).await?;
    Ok(new_token)
}

/// Reads or creates this data directory's id. Servers that share a database have different ids.
pub(crate) fn load_server_id(data_dir: &Path) -> std::io::Result<String> {
    let file = data_dir.join("server-id");
    match std::fs::read_to_string(&file) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(_) | Err(_) => {}
    }
    let name = uuid::Uuid::now_v7().to_string();
    let beside = data_dir.join("server-id.new");
    std::fs::write(&beside, format!("{name}\n"))?;
    std::fs::rename(beside, file)?;
    Ok(name)
}

/// Writes the server's URL for the command line on this machine.
fn write_address(data_dir: &Path, url: &str) -> std::io::Result<()> {
    let beside = data_dir.join("server.new");
    std::fs::write(&beside, format!("{url}\n"))?;
    std::fs::rename(beside, data_dir.join("server"))
}
