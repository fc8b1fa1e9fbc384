//! SOCKS version 5 on the same port: no passwords, connections only, names looked up here.

use super::connect::{Connected, Purpose};
use super::refusal::{Failure, Refusal};
use super::{Service, tunnel};
use atoll_core::network::{Host, Target};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const VERSION: u8 = 5;
const NO_PASSWORD: u8 = 0;
const NONE_FITS: u8 = 0xff;
const CONNECT: u8 = 1;
const TALK: Duration = Duration::from_secs(15);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Done = 0,
    Failed = 1,
    NotAllowed = 2,
    Unreachable = 4,
    NoSuchCommand = 7,
    NoSuchAddress = 8,
}

/// What it asks for; a host that is none is kept as it was written.
type Asked = Result<Target, (Reply, Option<(String, u16)>)>;

pub async fn serve(service: &Arc<Service>, mut client: TcpStream) {
    let asked = match timeout(TALK, negotiate(&mut client)).await {
        Ok(Ok(Some(asked))) => asked,
        Ok(Ok(None) | Err(_)) | Err(_) => return,
    };
    let target = match asked {
        Ok(target) => target,
        Err((reply, written)) => {
            if let Some((host, port)) = written {
                service.refused(&host, port, &Refusal::BadHost);
            }
            drop(answer(&mut client, reply).await);
            return;
        }
    };
    match service.connector().open(&service.outlet, &target, Purpose::Tunnel).await {
        Ok(Connected { stream, way, .. }) => {
            if answer(&mut client, Reply::Done).await.is_ok() {
                tunnel::carry(service, Box::new(client), stream, way).await;
            }
        }
        Err(Failure::Refused(refusal)) => {
            service.refused(&target.host.to_string(), target.port, &refusal);
            drop(answer(&mut client, Reply::NotAllowed).await);
        }
        Err(Failure::Failed(_)) => drop(answer(&mut client, Reply::Unreachable).await),
    }
}

async fn answer(client: &mut TcpStream, reply: Reply) -> io::Result<()> {
    client.write_all(&[VERSION, reply as u8, 0, 1, 0, 0, 0, 0, 0, 0]).await
}

/// Nothing where there is nothing to answer.
async fn negotiate(client: &mut TcpStream) -> io::Result<Option<Asked>> {
    let [version, count] = read(client).await?;
    let mut methods = vec![0; usize::from(count)];
    client.read_exact(&mut methods).await?;
    if version != VERSION {
        return Ok(None);
    }
    if !methods.contains(&NO_PASSWORD) {
        client.write_all(&[VERSION, NONE_FITS]).await?;
        return Ok(None);
    }
    client.write_all(&[VERSION, NO_PASSWORD]).await?;
    let [version, command, _, kind] = read(client).await?;
    if version != VERSION {
        return Ok(Some(Err((Reply::Failed, None))));
    }
    let host = match kind {
        1 => Ipv4Addr::from(read::<4>(client).await?).to_string(),
        4 => Ipv6Addr::from(read::<16>(client).await?).to_string(),
        3 => {
            let [length] = read(client).await?;
            let mut name = vec![0; usize::from(length)];
            client.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => return Ok(Some(Err((Reply::NoSuchAddress, None)))),
    };
    let port = u16::from_be_bytes(read(client).await?);
    if command != CONNECT {
        return Ok(Some(Err((Reply::NoSuchCommand, None))));
    }
    Ok(Some(match Host::parse(&host) {
        Ok(host) if port != 0 => Ok(Target { host, port }),
        Ok(_) | Err(_) => Err((Reply::NotAllowed, Some((host, port)))),
    }))
}

async fn read<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}
