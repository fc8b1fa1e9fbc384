//! A scripted model that runs: where it listens, and what it was asked.

use crate::record::{Book, Request};
use crate::script::{Malformed, Scripts};
use crate::server::{Model, router};
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
    Script(#[from] Malformed),
    #[error("can't listen on {address}: {source}")]
    Listen { address: String, source: io::Error },
    #[error("can't write requests to {file}: {source}", file = file.display())]
    Record { file: PathBuf, source: io::Error },
}

/// Where to listen, and what to write down where.
#[derive(Debug, Clone, Default)]
pub struct Listen {
    pub tcp: Option<SocketAddr>,
    /// A socket file; one that is there already is an error.
    pub unix: Option<PathBuf>,
    /// Gets each request and each end as a line of JSON.
    pub record: Option<PathBuf>,
}

/// Answers until it is dropped; then its connections end too.
pub struct ScriptedModel {
    book: Arc<Book>,
    address: Option<SocketAddr>,
    unix: Option<PathBuf>,
    tasks: Vec<JoinHandle<()>>,
}

impl ScriptedModel {
    /// On a free port of the loopback interface.
    pub async fn start(scripts: Scripts) -> Result<Self, Error> {
        Self::start_on(scripts, Listen { tcp: Some(([127, 0, 0, 1], 0).into()), ..Listen::default() }).await
    }

    pub async fn start_on(scripts: Scripts, listen: Listen) -> Result<Self, Error> {
        let file = listen.record.map(opened).transpose()?;
        let book = Arc::new(Book::new(file));
        let router = router(Arc::new(Model::new(scripts, Arc::clone(&book))));
        let mut model = Self { book, address: None, unix: None, tasks: Vec::new() };
        if let Some(address) = listen.tcp {
            let failed = |source| Error::Listen { address: address.to_string(), source };
            let listener = TcpListener::bind(address).await.map_err(failed)?;
            model.address = Some(listener.local_addr().map_err(failed)?);
            // Streams are many small pieces, each of which somebody waits for.
            let listener = listener.tap_io(|stream| drop(stream.set_nodelay(true)));
            model.tasks.push(tokio::spawn(accept(listener, router.clone())));
        }
        if let Some(path) = listen.unix {
            let failed = |source| Error::Listen { address: path.display().to_string(), source };
            let listener = UnixListener::bind(&path).map_err(failed)?;
            model.unix = Some(path);
            model.tasks.push(tokio::spawn(accept(listener, router)));
        }
        Ok(model)
    }

    /// `http://ADDRESS`, without a path; empty if it listens on a socket file only.
    pub fn base_url(&self) -> String {
        self.address.map(|address| format!("http://{address}")).unwrap_or_default()
    }

    pub fn unix(&self) -> Option<&Path> {
        self.unix.as_deref()
    }

    /// Everything that it was asked so far.
    pub fn requests(&self) -> Vec<Arc<Request>> {
        self.book.after(0)
    }

    /// The first request that is as wanted, now or later; none if the time is over first.
    pub async fn wait_for(&self, wanted: impl Fn(&Request) -> bool + Send, timeout: Duration) -> Option<Arc<Request>> {
        let mut changes = self.book.changes();
        let search = async {
            loop {
                changes.mark_unchanged();
                if let Some(found) = self.requests().into_iter().find(|request| wanted(request)) {
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
        if let Some(path) = &self.unix {
            drop(std::fs::remove_file(path));
        }
    }
}

fn opened(file: PathBuf) -> Result<File, Error> {
    OpenOptions::new().create(true).append(true).open(&file).map_err(|source| Error::Record { file, source })
}

async fn accept(mut listener: impl Listener, router: Router) {
    // The set ends its connections when it is dropped: a model that is gone answers nobody.
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await;
        connections.spawn(serve(stream, router.clone()));
        while connections.try_join_next().is_some() {}
    }
}

/// How a connection ends is the agent's business; what matters of it is in the record.
async fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, router: Router) {
    drop(http1::Builder::new().serve_connection(TokioIo::new(stream), TowerToHyperService::new(router)).await);
}
