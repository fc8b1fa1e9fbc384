//! Opens connections for sandboxes: checks the policy, resolves the name, checks the addresses, connects, and checks the
//! peer's address again.

use super::egress_refusal::{ConnectFailure, EgressRefusal};
use super::public_addresses::non_public_range;
use super::sandbox_egress::{ConnectionMeter, SandboxEgress};
use super::stream::{CountedStream, Stream};
use super::upstream_proxy::UpstreamProxy;
use atoll_core::network::{AddressException, Host, NetworkTarget};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout per address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Addresses to try per name.
const MAX_ADDRESSES: usize = 4;
/// Concurrent DNS lookups of all sandboxes; each takes a thread.
const MAX_LOOKUPS: usize = 64;

pub struct Connector {
    pub exceptions: Vec<AddressException>,
    pub upstream: Option<UpstreamProxy>,
    lookups: Semaphore,
    /// The address that this server listens on.
    server_address: OnceLock<SocketAddr>,
}

/// An open connection to a host.
pub struct EgressConnection {
    pub stream: Stream,
    pub meter: Arc<ConnectionMeter>,
    /// The peer is the upstream proxy, which expects absolute URLs.
    pub via_proxy: bool,
}

/// The use of a connection, which decides how an upstream proxy is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionPurpose {
    /// Bytes in both directions.
    Tunnel,
    /// Plain HTTP requests, which a proxy accepts without a tunnel.
    Requests,
}

impl Connector {
    pub const fn new(exceptions: Vec<AddressException>, upstream: Option<UpstreamProxy>) -> Self {
        Self { exceptions, upstream, lookups: Semaphore::const_new(MAX_LOOKUPS), server_address: OnceLock::new() }
    }

    /// Sets the server's address once, when it listens.
    pub fn set_server_address(&self, address: SocketAddr) {
        if self.server_address.set(address).is_err() {
            tracing::debug!("the server address is already set");
        }
    }

    pub async fn connect(
        &self,
        sandbox_egress: &Arc<SandboxEgress>,
        target: &NetworkTarget,
        purpose: ConnectionPurpose,
    ) -> Result<EgressConnection, ConnectFailure> {
        // Check before the DNS lookup: a lookup can leak data, too.
        sandbox_egress.check_policy(target)?;
        let (stream, by_proxy) = match self.upstream.as_ref().filter(|upstream| upstream.applies_to(target)) {
            Some(upstream) => self.connect_via_proxy(sandbox_egress, upstream, target, purpose).await?,
            None => (self.connect_direct(sandbox_egress, target).await?, false),
        };
        // The policy may have changed meanwhile.
        sandbox_egress.check_policy(target)?;
        let meter = Arc::new(ConnectionMeter::new(sandbox_egress, target.clone()));
        Ok(EgressConnection {
            stream: Box::new(CountedStream::new(stream, Arc::clone(&meter))),
            meter,
            via_proxy: by_proxy,
        })
    }

