//! Tunnels: checks that the first bytes match the target, then copies both ways.

use super::client_hello::{self, ClientHello, HelloParser};
use super::egress_refusal::EgressRefusal;
use super::opening::{Opening, OpeningDetector};
use super::sandbox_egress::ConnectionMeter;
use super::stream::{Prefixed, Stream};
use super::{SandboxProxy, http_proxy};
use atoll_core::network::{Host, NetworkTarget};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

/// Deadline for the first message of a connection.
const OPENING_TIMEOUT: Duration = Duration::from_secs(30);
const COPY_BUFFER_BYTES: usize = 32 << 10;

/// Serves a tunnel: TLS at port 443, HTTP at port 80, and elsewhere the protocol of the client's first bytes.
pub async fn serve_tunnel(service: &Arc<SandboxProxy>, client: Stream, server: Stream, meter: Arc<ConnectionMeter>) {
    match meter.target.port {
        443 => serve_tls(service, client, server, &meter).await,
        80 => Box::pin(http_proxy::serve_tunnel(service, client, server, meter)).await,
        _ => serve_any_port(service, client, server, meter).await,
    }
}

async fn serve_tls(service: &Arc<SandboxProxy>, mut client: Stream, server: Stream, meter: &Arc<ConnectionMeter>) {
    let (mut first, mut parser) = (Vec::new(), HelloParser::default());
    let hello = timeout(OPENING_TIMEOUT, async {
        loop {
            match parser.parse(&first) {
                ClientHello::Incomplete if first.len() <= 2 * client_hello::MAX_HELLO_BYTES => {}
                hello => return Some(hello),
            }
            match client.read_buf(&mut first).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    });
    // No ClientHello in time: close.
    let Ok(Some(hello)) = hello.await else { return };
    let refusal = match hello {
        ClientHello::Complete { server_name } => match check_server_name(&meter.target, server_name) {
            Ok(()) => return copy_both_ways(service, client, server, first, meter).await,
            Err(refusal) => refusal,
        },
        ClientHello::Incomplete | ClientHello::NotTls | ClientHello::Malformed => EgressRefusal::NotTls,
    };
    refuse_tunnel(service, client, meter, &refusal).await;
}

async fn refuse_tunnel(
    service: &Arc<SandboxProxy>,
    mut client: Stream,
    meter: &ConnectionMeter,
    refusal: &EgressRefusal,
) {
    service.report_refusal(&meter.target.host.to_string(), meter.target.port, refusal);
    // A TLS client understands only an alert at this point.
    drop(client.write_all(&client_hello::UNRECOGNIZED_NAME).await);
    drop(client.shutdown().await);
}

/// The handshake must name the requested host. A connection to an address has no name.
fn check_server_name(target: &NetworkTarget, server_name: Option<String>) -> Result<(), EgressRefusal> {
    let named = server_name.as_deref().map(Host::parse);
    match (&target.host, named) {
        (Host::Name(_), Some(Ok(named))) if named == target.host => Ok(()),
        (Host::Address(_), None) => Ok(()),
        (Host::Name(_), _) | (Host::Address(_), Some(_)) => Err(EgressRefusal::ServerName { named: server_name }),
    }
}

/// Reads until the client's protocol is known. If the server sends first, it is neither TLS nor HTTP. Both sides may stay
/// silent; once the client has sent a byte, it must complete its first message in time.
async fn read_opening(
    client: &mut Stream,
    server: &mut Stream,
    first: &mut Vec<u8>,
    answer: &mut Vec<u8>,
) -> Option<Opening> {
    let (mut deadline, mut detector) = (None, OpeningDetector::default());
    loop {
        match detector.detect(first) {
            Opening::Unclear if first.len() <= 2 * client_hello::MAX_HELLO_BYTES => {}
            Opening::Unclear => return Some(Opening::Malformed),
            known => return Some(known),
        }
        if !first.is_empty() {
            deadline.get_or_insert_with(|| Instant::now() + OPENING_TIMEOUT);
        }
        tokio::select! {
            read = client.read_buf(first) => match read {
                Ok(0) => return Some(Opening::Other),
                Ok(_) => {}
                Err(_) => return None,
            },
            read = server.read_buf(answer) => return read.ok().map(|_| Opening::Other),
            () = sleep_until_deadline(deadline) => return None,
        }
    }
}

async fn sleep_until_deadline(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn serve_any_port(
    service: &Arc<SandboxProxy>,
    mut client: Stream,
    mut server: Stream,
    meter: Arc<ConnectionMeter>,
) {
    let (mut first, mut answer) = (Vec::new(), Vec::new());
    let opening = tokio::select! {
        opening = read_opening(&mut client, &mut server, &mut first, &mut answer) => opening,
        cut = meter.wait_until_cut() => {
            if let Some(refusal) = cut {
                service.report_refusal(&meter.target.host.to_string(), meter.target.port, &refusal);
            }
            return;
        }
    };
    let Some(opening) = opening else { return };
    let refusal = match opening {
        Opening::Http => {
            let client = Box::new(Prefixed::new(first, client));
            return Box::pin(http_proxy::serve_tunnel(service, client, server, meter)).await;
        }
        Opening::Tls(name) => match check_server_name(&meter.target, name) {
            Ok(()) => return copy_both_ways(service, client, server, first, &meter).await,
            Err(refusal) => refusal,
        },
        Opening::Other => {
            let server = Box::new(Prefixed::new(answer, server));
            return copy_both_ways(service, client, server, first, &meter).await;
        }
        Opening::Unclear | Opening::Malformed => EgressRefusal::NotTls,
    };
    refuse_tunnel(service, client, &meter, &refusal).await;
}

/// Copies until both sides close or the connection is cut. `first` was read from the client before.
pub async fn copy_both_ways(
    service: &Arc<SandboxProxy>,
    mut client: Stream,
    mut server: Stream,
    first: Vec<u8>,
    meter: &Arc<ConnectionMeter>,
) {
    let both = async {
        server.write_all(&first).await?;
        drop(first);
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, COPY_BUFFER_BYTES, COPY_BUFFER_BYTES).await
    };
    tokio::select! {
        // Errors concern only client and server.
        _ = both => service.report_byte_limit(meter),
        cut = meter.wait_until_cut() => if let Some(refusal) = cut {
            service.report_refusal(&meter.target.host.to_string(), meter.target.port, &refusal);
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handshake_must_name_the_requested_host() {
        let good = |target: &str, name: Option<&str>| {
            check_server_name(&NetworkTarget::parse(target, None).unwrap(), name.map(str::to_owned)).is_ok()
        };
        assert!(good("example.org:443", Some("example.org")) && good("example.org:443", Some("EXAMPLE.org.")));
        assert!(!good("example.org:443", Some("other.org")) && !good("example.org:443", None));
        assert!(!good("example.org:443", Some("www.example.org")) && !good("example.org:443", Some("192.0.2.1")));
        assert!(good("192.0.2.1:443", None) && !good("192.0.2.1:443", Some("example.org")));
        assert!(good("[2001:db8::1]:443", None));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_before_a_handshake_is_allowed() {
        let (mut program, client) = tokio::io::duplex(1024);
        let (_site, server) = tokio::io::duplex(1024);
        let (mut client, mut server): (Stream, Stream) = (Box::new(client), Box::new(server));
        let (mut first, mut answer) = (Vec::new(), Vec::new());
        let talking = async {
            tokio::time::sleep(10 * OPENING_TIMEOUT).await;
            program.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            program
        };
        let (opening, mut program) =
            tokio::join!(read_opening(&mut client, &mut server, &mut first, &mut answer), talking);
        assert_eq!(opening, Some(Opening::Http));
        // An incomplete method times out.
        first.clear();
        program.write_all(b"GE").await.unwrap();
        assert_eq!(read_opening(&mut client, &mut server, &mut first, &mut answer).await, None);
    }
}
