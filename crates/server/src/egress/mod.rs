//! The egress proxy. A sandbox's network namespace has one listening socket and no route; this proxy accepts its
//! connections and speaks HTTP, CONNECT and SOCKS.
//!
//! ```text
//! program ─► 127.0.0.1:7709 ─► http_proxy | socks ─► sandbox_egress: policy ─► connector: DNS, public address ─► tunnel
//! ```
//!
//! Pure rules: `atoll_core::network` (names and policies), `public_addresses`, `client_hello`, `opening`,
//! `connection_pool`, `hop_headers`, `refusal_throttle`. The proxy decrypts nothing and records only byte counts.

mod client_hello;
mod connection_pool;
mod connector;
mod disconnect;
mod egress_refusal;
pub mod hop_headers;
mod http_proxy;
mod opening;
mod public_addresses;
pub mod refusal_throttle;
mod sandbox_egress;
mod socks;
pub mod stream;
mod traffic;
mod tunnel;
pub mod upstream_proxy;

pub use refusal_throttle::RefusedHost;

use crate::gateway::{self, DownloadCounter};
use crate::state::App;
use atoll_api::events::{EventData, NetworkRefused};
use atoll_config::{self as config, Config};
use atoll_core::id::SandboxId;
use atoll_core::network::NetworkTarget;
use atoll_core::sandbox::Network;
use atoll_store::sandboxes;
use connection_pool::ConnectionPool;
use connector::Connector;
use egress_refusal::EgressRefusal;
pub use egress_refusal::REFUSAL_CODES;
use sandbox_egress::{ConnectionMeter, EgressLimits, SandboxEgress};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;
use stream::{Prefixed, split_watched};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
pub use upstream_proxy::UpstreamProxy;

/// Concurrent connections of all sandboxes, without their guaranteed ones; each takes two file descriptors.
const MAX_CONNECTIONS: usize = 4096;
/// Concurrent connections of one sandbox; more wait in the socket's backlog.
const MAX_SANDBOX_CONNECTIONS: usize = 256;
/// Sandboxes whose traffic counts are cached.
const MAX_CACHED_SANDBOXES: usize = 10_000;
/// Deadline for the first byte of a connection.
const FIRST_BYTE_TIMEOUT: Duration = Duration::from_secs(60);
/// Delay after a failed accept, such as for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Longest HTTP method to expect.
const MAX_METHOD_BYTES: usize = 64;
/// Longest host name in an event, since a program can send any text.
const MAX_HOST_CHARS: usize = 255;

pub struct Egress {
    connector: Connector,
    limits: EgressLimits,
    sandboxes: Mutex<HashMap<SandboxId, Arc<SandboxEgress>>>,
    connections: Arc<ConnectionPool>,
}

/// The proxy between this server and the Internet.
pub fn parse_upstream_proxy(network: &config::Network, no_proxy: &str) -> Option<UpstreamProxy> {
    network.upstream_proxy.as_ref().and_then(|url| UpstreamProxy::parse(url, no_proxy))
}

impl Egress {
    pub fn new(config: &Config, no_proxy: &str) -> Self {
        let network = &config.network;
        let upstream = parse_upstream_proxy(network, no_proxy);
        if network.upstream_proxy.is_some() && upstream.is_none() {
            tracing::warn!("ignoring the upstream proxy: expected an http:// URL");
        }
        Self {
            connector: Connector::new(network.allow_private.clone(), upstream),
            limits: EgressLimits { max_bytes: network.max_bytes, packages: config.package_hosts().into() },
            sandboxes: Mutex::default(),
            connections: Arc::new(ConnectionPool::new(MAX_CONNECTIONS, MAX_SANDBOX_CONNECTIONS)),
        }
    }

    /// Sets the server's own address, which sandboxes cannot reach.
    pub fn set_server_address(&self, address: SocketAddr) {
        self.connector.set_server_address(address);
    }

    /// Applies a stored policy at once.
    pub fn set_policy(&self, sandbox: SandboxId, version: i64, network: Option<&Network>) {
        if let Some(sandbox_egress) = self.find_sandbox(sandbox) {
            sandbox_egress.set_policy(version, network);
        }
    }