    async fn connect_direct(
        &self,
        sandbox_egress: &SandboxEgress,
        target: &NetworkTarget,
    ) -> Result<Stream, ConnectFailure> {
        let addresses = self.resolve_host(sandbox_egress, target).await?;
        addresses.iter().try_for_each(|address| self.check_address(target, *address))?;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses.into_iter().take(MAX_ADDRESSES) {
            let connecting = timeout(CONNECT_TIMEOUT, TcpStream::connect((address, target.port))).await;
            match connecting.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => {
                    self.check_connected(target, &stream)?;
                    return Ok(Box::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(ConnectFailure::Failed(format!("{target} cannot be reached: {last}")))
    }

    /// The proxy resolves names itself. Names that this machine resolves, too, are checked here.
    async fn connect_via_proxy(
        &self,
        sandbox_egress: &SandboxEgress,
        upstream: &UpstreamProxy,
        target: &NetworkTarget,
        purpose: ConnectionPurpose,
    ) -> Result<(Stream, bool), ConnectFailure> {
        match self.resolve_host(sandbox_egress, target).await {
            Ok(addresses) => addresses.iter().try_for_each(|address| self.check_address(target, *address))?,
            Err(ConnectFailure::Failed(_)) => {}
            Err(refused @ ConnectFailure::Refused(_)) => return Err(refused),
        }
        let connected = timeout(CONNECT_TIMEOUT, async {
            match purpose {
                ConnectionPurpose::Tunnel => Ok((upstream.connect_through(target).await?, false)),
                ConnectionPurpose::Requests => Ok((Box::new(upstream.connect_proxy().await?) as Stream, true)),
            }
        });
        let connected = connected.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|error: io::Error| ConnectFailure::Failed(format!("{target} cannot be reached: {error}")))
    }

    async fn resolve_host(
        &self,
        sandbox_egress: &SandboxEgress,
        target: &NetworkTarget,
    ) -> Result<Vec<IpAddr>, ConnectFailure> {
        let name = match &target.host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        let failed =
            |error: &dyn std::fmt::Display| ConnectFailure::Failed(format!("{name} cannot be looked up: {error}"));
        // The sandbox's own permit first, outside of the timeout: a busy sandbox delays only itself.
        let _own = sandbox_egress.lookups.acquire().await.map_err(|error| failed(&error))?;
        let found = timeout(LOOKUP_TIMEOUT, async {
            let _one = self.lookups.acquire().await.map_err(io::Error::other)?;
            tokio::net::lookup_host((name.as_str(), target.port)).await.map(|found| found.collect::<Vec<_>>())
        });
        let found = found.await.map_err(|_| failed(&"no answer"))?.map_err(|error| failed(&error))?;
        let mut addresses = Vec::new();
        for address in found.into_iter().map(|address| address.ip()) {
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() { Err(failed(&"it has no address")) } else { Ok(addresses) }
    }

    /// Checks one address. All addresses of a name must pass, so that a sandbox cannot influence the choice.
    fn check_address(&self, target: &NetworkTarget, address: IpAddr) -> Result<(), EgressRefusal> {
        let address = address.to_canonical();
        let own = self.server_address.get();
        let is_own = own.is_some_and(|own| {
            own.port() == target.port && (address.is_loopback() || address.is_unspecified() || address == own.ip())
        });
        if is_own {
            return Err(EgressRefusal::OwnServer);
        }
        match non_public_range(address) {
            Some(what) if !self.is_excepted(target, address) => Err(EgressRefusal::PrivateAddress { address, what }),
            Some(_) | None => Ok(()),
        }
    }

    fn is_excepted(&self, target: &NetworkTarget, address: IpAddr) -> bool {
        self.exceptions.iter().any(|exception| exception.covers(target, address))
    }

    /// Checks the peer address of an open connection. A connection to a public address of this machine has equal local
    /// and peer addresses.
    fn check_connected(&self, target: &NetworkTarget, stream: &TcpStream) -> Result<(), ConnectFailure> {
        let ends = stream.set_nodelay(true).and_then(|()| Ok((stream.peer_addr()?, stream.local_addr()?)));
        let (peer, local) =
            ends.map_err(|error| ConnectFailure::Failed(format!("{target} cannot be reached: {error}")))?;
        let (peer, local) = (peer.ip().to_canonical(), local.ip().to_canonical());
        self.check_address(target, peer)?;
        if peer == local {
            if self.server_address.get().is_some_and(|own| own.port() == target.port) {
                return Err(EgressRefusal::OwnServer.into());
            }
            if !self.is_excepted(target, peer) {
                return Err(EgressRefusal::PrivateAddress { address: peer, what: "this machine" }.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::egress::sandbox_egress::EgressLimits;
    use atoll_core::id::SandboxId;
    use atoll_core::sandbox::{Network, NetworkPolicy};

    fn target(text: &str) -> NetworkTarget {
        NetworkTarget::parse(text, None).unwrap()
    }

    fn connector(exceptions: &[&str]) -> Connector {
        Connector::new(exceptions.iter().map(|text| text.parse().unwrap()).collect(), None)
    }

    async fn refusal(connector: &Connector, place: &str) -> Option<EgressRefusal> {
        let sandbox_egress = Arc::new(SandboxEgress::new(SandboxId::new(), EgressLimits::default()));
        sandbox_egress.set_policy(1, Some(&Network { policy: NetworkPolicy::All, allow: vec![] }));
        match connector.connect(&sandbox_egress, &target(place), ConnectionPurpose::Tunnel).await {
            Err(ConnectFailure::Refused(refusal)) => Some(refusal),
            Ok(_) | Err(ConnectFailure::Failed(_)) => None,
        }
    }

    #[tokio::test]
    async fn checks_the_addresses_of_a_name() {
        let plain = connector(&[]);
        for place in ["localhost:9", "127.0.0.1:9", "[::1]:9", "169.254.169.254:80", "[fd00:ec2::254]:80", "0.0.0.0:9"]
        {
            let result = refusal(&plain, place).await;
            assert!(matches!(result, Some(EgressRefusal::PrivateAddress { .. })), "{place}: {result:?}");
        }
    }

    #[tokio::test]
    async fn exceptions_never_cover_the_server_itself() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let place = format!("localhost:{port}");
        assert!(refusal(&connector(&[]), &place).await.is_some());
        assert_eq!(refusal(&connector(&[&place]), &place).await, None);
        assert_eq!(refusal(&connector(&["127.0.0.0/8", "::1"]), &place).await, None);
        let own = connector(&["127.0.0.0/8", "::1"]);
        own.set_server_address(SocketAddr::from(([0, 0, 0, 0], port)));
        assert_eq!(refusal(&own, &place).await, Some(EgressRefusal::OwnServer));
        assert_eq!(refusal(&own, &format!("[::ffff:127.0.0.1]:{port}")).await, Some(EgressRefusal::OwnServer));
    }
}
