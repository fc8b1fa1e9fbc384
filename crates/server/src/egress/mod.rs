//! What leaves a sandbox. It has a network of its own with nothing in it but a socket, and this is that socket's other
//! end: a proxy for HTTP, CONNECT and SOCKS.
//!
//! ```text
//! program ─► 127.0.0.1:7709 ─► http | socks ─► outlet: may it? ─► connect: where is it, is that public? ─► tunnel
//! ```
//!
//! The pure rules stand beside: `atoll_core::network` (names and policies), `addresses`, `tls`, `headers`, `quiet`.
//! What is deliberately absent: nothing is decrypted, and nothing of what passes is kept but how much it was.

mod addresses;
mod connect;
mod counts;
pub mod headers;
mod http;
mod leaving;
mod outlet;
pub mod quiet;
mod refusal;
mod socks;
pub mod stream;
mod tls;
mod tunnel;
pub mod upstream;

pub use counts::Traffic;

use crate::gateway;
use crate::options::Outward;
use crate::state::App;
use atoll_core::event::{NewEvent, kind};
use atoll_core::id::SandboxId;
use atoll_core::sandbox::Network;
use atoll_store::sandboxes;
use connect::Connector;
use outlet::{Outlet, Way};
use refusal::Refusal;
use serde_json::json;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use stream::{Prefixed, watched};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use upstream::Upstream;

/// Connections of all sandboxes at once: each takes two descriptors of the server's.
const CONNECTIONS: usize = 4096;
/// Sandboxes whose figures are remembered.
const MOST_OUTLETS: usize = 10_000;
/// For the first byte of a connection.
const FIRST: Duration = Duration::from_secs(60);
/// After a failure to accept: descriptors may have run out for a moment.
const PAUSE: Duration = Duration::from_millis(100);
/// No method is longer; what begins otherwise is no HTTP.
const LONGEST_METHOD: usize = 64;
/// The longest text of an event's host, which may be anything that a program made up.
const LONGEST_HOST: usize = 255;

pub struct Egress {
    connector: Connector,
    most: u64,
    outlets: Mutex<HashMap<SandboxId, Arc<Outlet>>>,
    connections: Arc<Semaphore>,
}

/// The proxy that this server itself must use.
pub fn proxy_of(options: &Outward) -> Option<Upstream> {
    options.upstream_proxy.as_ref().and_then(|url| Upstream::parse(url, &options.no_proxy))
}

impl Egress {
    pub fn new(options: &Outward) -> Self {
        let upstream = proxy_of(options);
        if options.upstream_proxy.is_some() && upstream.is_none() {
            tracing::warn!("the proxy that this server should use is not a http:// URL; it goes without it");
        }
        Self {
            connector: Connector::new(options.allow_private.clone(), upstream),
            most: options.max_bytes,
            outlets: Mutex::default(),
            connections: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }

    /// Where this server listens: no sandbox gets there.
    pub fn set_own(&self, address: SocketAddr) {
        self.connector.set_own(address);
    }

    /// A policy that is stored now. It counts at once.
    pub fn set(&self, sandbox: SandboxId, version: i64, network: Option<&Network>) {
        if let Some(outlet) = self.known(sandbox) {
            outlet.set(version, network);
        }
    }

    /// What went where, busiest first, and all together.
    pub fn traffic(&self, sandbox: SandboxId) -> Vec<Traffic> {
        self.known(sandbox).map(|outlet| outlet.traffic()).unwrap_or_default()
    }

    /// All that went through, in both directions.
    pub fn bytes(&self, sandbox: SandboxId) -> u64 {
        self.known(sandbox).map_or(0, |outlet| outlet.total().bytes())
    }

    fn known(&self, sandbox: SandboxId) -> Option<Arc<Outlet>> {
        self.outlets.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).cloned()
    }

    fn outlet(&self, sandbox: SandboxId) -> Arc<Outlet> {
        let mut outlets = self.outlets.lock().unwrap_or_else(PoisonError::into_inner);
        if outlets.len() >= MOST_OUTLETS && !outlets.contains_key(&sandbox) {
            outlets.retain(|_, outlet| Arc::strong_count(outlet) > 1);
        }
        let made = outlets.entry(sandbox).or_insert_with(|| Arc::new(Outlet::new(sandbox, self.most)));
        Arc::clone(made)
    }
}

/// What every connection of one sandbox needs.
pub struct Service {
    app: Weak<App>,
    egress: Arc<Egress>,
    outlet: Arc<Outlet>,
}