    /// The traffic per host, busiest first.
    pub fn host_traffic(&self, sandbox: SandboxId) -> Vec<atoll_api::HostTraffic> {
        self.find_sandbox(sandbox).map(|sandbox_egress| sandbox_egress.list_hosts()).unwrap_or_default()
    }

    /// The hosts that the proxy refused, most frequent first.
    pub fn refused_hosts(&self, sandbox: SandboxId) -> Vec<RefusedHost> {
        self.find_sandbox(sandbox).map(|sandbox_egress| sandbox_egress.list_refused()).unwrap_or_default()
    }

    /// Counts a sandbox's refusals from zero again.
    pub fn reset_refusals(&self, sandbox: SandboxId) {
        if let Some(sandbox_egress) = self.find_sandbox(sandbox) {
            sandbox_egress.reset_refusals();
        }
    }

    /// Bytes in both directions.
    pub fn total_bytes(&self, sandbox: SandboxId) -> u64 {
        self.find_sandbox(sandbox).map_or(0, |sandbox_egress| sandbox_egress.total_counts().total_bytes())
    }

    /// Checks a download that the gateway makes for a sandbox; the error is a sentence for the program.
    pub fn check_download(&self, sandbox: SandboxId, target: &NetworkTarget) -> Result<(), String> {
        let refused = |refusal: EgressRefusal| refusal.message(sandbox, &target.to_string());
        self.sandbox_egress(sandbox).check_policy(target).map_err(refused)
    }

    /// Counts the bytes of a download.
    pub fn download_counter(&self, sandbox: SandboxId, target: &NetworkTarget) -> DownloadCounter {
        let meter = ConnectionMeter::new(&self.sandbox_egress(sandbox), target.clone());
        Box::new(move |bytes| meter.count_bytes(0, bytes))
    }

    fn find_sandbox(&self, sandbox: SandboxId) -> Option<Arc<SandboxEgress>> {
        self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).cloned()
    }

    fn sandbox_egress(&self, sandbox: SandboxId) -> Arc<SandboxEgress> {
        let mut outlets = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        if outlets.len() >= MAX_CACHED_SANDBOXES && !outlets.contains_key(&sandbox) {
            outlets.retain(|_, sandbox_egress| Arc::strong_count(sandbox_egress) > 1);
        }
        let egress =
            outlets.entry(sandbox).or_insert_with(|| Arc::new(SandboxEgress::new(sandbox, self.limits.clone())));
        Arc::clone(egress)
    }
}

/// The shared state of one sandbox's connections.
pub struct SandboxProxy {
    app: Weak<App>,
    egress: Arc<Egress>,
    sandbox_egress: Arc<SandboxEgress>,
}

