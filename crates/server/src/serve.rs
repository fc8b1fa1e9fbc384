//! Starting and stopping: the data directory, the store, the listener, the jobs.

use crate::auth::secret;
use crate::blobs::Blobs;
use crate::gateway::{Gateway, Placeholders};
use crate::guard::Hosts;
use crate::jobs::Runner;
use crate::options::Options;
use crate::providers::Providers;
use crate::state::{App, Parts};
use crate::{listener, router};
use atoll_core::id::{ProjectId, SandboxId, TokenId, UserId};
use atoll_core::principal::Role;
use atoll_core::provider::{Provider, ProviderState, StopMode};
use atoll_core::time::{Clock, SystemClock, Timestamp};
use atoll_store::meta::{self, DirLock};
use atoll_store::projects::{self, Project};
use atoll_store::tokens::{self, Holder, Token};
use atoll_store::users::{self, User};
use atoll_store::{Store, Tx, sandboxes};
use secrecy::ExposeSecret;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("can't use the data directory {path}: {source}; name another one with --data-dir")]
    DataDir { path: PathBuf, source: std::io::Error },
    #[error("can't listen on {address}: {source}; name another address with --listen")]
    Listen { address: SocketAddr, source: std::io::Error },
    #[error("can't use the TLS certificate or key: {0}")]
    Tls(String),
    #[error(transparent)]
    Store(#[from] atoll_store::Error),
}

/// How long open requests may take to end when the server stops.
const GRACE: Duration = Duration::from_secs(5);

/// A running server.
pub struct Server {
    pub address: SocketAddr,
    pub url: String,
    /// Where the admin's token is.
    pub admin_token: PathBuf,
    stop: watch::Sender<bool>,
    serving: JoinHandle<()>,
    jobs: JoinHandle<()>,
    app: Arc<App>,
    providers: Arc<Providers>,
    store: Store,
    _lock: DirLock,
}

impl Server {
    pub async fn start(options: Options) -> Result<Self, Error> {
        Self::start_with_clock(options, Arc::new(SystemClock::start())).await
    }

    /// For tests and simulations, which move the time themselves.
    pub async fn start_with_clock(options: Options, clock: Arc<dyn Clock>) -> Result<Self, Error> {
        prepare_dir(&options.data_dir)?;
        let holder = format!("atoll serve (pid {}, {})", std::process::id(), options.listen);
        let lock = DirLock::take(&options.data_dir, &holder)?;
        let store = Store::open(&options.database).await?;
        let now = clock.now();
        let first = store.write(move |tx| Box::pin(first_start(tx, now))).await?;
        let admin_token = options.data_dir.join("admin-token");
        ensure_admin_token(&store, &admin_token, now).await?;
        let blobs = Blobs::open(&options.data_dir).map_err(|source| data_dir(&options.data_dir, source))?;

        let socket =
            listener::bind(options.listen).map_err(|source| Error::Listen { address: options.listen, source })?;
        let address = socket.local_addr().map_err(|source| Error::Listen { address: options.listen, source })?;
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        let url = format!("{scheme}://{}", reachable(address));
        let server_id = server_id(&options.data_dir).map_err(|source| data_dir(&options.data_dir, source))?;
        let (stop, stopping) = watch::channel(false);
        let parts = Parts {
            store: store.clone(),
            clock,
            blobs,
            deployment: first.deployment,
            default_project: first.project,
            server_id,
            public_url: options.public_url.clone().unwrap_or_else(|| url.clone()),
            stopping: stopping.clone(),
            gateway: Gateway::new(&options.models, &options.outward, first.placeholders),
        };
        let app = Arc::new(App::new(&options, parts));
        // A lost key must not keep everything else from working.
        match crate::app::secrets::learn_all(&store, &app.secrets).await {
            Ok(None) => {}
            Ok(Some(sentence)) => tracing::warn!("{sentence}"),
            Err(problem) => tracing::warn!(detail = problem.detail, "the secrets could not be read"),
        }
        app.egress.set_own(address);
        let providers = Arc::new(Providers::new(&options, &app));
        app.set_providers(Arc::clone(&providers));
        let hosts = Hosts::new(address, &options.hosts, options.public_url.as_deref());
        let router = router::build(Arc::clone(&app), hosts);
        providers.linked().open(router.clone());
        let serving = listener::serve(socket, options.tls.as_ref(), router, stopping).map_err(Error::Tls)?;
        let runner = Runner::new(Arc::clone(&app), Arc::clone(&providers)).run();
        let watching = crate::samples::watch(Arc::clone(&app));
        let jobs = tokio::spawn(async move {
            tokio::join!(runner, watching);
        });
        write_address(&options.data_dir, &url).map_err(|source| data_dir(&options.data_dir, source))?;
        Ok(Self { address, url, admin_token, stop, serving, jobs, app, providers, store, _lock: lock })
    }

