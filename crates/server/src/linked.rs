//! The link of workers in local sandboxes: this side dials, and then serves HTTP on the connection.
//! Nobody shows a token there; the connection itself says which sandbox speaks.

use crate::app::notices;
use crate::auth::LinkedWorker;
use crate::egress;
use crate::jobs::gone;
use crate::state::App;
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_providers::{LinkHost, Notice};
use atoll_worker::link::{Dial, Io};
use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tower::ServiceExt;

/// What an in-memory connection holds in each direction.
const DUPLEX: usize = 64 << 10;

/// Answers the workers of this machine's sandboxes.
pub struct Linked {
    app: Weak<App>,
    /// The router holds the whole server: it is here only while that runs.
    router: Mutex<Option<Router>>,
}

impl Linked {
    pub fn new(app: &Arc<App>) -> Self {
        Self { app: Arc::downgrade(app), router: Mutex::default() }
    }

    /// From now on workers are answered.
    pub fn open(&self, router: Router) {
        *self.locked() = Some(router);
    }

    /// From now on nobody is answered any more.
    pub fn close(&self) {
        *self.locked() = None;
    }

    fn locked(&self) -> MutexGuard<'_, Option<Router>> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A way in for what a dead worker left: the same requests, without a wire.
    pub fn inward(&self, sandbox: SandboxId) -> Option<Arc<dyn Dial>> {
        let (app, router) = (self.app.upgrade()?, self.locked().clone()?);
        Some(Arc::new(Inward { sandbox, router, stopping: app.stopping.clone() }))
    }
}

impl LinkHost for Linked {
    fn serve(&self, sandbox: SandboxId, connection: UnixStream, first: Arc<Notify>) -> BoxFuture<'static, ()> {
        match (self.app.upgrade(), self.locked().clone()) {
            (Some(app), Some(router)) => {
                Box::pin(serve(router, sandbox, connection, Some(first), app.stopping.clone()))
            }
            (None, _) | (_, None) => Box::pin(std::future::ready(())),
        }
    }

    fn outward(&self, sandbox: SandboxId, listener: std::net::TcpListener) -> BoxFuture<'static, ()> {
        Box::pin(egress::serve(self.app.clone(), sandbox, listener))
    }

    fn worker_gone(&self, sandbox: SandboxId) {
        if let Some(app) = self.app.upgrade() {
            tokio::spawn(gone::worker_gone(app, sandbox));
        }
    }

    fn notice(&self, sandbox: SandboxId, notice: Notice) {
        if let Some(app) = self.app.upgrade() {
            tokio::spawn(notices::write_down(app, sandbox, notice));
        }
    }
}

async fn serve<I>(
    router: Router,
    sandbox: SandboxId,
    connection: I,
    first: Option<Arc<Notify>>,
    mut stopping: watch::Receiver<bool>,
) where
    I: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        if let Some(first) = &first {
            first.notify_one();
        }
        request.extensions_mut().insert(LinkedWorker(sandbox));
        router.clone().oneshot(request.map(Body::new))
    });
    let serving = http1::Builder::new().serve_connection(TokioIo::new(connection), service).with_upgrades();
    tokio::pin!(serving);
    let stopped = async { drop(stopping.wait_for(|stop| *stop).await) };
    let ended = tokio::select! {
        ended = &mut serving => ended,
        () = stopped => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%sandbox, %error, "a worker's connection ended");
    }
}

struct Inward {
    sandbox: SandboxId,
    router: Router,
    stopping: watch::Receiver<bool>,
}

impl std::fmt::Debug for Inward {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "this server, for {}", self.sandbox)
    }
}

impl Dial for Inward {
    fn dial(&self) -> BoxFuture<'_, io::Result<Box<dyn Io>>> {
        let (ours, theirs) = tokio::io::duplex(DUPLEX);
        tokio::spawn(serve(self.router.clone(), self.sandbox, ours, None, self.stopping.clone()));
        Box::pin(std::future::ready(Ok(Box::new(theirs) as Box<dyn Io>)))
    }

    fn host_header(&self) -> &str {
        "localhost"
    }

    fn prefix(&self) -> &str {
        ""
    }

    fn dies_silently(&self) -> bool {
        false
    }
}