/// Serves one sandbox's socket. Dropping the future closes all connections.
pub async fn serve_sandbox(app: Weak<App>, sandbox: SandboxId, listener: TcpListener) {
    let listener = match tokio::net::TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => return tracing::warn!(%sandbox, %error, "failed to use a sandbox's egress socket"),
    };
    let Some(egress) = app.upgrade().map(|app| Arc::clone(&app.egress)) else { return };
    // Create the entry before the read: a later policy change finds it, and the version keeps the newer policy.
    let sandbox_egress = egress.sandbox_egress(sandbox);
    load_policy(&app, &sandbox_egress).await;
    let service = Arc::new(SandboxProxy { app, egress, sandbox_egress });
    let mut open = JoinSet::new();
    loop {
        let permit = service.egress.connections.acquire(&service.sandbox_egress.connections).await;
        match listener.accept().await {
            Ok((stream, _)) => {
                let service = Arc::clone(&service);
                open.spawn(async move {
                    let _permit = permit;
                    serve_connection(&service, stream).await;
                });
            }
            Err(error) => {
                tracing::warn!(%sandbox, %error, "failed to accept a connection from a sandbox");
                tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
        while open.try_join_next().is_some() {}
    }
}

/// Reads the stored policy. Until then, every connection is refused.
async fn load_policy(app: &Weak<App>, sandbox_egress: &SandboxEgress) {
    let sandbox = sandbox_egress.sandbox;
    loop {
        let Some(app) = app.upgrade() else { return };
        match app.read(async move |tx| Ok(sandboxes::find_sandbox(tx, sandbox).await?)).await {
            Ok(Some(row)) => return sandbox_egress.set_policy(row.version, row.current_network()),
            Ok(None) => return tracing::warn!(%sandbox, "no egress for an unknown sandbox"),
            Err(problem) => {
                tracing::warn!(%sandbox, detail = %problem.detail, "failed to read a network policy; will retry");
            }
        }
        drop(app);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

async fn serve_connection(service: &Arc<SandboxProxy>, stream: TcpStream) {
    let mut first = [0];
    match tokio::time::timeout(FIRST_BYTE_TIMEOUT, stream.peek(&mut first)).await {
        Ok(Ok(1)) => {}
        Ok(_) | Err(_) => return,
    }
    drop(stream.set_nodelay(true));
    if first[0] == socks::VERSION {
        return socks::serve_socks(service, stream).await;
    }
    match tokio::time::timeout(FIRST_BYTE_TIMEOUT, read_request_target(stream)).await {
        Ok(Ok((read, stream, true))) => {
            let stream = Box::new(Prefixed::new(read, Box::new(stream)));
            gateway::serve_gateway(service.app.clone(), service.sandbox_egress.sandbox, stream).await;
        }
        Ok(Ok((read, stream, false))) => {
            let (stream, peer) = split_watched(stream);
            http_proxy::serve_proxy(service, Box::new(Prefixed::new(read, Box::new(stream))), peer).await;
        }
        Ok(Err(_)) | Err(_) => {}
    }
}

/// Reads until the target of the first request is known: a path is for the model gateway, a URL or host for the proxy.
async fn read_request_target(mut stream: TcpStream) -> io::Result<(Vec<u8>, TcpStream, bool)> {
    let mut read = Vec::with_capacity(MAX_METHOD_BYTES);
    loop {
        if stream.read_buf(&mut read).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let after_method = read.iter().position(|byte| *byte == b' ').map(|space| read.get(space + 1));
        let is_path = match after_method {
            Some(Some(byte)) => *byte == b'/',
            None if read.len() >= MAX_METHOD_BYTES => false,
            Some(None) | None => continue,
        };
        return Ok((read, stream, is_path));
    }
}

impl SandboxProxy {
    fn connector(&self) -> &Connector {
        &self.egress.connector
    }

    /// Reports the byte limit if it ended the connection.
    fn report_byte_limit(&self, meter: &ConnectionMeter) {
        if let Err(refusal @ EgressRefusal::ByteLimit { .. }) = self.sandbox_egress.check_policy(&meter.target) {
            self.report_refusal(&meter.target.host.to_string(), meter.target.port, &refusal);
        }
    }

    /// Counts a refusal and logs it as an event, throttled.
    fn report_refusal(&self, host: &str, port: u16, refusal: &EgressRefusal) {
        let host: String = host.chars().filter(|it| !it.is_control()).take(MAX_HOST_CHARS).collect();
        metrics::counter!(crate::metrics::EGRESS_REFUSALS, "reason" => refusal.code()).increment(1);
        let Some(count) = self.sandbox_egress.count_refusal(&host, port, refusal) else { return };
        let sandbox = self.sandbox_egress.sandbox;
        let place = if port == 0 { host.clone() } else { format!("{host}:{port}") };
        let detail = refusal.message(sandbox, &place);
        let refused = NetworkRefused { host, port, reason: refusal.code().to_owned(), count, detail };
        let Some(app) = self.app.upgrade() else { return };
        tokio::spawn(async move {
            let logged = app.write(async move |work| {
                let (_, mut row) = work.lock_sandbox(sandbox).await?;
                if row.state.is_live() {
                    let event = EventData::NetworkRefused(refused).into_event(work.now);
                    work.log(&mut row, vec![event]).await?;
                    sandboxes::update_sandbox(work.tx, &mut row).await?;
                }
                Ok(())
            });
            if let Err(problem) = logged.await {
                tracing::warn!(%sandbox, detail = %problem.detail, "failed to log a refused connection");
            }
        });
    }
}
