//! From a host that is asked for to a connection: policy, name, addresses, connection, and the addresses again.

use super::addresses::not_public;
use super::outlet::{Outlet, Way};
use super::refusal::{Failure, Refusal};
use super::stream::{Counted, Stream};
use super::upstream::Upstream;
use atoll_core::network::{Exception, Host, Target};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;

const LOOKUP: Duration = Duration::from_secs(10);
/// For each address.
const CONNECT: Duration = Duration::from_secs(10);
/// Addresses of one name that are tried.
const MOST_ADDRESSES: usize = 4;
/// Lookups at once, of all sandboxes: each takes a thread.
const LOOKUPS: usize = 64;

pub struct Connector {
    pub exceptions: Vec<Exception>,
    pub upstream: Option<Upstream>,
    lookups: Semaphore,
    /// Where this server listens.
    own: OnceLock<SocketAddr>,
}

/// A connection that left.
pub struct Connected {
    pub stream: Stream,
    pub way: Arc<Way>,
    /// The other end is the server's own proxy, which wants to hear whole URLs.
    pub by_proxy: bool,
}

/// What a connection is for, as far as the way to it depends on that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Bytes in both directions.
    Tunnel,
    /// Requests of plain HTTP, which a proxy takes without a tunnel.
    Requests,
}

impl Connector {
    pub const fn new(exceptions: Vec<Exception>, upstream: Option<Upstream>) -> Self {
        Self { exceptions, upstream, lookups: Semaphore::const_new(LOOKUPS), own: OnceLock::new() }
    }

    /// Said once, when the server listens.
    pub fn set_own(&self, address: SocketAddr) {
        if self.own.set(address).is_err() {
            tracing::debug!("where this server listens was said before");
        }
    }

    pub async fn open(&self, outlet: &Arc<Outlet>, target: &Target, purpose: Purpose) -> Result<Connected, Failure> {
        // Before anything is looked up: a question to a name server is a message too.
        outlet.check(target)?;
        let (stream, by_proxy) = match self.upstream.as_ref().filter(|upstream| upstream.serves(target)) {
            Some(upstream) => self.by_proxy(outlet, upstream, target, purpose).await?,
            None => (self.direct(outlet, target).await?, false),
        };
        // That took its time.
        outlet.check(target)?;
        let way = Arc::new(Way::new(outlet, target.clone()));
        Ok(Connected { stream: Box::new(Counted::new(stream, Arc::clone(&way))), way, by_proxy })
    }

