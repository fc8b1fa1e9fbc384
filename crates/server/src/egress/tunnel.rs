//! Bytes in both directions, after a look at the first: what they say must fit where they go.

use super::outlet::Way;
use super::refusal::Refusal;
use super::stream::{Prefixed, Stream};
use super::tls::{self, Hello};
use super::{Service, http};
use atoll_core::network::{Host, Target};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, timeout};

/// For the first words of a connection.
const OPENING: Duration = Duration::from_secs(30);
const PIECE: usize = 32 << 10;
/// As much as tells a request of HTTP from other things.
const LONGEST_METHOD: usize = 16;

/// What the first bytes of a client are.
#[derive(Debug, PartialEq, Eq)]
enum Opening {
    /// What there is fits several.
    Unclear,
    Tls(Option<String>),
    Http,
    Malformed,
    Other,
}

/// At port 443 there is TLS and at port 80 HTTP. Elsewhere it is what the client's first bytes say; where the server
/// speaks first, it is neither.
pub async fn carry(service: &Arc<Service>, client: Stream, server: Stream, way: Arc<Way>) {
    match way.target.port {
        443 => carry_tls(service, client, server, &way).await,
        80 => Box::pin(http::serve_inside(service, client, server, way)).await,
        _ => carry_any(service, client, server, way).await,
    }
}

async fn carry_tls(service: &Arc<Service>, mut client: Stream, server: Stream, way: &Arc<Way>) {
    let mut first = Vec::new();
    let hello = timeout(OPENING, async {
        loop {
            match tls::look(&first) {
                Hello::Incomplete if first.len() <= 2 * tls::LONGEST_HELLO => {}
                hello => return Some(hello),
            }
            match client.read_buf(&mut first).await {
                Ok(0) | Err(_) => return None,
                Ok(_) => {}
            }
        }
    });
    // Whoever says nothing wants nothing.
    let Ok(Some(hello)) = hello.await else { return };
    let refusal = match hello {
        Hello::Complete { server_name } => match fits(&way.target, server_name) {
            Ok(()) => return copy(service, client, server, first, way).await,
            Err(refusal) => refusal,
        },
        Hello::Incomplete | Hello::NotTls | Hello::Malformed => Refusal::NotTls,
    };
    refuse(service, client, way, &refusal).await;
}

async fn refuse(service: &Arc<Service>, mut client: Stream, way: &Way, refusal: &Refusal) {
    service.refused(&way.target.host.to_string(), way.target.port, refusal);
    // In the one language that the client understands now.
    drop(client.write_all(&tls::UNRECOGNIZED_NAME).await);
    drop(client.shutdown().await);
}

/// The name in the handshake is the host that was asked for; only for an address there is none.
fn fits(target: &Target, server_name: Option<String>) -> Result<(), Refusal> {
    let named = server_name.as_deref().map(Host::parse);
    match (&target.host, named) {
        (Host::Name(_), Some(Ok(named))) if named == target.host => Ok(()),
        (Host::Address(_), None) => Ok(()),
        (Host::Name(_), _) | (Host::Address(_), Some(_)) => Err(Refusal::ServerName { named: server_name }),
    }
}

fn opening(bytes: &[u8]) -> Opening {
    match tls::look(bytes) {
        Hello::Incomplete => return Opening::Unclear,
        Hello::Complete { server_name } => return Opening::Tls(server_name),
        Hello::Malformed => return Opening::Malformed,
        Hello::NotTls => {}
    }
    // Servers forgive empty lines before a request.
    let text = bytes.trim_ascii_start();
    let end = text.iter().position(|byte| !byte.is_ascii_uppercase());
    match end {
        None if text.len() < LONGEST_METHOD => Opening::Unclear,
        Some(end) if end >= 3 && text[end] == b' ' => Opening::Http,
        None | Some(_) => Opening::Other,
    }
}

