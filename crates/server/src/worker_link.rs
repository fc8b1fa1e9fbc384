//! Connections to the workers of local sandboxes: the provider dials the worker, then the server serves HTTP on the
//! connection. The connection identifies the sandbox, so there is no token.

use crate::app::notices;
use crate::auth::LinkedWorker;
use crate::egress;
use crate::jobs::dead_worker;
use crate::state::App;
use atoll_core::BoxFuture;
use atoll_core::id::SandboxId;
use atoll_providers::{LinkHost, SandboxNotice};
use axum::Router;
use axum::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tower::ServiceExt;

/// Serves the workers of this machine's sandboxes.
pub struct WorkerLinks {
    app: Weak<App>,
    /// Set only while the server runs, since the router owns the whole server.
    router: Mutex<Option<Router>>,
}

impl WorkerLinks {
    pub fn new(app: &Arc<App>) -> Self {
        Self { app: Arc::downgrade(app), router: Mutex::default() }
    }

    /// Starts serving workers.
    pub fn open_links(&self, router: Router) {
        *self.lock_router() = Some(router);
    }

    /// Stops serving new connections.
    pub fn close_links(&self) {
        *self.lock_router() = None;
    }

    fn lock_router(&self) -> MutexGuard<'_, Option<Router>> {
        self.router.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkHost for WorkerLinks {
    fn serve_connection(
        &self,
        sandbox: SandboxId,
        connection: UnixStream,
        first: Arc<Notify>,
    ) -> BoxFuture<'static, ()> {
        match (self.app.upgrade(), self.lock_router().clone()) {
            (Some(app), Some(router)) => {
                Box::pin(serve_worker(router, sandbox, connection, first, app.stopping.clone()))
            }
            (None, _) | (_, None) => Box::pin(std::future::ready(())),
        }
    }

    fn serve_egress(&self, sandbox: SandboxId, listener: std::net::TcpListener) -> BoxFuture<'static, ()> {
        Box::pin(egress::serve_sandbox(self.app.clone(), sandbox, listener))
    }

    fn report_worker_death(&self, sandbox: SandboxId) {
        if let Some(app) = self.app.upgrade() {
            tokio::spawn(dead_worker::handle_dead_worker(app, sandbox));
        }
    }

    fn report_notice(&self, sandbox: SandboxId, notice: SandboxNotice) {
        if let Some(app) = self.app.upgrade() {
            tokio::spawn(notices::record_notice(app, sandbox, notice));
        }
    }
}

async fn serve_worker(
    router: Router,
    sandbox: SandboxId,
    connection: UnixStream,
    first: Arc<Notify>,
    mut stopping: watch::Receiver<bool>,
) {
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        first.notify_one();
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