    async fn direct(&self, outlet: &Outlet, target: &Target) -> Result<Stream, Failure> {
        let addresses = self.resolve(outlet, target).await?;
        addresses.iter().try_for_each(|address| self.check(target, *address))?;
        let mut last = io::Error::from(io::ErrorKind::AddrNotAvailable);
        for address in addresses.into_iter().take(MOST_ADDRESSES) {
            let tried = timeout(CONNECT, TcpStream::connect((address, target.port))).await;
            match tried.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(stream) => {
                    self.check_connected(target, &stream)?;
                    return Ok(Box::new(stream));
                }
                Err(error) => last = error,
            }
        }
        Err(Failure::Failed(format!("{target} can't be reached: {last}")))
    }

    /// The proxy looks names up itself, perhaps names that this machine doesn't know. Those that it knows are checked.
    async fn by_proxy(
        &self,
        outlet: &Outlet,
        upstream: &Upstream,
        target: &Target,
        purpose: Purpose,
    ) -> Result<(Stream, bool), Failure> {
        match self.resolve(outlet, target).await {
            Ok(addresses) => addresses.iter().try_for_each(|address| self.check(target, *address))?,
            Err(Failure::Failed(_)) => {}
            Err(refused @ Failure::Refused(_)) => return Err(refused),
        }
        let connected = timeout(CONNECT, async {
            match purpose {
                Purpose::Tunnel => Ok((upstream.connect(target).await?, false)),
                Purpose::Requests => Ok((Box::new(upstream.dial().await?) as Stream, true)),
            }
        });
        let connected = connected.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        connected.map_err(|error: io::Error| Failure::Failed(format!("{target} can't be reached: {error}")))
    }

    async fn resolve(&self, outlet: &Outlet, target: &Target) -> Result<Vec<IpAddr>, Failure> {
        let name = match &target.host {
            Host::Address(address) => return Ok(vec![*address]),
            Host::Name(name) => name,
        };
        let failed = |error: &dyn std::fmt::Display| Failure::Failed(format!("{name} can't be looked up: {error}"));
        // Its own come first, and are waited for without a clock: who asks for much waits for himself.
        let _own = outlet.lookups.acquire().await.map_err(|error| failed(&error))?;
        let found = timeout(LOOKUP, async {
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

    /// All addresses of a name must be good: which one is taken is not the sandbox's to influence.
    fn check(&self, target: &Target, address: IpAddr) -> Result<(), Refusal> {
        let address = address.to_canonical();
        let own = self.own.get();
        let is_own = own.is_some_and(|own| {
            own.port() == target.port && (address.is_loopback() || address.is_unspecified() || address == own.ip())
        });
        if is_own {
            return Err(Refusal::OwnServer);
        }
        match not_public(address) {
            Some(what) if !self.is_excepted(target, address) => Err(Refusal::Private { address, what }),
            Some(_) | None => Ok(()),
        }
    }

    fn is_excepted(&self, target: &Target, address: IpAddr) -> bool {
        self.exceptions.iter().any(|exception| exception.covers(target, address))
    }

    /// What is at the other end, by the connection itself. This machine has public addresses too: a connection to one
    /// of them begins where it ends.
    fn check_connected(&self, target: &Target, stream: &TcpStream) -> Result<(), Failure> {
        let ends = stream.set_nodelay(true).and_then(|()| Ok((stream.peer_addr()?, stream.local_addr()?)));
        let (peer, local) = ends.map_err(|error| Failure::Failed(format!("{target} can't be reached: {error}")))?;
        let (peer, local) = (peer.ip().to_canonical(), local.ip().to_canonical());
        self.check(target, peer)?;
        if peer == local {
            if self.own.get().is_some_and(|own| own.port() == target.port) {
                return Err(Refusal::OwnServer.into());
            }
            if !self.is_excepted(target, peer) {
                return Err(Refusal::Private { address: peer, what: "this machine" }.into());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::SandboxId;
    use atoll_core::sandbox::{Network, NetworkPolicy};

    fn target(text: &str) -> Target {
        Target::parse(text, None).unwrap()
    }

    fn connector(exceptions: &[&str]) -> Connector {
        Connector::new(exceptions.iter().map(|text| text.parse().unwrap()).collect(), None)
    }

    async fn refusal(connector: &Connector, place: &str) -> Option<Refusal> {
        let outlet = Arc::new(Outlet::new(SandboxId::new(), 0));
        outlet.set(1, Some(&Network { policy: NetworkPolicy::All, allow: vec![] }));
        match connector.open(&outlet, &target(place), Purpose::Tunnel).await {
            Err(Failure::Refused(refusal)) => Some(refusal),
            Ok(_) | Err(Failure::Failed(_)) => None,
        }
    }

    #[tokio::test]
    async fn a_name_is_judged_by_its_addresses() {
        let plain = connector(&[]);
        for place in ["localhost:9", "127.0.0.1:9", "[::1]:9", "169.254.169.254:80", "[fd00:ec2::254]:80", "0.0.0.0:9"]
        {
            let said = refusal(&plain, place).await;
            assert!(matches!(said, Some(Refusal::Private { .. })), "{place}: {said:?}");
        }
    }

    #[tokio::test]
    async fn exceptions_are_the_server_s_and_never_cover_itself() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let place = format!("localhost:{port}");
        assert!(refusal(&connector(&[]), &place).await.is_some());
        assert_eq!(refusal(&connector(&[&place]), &place).await, None);
        assert_eq!(refusal(&connector(&["127.0.0.0/8", "::1"]), &place).await, None);
        let own = connector(&["127.0.0.0/8", "::1"]);
        own.set_own(SocketAddr::from(([0, 0, 0, 0], port)));
        assert_eq!(refusal(&own, &place).await, Some(Refusal::OwnServer));
        assert_eq!(refusal(&own, &format!("[::ffff:127.0.0.1]:{port}")).await, Some(Refusal::OwnServer));
    }
}