/// Reads until it is known what the client's first bytes are; where the server speaks first, it is neither. Both may
/// wait as long as they like. Whoever has begun to speak must come to the point: what could still become a handshake
/// goes no further unseen.
async fn listen(
    client: &mut Stream,
    server: &mut Stream,
    first: &mut Vec<u8>,
    answer: &mut Vec<u8>,
) -> Option<Opening> {
    let mut deadline = None;
    loop {
        match opening(first) {
            Opening::Unclear if first.len() <= 2 * tls::LONGEST_HELLO => {}
            Opening::Unclear => return Some(Opening::Malformed),
            known => return Some(known),
        }
        if !first.is_empty() {
            deadline.get_or_insert_with(|| Instant::now() + OPENING);
        }
        tokio::select! {
            read = client.read_buf(first) => match read {
                Ok(0) => return Some(Opening::Other),
                Ok(_) => {}
                Err(_) => return None,
            },
            read = server.read_buf(answer) => return read.ok().map(|_| Opening::Other),
            () = until(deadline) => return None,
        }
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

async fn carry_any(service: &Arc<Service>, mut client: Stream, mut server: Stream, way: Arc<Way>) {
    let (mut first, mut answer) = (Vec::new(), Vec::new());
    let opening = tokio::select! {
        opening = listen(&mut client, &mut server, &mut first, &mut answer) => opening,
        cut = way.cut() => {
            if let Some(refusal) = cut {
                service.refused(&way.target.host.to_string(), way.target.port, &refusal);
            }
            return;
        }
    };
    let Some(opening) = opening else { return };
    let refusal = match opening {
        Opening::Http => {
            let client = Box::new(Prefixed::new(first, client));
            return Box::pin(http::serve_inside(service, client, server, way)).await;
        }
        Opening::Tls(name) => match fits(&way.target, name) {
            Ok(()) => return copy(service, client, server, first, &way).await,
            Err(refusal) => refusal,
        },
        Opening::Other => {
            let server = Box::new(Prefixed::new(answer, server));
            return copy(service, client, server, first, &way).await;
        }
        Opening::Unclear | Opening::Malformed => Refusal::NotTls,
    };
    refuse(service, client, &way, &refusal).await;
}

/// Until both sides have ended, or it must end. `first` was read from the client before.
pub async fn copy(service: &Arc<Service>, mut client: Stream, mut server: Stream, first: Vec<u8>, way: &Arc<Way>) {
    let both = async {
        server.write_all(&first).await?;
        drop(first);
        tokio::io::copy_bidirectional_with_sizes(&mut client, &mut server, PIECE, PIECE).await
    };
    tokio::select! {
        // How a connection ends is for its two sides to know.
        _ = both => service.note_cap(way),
        cut = way.cut() => if let Some(refusal) = cut {
            service.refused(&way.target.host.to_string(), way.target.port, &refusal);
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_in_the_handshake_is_the_host_that_was_asked_for() {
        let good = |target: &str, name: Option<&str>| {
            fits(&Target::parse(target, None).unwrap(), name.map(str::to_owned)).is_ok()
        };
        assert!(good("example.org:443", Some("example.org")) && good("example.org:443", Some("EXAMPLE.org.")));
        assert!(!good("example.org:443", Some("other.org")) && !good("example.org:443", None));
        assert!(!good("example.org:443", Some("www.example.org")) && !good("example.org:443", Some("192.0.2.1")));
        assert!(good("192.0.2.1:443", None) && !good("192.0.2.1:443", Some("example.org")));
        assert!(good("[2001:db8::1]:443", None));
    }

    #[tokio::test(start_paused = true)]
    async fn silence_before_a_handshake_changes_nothing() {
        let (mut program, client) = tokio::io::duplex(1024);
        let (_site, server) = tokio::io::duplex(1024);
        let (mut client, mut server): (Stream, Stream) = (Box::new(client), Box::new(server));
        let (mut first, mut answer) = (Vec::new(), Vec::new());
        let talking = async {
            tokio::time::sleep(10 * OPENING).await;
            program.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
            program
        };
        let (heard, mut program) = tokio::join!(listen(&mut client, &mut server, &mut first, &mut answer), talking);
        assert_eq!(heard, Some(Opening::Http));
        // Half a word is not waited for.
        first.clear();
        program.write_all(b"GE").await.unwrap();
        assert_eq!(listen(&mut client, &mut server, &mut first, &mut answer).await, None);
    }

    #[test]
    fn a_request_is_told_from_other_things() {
        for http in ["GET /", "POST http://x", "\r\n\r\nGET /x", "PROPFIND /", "BREW /pot"] {
            assert_eq!(opening(http.as_bytes()), Opening::Http, "{http:?}");
        }
        for unclear in ["", "G", "GET", "\r\n"] {
            assert_eq!(opening(unclear.as_bytes()), Opening::Unclear, "{unclear:?}");
        }
        for other in ["SSH-2.0-OpenSSH", "EHLO\r\n", "\0\0", "get / HTTP/1.1", "ABCDEFGHIJKLMNOPQRST"] {
            assert_eq!(opening(other.as_bytes()), Opening::Other, "{other:?}");
        }
        assert_eq!(opening(b"\x16\x03\x01"), Opening::Unclear);
    }
}
