//! SOCKS 5 on the same port: without authentication, CONNECT only, names resolved by the proxy.

use super::connector::{ConnectionPurpose, EgressConnection};
use super::egress_refusal::{ConnectFailure, EgressRefusal};
use super::{SandboxProxy, tunnel};
use atoll_core::network::{Host, NetworkTarget};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const VERSION: u8 = 5;
const NO_PASSWORD: u8 = 0;
const NO_ACCEPTABLE_METHOD: u8 = 0xff;
const CONNECT_COMMAND: u8 = 1;
const NEGOTIATION_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SocksReply {
    Succeeded = 0,
    Failed = 1,
    NotAllowed = 2,
    Unreachable = 4,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

/// The requested target; an invalid host is kept as written.
type SocksRequest = Result<NetworkTarget, (SocksReply, Option<(String, u16)>)>;

pub async fn serve_socks(service: &Arc<SandboxProxy>, mut client: TcpStream) {
    let request = match timeout(NEGOTIATION_TIMEOUT, negotiate(&mut client)).await {
        Ok(Ok(Some(request))) => request,
        Ok(Ok(None) | Err(_)) | Err(_) => return,
    };
    let target = match request {
        Ok(target) => target,
        Err((reply, written)) => {
            if let Some((host, port)) = written {
                service.report_refusal(&host, port, &EgressRefusal::BadHost);
            }
            drop(send_reply(&mut client, reply).await);
            return;
        }
    };
    match service.connector().connect(&service.sandbox_egress, &target, ConnectionPurpose::Tunnel).await {
        Ok(EgressConnection { stream, meter, .. }) => {
            if send_reply(&mut client, SocksReply::Succeeded).await.is_ok() {
                tunnel::serve_tunnel(service, Box::new(client), stream, meter).await;
            }
        }
        Err(ConnectFailure::Refused(refusal)) => {
            service.report_refusal(&target.host.to_string(), target.port, &refusal);
            drop(send_reply(&mut client, SocksReply::NotAllowed).await);
        }
        Err(ConnectFailure::Failed(_)) => drop(send_reply(&mut client, SocksReply::Unreachable).await),
    }
}

async fn send_reply(client: &mut TcpStream, reply: SocksReply) -> io::Result<()> {
    client.write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

/// Runs the handshake; `None` if there is nothing to reply to.
async fn negotiate(client: &mut TcpStream) -> io::Result<Option<SocksRequest>> {
    let [version, count] = read_bytes(client).await?;
    let mut methods = vec![0; usize::from(count)];
    client.read_exact(&mut methods).await?;
    if version != VERSION {
        return Ok(None);
    }
    if !methods.contains(&NO_PASSWORD) {
        client.write_all(&[VERSION, NO_ACCEPTABLE_METHOD]).await?;
        return Ok(None);
    }
    client.write_all(&[VERSION, NO_PASSWORD]).await?;
    let [version, command, _, kind] = read_bytes(client).await?;
    if version != VERSION {
        return Ok(Some(Err((SocksReply::Failed, None))));
    }
    let host = match kind {
        1 => Ipv4Addr::from(read_bytes::<4>(client).await?).to_string(),
        4 => Ipv6Addr::from(read_bytes::<16>(client).await?).to_string(),
        3 => {
            let [length] = read_bytes(client).await?;
            let mut name = vec![0; usize::from(length)];
            client.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => return Ok(Some(Err((SocksReply::AddressTypeNotSupported, None)))),
    };
    let port = u16::from_be_bytes(read_bytes(client).await?);
    if command != CONNECT_COMMAND {
        return Ok(Some(Err((SocksReply::CommandNotSupported, None))));
    }
    Ok(Some(match Host::parse(&host) {
        Ok(host) if port != 0 => Ok(NetworkTarget { host, port }),
        Ok(_) | Err(_) => Err((SocksReply::NotAllowed, Some((host, port)))),
    }))
}

async fn read_bytes<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}
