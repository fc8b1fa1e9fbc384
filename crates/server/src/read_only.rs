//! A server that only reads the store, for commands on a machine where no server runs. It has no jobs and no providers, and
//! takes no lock, so a server can start beside it.

use crate::blobs::Blobs;
use crate::connections::Connections;
use crate::gateway::Gateway;
use crate::guard::Hosts;
use crate::options::Options;
use crate::page::Page;
use crate::problem::{Code, Problem};
use crate::serve::{Error, data_dir_error, initialize_deployment, load_server_id};
use crate::state::{App, AppParts};
use crate::{listener, router};
use atoll_core::time::{Clock, SystemClock};
use atoll_store::Store;
use axum::extract::Request;
use axum::http::Method;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// A few commands of one process use the server.
const MAX_CONNECTIONS: usize = 16;

/// A running read-only server on a loopback port; dropping it ends it.
pub struct ReadOnlyServer {
    pub url: String,
    /// The file that holds the admin's token.
    pub admin_token: PathBuf,
    serving: JoinHandle<()>,
    _stop: watch::Sender<bool>,
}

impl ReadOnlyServer {
    /// Opens the store of an earlier server.
    pub async fn start(options: &Options) -> Result<Self, Error> {
        let data_dir = &options.config.data_dir;
        let clock = Arc::new(SystemClock::start());
        let store = Store::open_read_only(&options.store_location()).await?;
        let now = clock.now();
        // An earlier server has stored the record, so this writes nothing.
        let first = store.read(async move |tx| initialize_deployment(tx, now).await).await?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let socket = listener::bind_socket(address).map_err(|source| Error::Listen { address, source })?;
        let address = socket.local_addr().map_err(|source| Error::Listen { address, source })?;
        let url = format!("http://{address}");
        let server_id = load_server_id(data_dir).map_err(|source| data_dir_error(data_dir, source))?;
        let (stop, stopping) = watch::channel(false);
        let parts = AppParts {
            store,
            clock,
            blobs: Blobs::open_read_only(data_dir),
            deployment: first.deployment,
            default_project: first.project,
            server_id,
            public_url: url.clone(),
            stopping: stopping.clone(),
            gateway: Gateway::new(&options.config, &options.no_proxy, first.placeholders),
        };
        let app = Arc::new(App::new(options, parts));
        let router = router::build_router(app, Hosts::new(address, &[], None), Page::new(&[]))
            .layer(middleware::from_fn(refuse_changes));
        let connections = Arc::new(Connections::new(MAX_CONNECTIONS));
        let serving = listener::serve_router(socket, None, router, connections, stopping).map_err(Error::Tls)?;
        Ok(Self { url, admin_token: data_dir.join("admin-token"), serving, _stop: stop })
    }
}

impl Drop for ReadOnlyServer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn refuse_changes(request: Request, next: Next) -> Response {
    if matches!(*request.method(), Method::GET | Method::HEAD) {
        return next.run(request).await;
    }
    let detail = "no server runs, and this command only reads the store; start a server with `atoll serve`";
    Problem::new(Code::StoreUnavailable, detail).into_response()
}
