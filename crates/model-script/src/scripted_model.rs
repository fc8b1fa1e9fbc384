//! A running scripted model.

use crate::request_log::{RecordedRequest, RequestLog};
use crate::script::{ScriptError, Scripts};
use crate::server::{ModelServer, build_router};
use axum::Router;
use axum::serve::{Listener, ListenerExt};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::{JoinHandle, JoinSet};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Script(#[from] ScriptError),
    #[error("cannot listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("cannot write requests to {file}: {source}", file = file.display())]
    Record { file: PathBuf, source: io::Error },
}

/// The addresses to listen on and the record file.
#[derive(Debug, Clone, Default)]
pub struct ListenOptions {
    pub tcp: Option<SocketAddr>,
    /// A Unix socket; an existing file is an error.
    pub unix_socket: Option<PathBuf>,
    /// Receives each request and outcome as a line of JSON.
    pub record_file: Option<PathBuf>,
}

/// Serves until it is dropped; then its connections close.
pub struct ScriptedModel {
    log: Arc<RequestLog>,
    address: Option<SocketAddr>,
    unix_socket_path: Option<PathBuf>,
    tasks: Vec<JoinHandle<()>>,
}

impl ScriptedModel {
    /// Starts on a free loopback port.
    pub async fn start(scripts: Scripts) -> Result<Self, Error> {
        Self::start_with(scripts, ListenOptions { tcp: Some(([127, 0, 0, 1], 0).into()), ..ListenOptions::default() })
            .await
    }

    pub async fn start_with(scripts: Scripts, listen: ListenOptions) -> Result<Self, Error> {
        let file = listen.record_file.map(open_record_file).transpose()?;
        let book = Arc::new(RequestLog::new(file));
        let router = build_router(Arc::new(ModelServer::new(scripts, Arc::clone(&book))));
        let mut model = Self { log: book, address: None, unix_socket_path: None, tasks: Vec::new() };
        if let Some(address) = listen.tcp {
            let failed = |source| Error::Listen { address: address.to_string(), source };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            model.address = Some(listener.local_addr().map_err(failed)?);
            // Streams consist of many small pieces that must arrive at once.
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            model.tasks.push(tokio::spawn(accept_connections(listener, router.clone())));
        }
        if let Some(path) = listen.unix_socket {
            let failed = |source| Error::Listen { address: path.display().to_string(), source };
            let listener = UnixListener::bind(&path).map_err(failed)?;
            model.unix_socket_path = Some(path);
            model.tasks.push(tokio::spawn(accept_connections(listener, router)));
        }
        Ok(model)
    }

    /// `http://ADDRESS` without a path; empty without a TCP listener.
    pub fn base_url(&self) -> String {
        self.address.map(|address| format!("http://{address}")).unwrap_or_default()
    }

    pub fn unix_socket(&self) -> Option<&Path> {
        self.unix_socket_path.as_deref()
    }

    /// All requests so far.
    pub fn requests(&self) -> Vec<Arc<RecordedRequest>> {
        self.log.requests_after(0)
    }

    /// Waits for the first request that matches `wanted`; `None` after the time-out.
    pub async fn wait_for_request(
        &self,
        matches: impl Fn(&RecordedRequest) -> bool + Send,
        timeout: Duration,
    ) -> Option<Arc<RecordedRequest>> {
        let mut changes = self.log.subscribe_changes();
        let search = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = self.requests().into_iter().find(|request| matches(request)) {
                    return Some(found);
                }
                changes.changed().await.ok()?;
            }
        };
        tokio::time::timeout(timeout, search).await.ok().flatten()
    }
}

impl Drop for ScriptedModel {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        if let Some(path) = &self.unix_socket_path {
            drop(std::fs::remove_file(path));
        }
    }
}

fn open_record_file(file: PathBuf) -> Result<File, Error> {
    OpenOptions::new().create(true).append(true).open(&file).map_err(|source| Error::Record { file, source })
}

async fn accept_connections(mut listener: impl Listener, router: Router) {
    // Dropping the set closes its connections.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await;
        connections.spawn(serve_connection(stream, router.clone()));
        while connections.try_join_next().is_some() {}
    }
}

/// Serves one connection. The log records its outcome.
async fn serve_connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await);
}