/// Serves one sandbox's socket until it is dropped; everything of it ends with it.
pub async fn serve(app: Weak<App>, sandbox: SandboxId, listener: TcpListener) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(%sandbox, %error, "a sandbox's way out can't be used"),
    };
    let Some(egress) = app.upgrade().map(|app| Arc::clone(&app.egress)) else { return };
    // In this order: a change from here on finds the outlet, and an older reading does not undo it.
    let outlet = egress.outlet(sandbox);
    load(&app, &outlet).await;
    let service = Arc::new(Service { app, egress, outlet });
    let mut open = JoinSet::new();
    loop {
        let Ok(one) = Arc::clone(&service.outlet.connections).acquire_owned().await else { return };
        let Ok(of_all) = Arc::clone(&service.egress.connections).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = Arc::clone(&service);
                open.spawn(async move {
                    let _counted = (one, of_all);
                    carry(&service, stream).await;
                });
            }
            Err(error) => {
                tracing::warn!(%sandbox, %error, "failed to accept a connection from a sandbox");
                tokio::time::sleep(PAUSE).await;
            }
        }
        while open.try_join_next().is_some() {}
    }
}

/// The stored policy. Until it is read, nothing leaves.
async fn load(app: &Weak<App>, outlet: &Outlet) {
    let sandbox = outlet.sandbox;
    loop {
        let Some(app) = app.upgrade() else { return };
        match app.read(move |tx| Box::pin(async move { Ok(sandboxes::get(tx, sandbox).await?) })).await {
            Ok(Some(row)) => return outlet.set(row.version, row.settings.network.as_ref()),
            Ok(None) => return tracing::warn!(%sandbox, "a sandbox that nobody knows has no way out"),
            Err(problem) => {
                tracing::warn!(%sandbox, detail = %problem.detail, "a network policy can't be read; trying again");
            }
        }
        drop(app);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn carry(service: &Arc<Service>, stream: TcpStream) {
    let mut first = [0];
    match tokio::time::timeout(FIRST, stream.peek(&mut first)).await {
        Ok(Ok(1)) => {}
        Ok(_) | Err(_) => return,
    }
    drop(stream.set_nodelay(true));
    if first[0] == socks::VERSION {
        return socks::serve(service, stream).await;
    }
    match tokio::time::timeout(FIRST, opening(stream)).await {
        Ok(Ok((read, stream, true))) => {
            let stream = Box::new(Prefixed::new(read, Box::new(stream)));
            gateway::serve(service.app.clone(), service.outlet.sandbox, stream).await;
        }
        Ok(Ok((read, stream, false))) => {
            let (stream, peer) = watched(stream);
            http::serve(service, Box::new(Prefixed::new(read, Box::new(stream))), peer).await;
        }
        Ok(Err(_)) | Err(_) => {}
    }
}

/// Reads as much as it takes to know whether the first request names a path of this very server, as one to the model
/// gateway does, or a whole URL or host, as those to a proxy do.
async fn opening(mut stream: TcpStream) -> io::Result<(Vec<u8>, TcpStream, bool)> {
    let mut read = Vec::with_capacity(LONGEST_METHOD);
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let after_method = read.iter().position(|byte| *byte == b' ').map(|space| read.get(space + 1));
        let is_path = match after_method {
            Some(Some(byte)) => *byte == b'/',
            None if read.len() >= LONGEST_METHOD => false,
            Some(None) | None => continue,
        };
        return Ok((read, stream, is_path));
    }
}

impl Service {
    fn connector(&self) -> &Connector {
        &self.egress.connector
    }

    /// If that was why a connection ended, it is told.
    fn note_cap(&self, way: &Way) {
        if let Err(refusal @ Refusal::Cap { .. }) = self.outlet.check(&way.target) {
            self.refused(&way.target.host.to_string(), way.target.port, &refusal);
        }
    }

    /// Counts a refusal, and writes it to the sandbox's log if it is not there already.
    fn refused(&self, host: &str, port: u16, refusal: &Refusal) {
        let host: String = host.chars().filter(|it| !it.is_control()).take(LONGEST_HOST).collect();
        let Some(count) = self.outlet.refused(&host, port, refusal) else { return };
        let sandbox = self.outlet.sandbox;
        let place = if port == 0 { host.clone() } else { format!("{host}:{port}") };
        let detail = refusal.sentence(sandbox, &place);
        let data = json!({ "host": host, "port": port, "reason": refusal.code(), "count": count, "detail": detail });
        let Some(app) = self.app.upgrade() else { return };
        tokio::spawn(async move {
            let logged = app.write(move |work| {
                Box::pin(async move {
                    let (_, mut row) = work.locked(sandbox).await?;
                    if row.state.is_live() {
                        let event = NewEvent::system(kind::NETWORK_REFUSED, work.now, &data);
                        work.log(&mut row, vec![event]).await?;
                        sandboxes::update(work.tx, &mut row).await?;
                    }
                    Ok(())
                })
            });
            if let Err(problem) = logged.await {
                tracing::warn!(%sandbox, detail = %problem.detail, "a refused connection could not be logged");
            }
        });
    }
}