    /// Takes no new requests, lets open ones end, lets go of everything.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        let ended = tokio::time::timeout(GRACE, async {
            drop((&mut self.serving).await);
            drop((&mut self.jobs).await);
        });
        if ended.await.is_err() {
            tracing::warn!("some requests did not end in time and were cut off");
            self.serving.abort();
            self.jobs.abort();
        }
        for provider in self.providers.on_this_machine() {
            end_what_has_ended(&self.app, provider).await;
        }
        self.providers.linked().close();
        self.providers.disconnect_all();
        self.app.gateway.settled().await;
        self.store.close().await;
    }
}

/// Sandboxes on this machine that still work outlive the server, and its successor finds them. Of those
/// that have ended only the files may be of use: their processes go.
async fn end_what_has_ended(app: &App, provider: &dyn Provider) {
    let Ok(page) = provider.list(None).await else { return };
    for found in page.items.into_iter().filter(|found| found.state == ProviderState::Running) {
        let Ok(id) = found.id.0.parse::<SandboxId>() else { continue };
        let row = app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, id).await?) })).await;
        if matches!(row, Ok(Some(row)) if row.state.has_ended())
            && let Err(error) = provider.stop(&found.id, StopMode::Force).await
        {
            tracing::warn!(sandbox = %id, %error, "the processes of an ended sandbox can't be ended");
        }
    }
}

fn data_dir(path: &Path, source: std::io::Error) -> Error {
    Error::DataDir { path: path.to_owned(), source }
}

/// Nobody else on the machine looks into it.
fn prepare_dir(path: &Path) -> Result<(), Error> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|source| data_dir(path, source))
}

/// An address that one can connect to on this machine.
fn reachable(address: SocketAddr) -> SocketAddr {
    let mut reachable = address;
    if address.ip().is_unspecified() {
        reachable.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
    }
    reachable
}

struct First {
    deployment: String,
    placeholders: Placeholders,
    project: ProjectId,
}

/// What every deployment has: a name, and a default project so that nobody must make one first.
async fn first_start(tx: &mut dyn Tx, now: Timestamp) -> atoll_store::Result<First> {
    let deployment = match meta::get(tx, "deployment").await? {
        Some(name) => name,
        None => {
            let name = uuid::Uuid::now_v7().to_string();
            meta::set(tx, "deployment", &name).await?;
            name
        }
    };
    let project = match projects::the_default(tx).await? {
        Some(project) => project.id,
        None => {
            let project = Project {
                id: ProjectId::new(),
                name: "default".into(),
                is_default: true,
                repo: None,
                defaults: projects::Defaults::new(),
                budget: None,
                created_at: now,
                updated_at: now,
            };
            projects::insert(tx, &project).await?;
            project.id
        }
    };
    let placeholders = match meta::get(tx, "gateway").await?.as_deref().and_then(Placeholders::read) {
        Some(known) => known,
        None => {
            let made = Placeholders::random();
            meta::set(tx, "gateway", &made.written()).await?;
            made
        }
    };
    Ok(First { deployment, placeholders, project })
}

/// A first admin with a token in a file that only this user can read. Nothing is done when the
/// token in the file still is good.
async fn ensure_admin_token(store: &Store, path: &Path, now: Timestamp) -> Result<(), Error> {
    let known = std::fs::read_to_string(path).ok();
    let shown = known.map(|text| secrecy::SecretString::from(text.trim()));
    if let Some((id, hash)) = shown.as_ref().and_then(secret::parse) {
        let row = store.read(move |tx| Box::pin(async move { tokens::get(tx, id).await })).await?;
        if row.is_some_and(|row| secret::same(&row.hash, &hash)) {
            return Ok(());
        }
    }
    let made = store.write(move |tx| Box::pin(make_admin(tx, now))).await?;
    let beside = path.with_extension("new");
    let write = || -> std::io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        writeln!(file, "{}", made.token.expose_secret())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    write().map_err(|source| data_dir(path, source))
}

async fn make_admin(tx: &mut dyn Tx, now: Timestamp) -> atoll_store::Result<secret::NewSecret> {
    let admins = users::list(tx, None, 200).await?;
    let user = match admins.into_iter().find(|user| user.role == Role::Admin) {
        Some(user) => user.id,
        None => {
            let user =
                User { id: UserId::new(), name: "admin".into(), role: Role::Admin, created_at: now, updated_at: now };
            users::insert(tx, &user).await?;
            user.id
        }
    };
    let id = TokenId::new();
    let made = secret::generate(id);
    let token = Token {
        id,
        name: "first admin".into(),
        hash: made.hash.clone(),
        holder: Holder::User { id: user, role: Role::Admin },
        created_at: now,
        expires_at: None,
    };
    tokens::insert(tx, &token).await?;
    Ok(made)
}

/// The name of this data directory, made once. Two servers on one database have one each.
fn server_id(data_dir: &Path) -> std::io::Result<String> {
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

/// Where the command line on the same machine finds this server.
fn write_address(data_dir: &Path, url: &str) -> std::io::Result<()> {
    let beside = data_dir.join("server.new");
    std::fs::write(&beside, format!("{url}\n"))?;
    std::fs::rename(beside, data_dir.join("server"))
}
