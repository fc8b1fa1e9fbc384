//! Connections to ports of a sandbox: the worker connects and hands the socket over.

use super::descriptor::receive_descriptor;
use super::link::dial_and_send;
use atoll_core::provider::Error;
use atoll_protocol::exec::{ConnectionKind, PORT_CLOSED, PORT_CONNECTED};
use rustix::net::{SocketType, sockopt};
use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;

/// Time for the worker, which tries two addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);

/// Connects to a port on the sandbox's loopback interface. `None` if nothing listens there.
pub(crate) async fn connect_port(socket: &Path, port: u16) -> Result<Option<TcpStream>, Error> {
    let connected = timeout(CONNECT_TIMEOUT, request_connection(socket, port)).await;
    let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    connected.map_err(|error| Error::Unreachable { detail: format!("the worker does not connect: {error}") })
}

async fn request_connection(socket: &Path, port: u16) -> io::Result<Option<TcpStream>> {
    let connection = dial_and_send(socket, ConnectionKind::Port, &port.to_be_bytes()).await?;
    match receive_descriptor(&connection).await? {
        (Some(PORT_CLOSED), None) => Ok(None),
        (Some(PORT_CONNECTED), Some(descriptor)) => check_stream(descriptor, port).map(Some),
        (None, None) => Err(io::Error::other("its version cannot connect to ports, or it has ended")),
        _ => Err(io::Error::other("its reply is not valid")),
    }
}

/// Validates a descriptor from the sandbox: a TCP connection to this port of a loopback interface.
fn check_stream(descriptor: OwnedFd, port: u16) -> io::Result<TcpStream> {
    let invalid = || io::Error::other("it did not send a connection to the port");
    if sockopt::socket_type(&descriptor)? != SocketType::STREAM {
        return Err(invalid());
    }
    let stream = TcpStream::from(descriptor);
    // Fails unless it is a connected internet socket.
    let peer = stream.peer_addr()?;
    if !peer.ip().to_canonical().is_loopback() || peer.port() != port {
        return Err(invalid());
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn accepts_only_a_connection_to_the_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connect = || TcpStream::connect(("127.0.0.1", port)).unwrap();
        check_stream(connect().into(), port).unwrap();
        assert!(check_stream(connect().into(), port ^ 1).is_err(), "another port");
        assert!(check_stream(listener.into(), port).is_err(), "a listener");
        let (unix, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(check_stream(unix.into(), port).is_err());
        assert!(check_stream(std::fs::File::open("/dev/null").unwrap().into(), port).is_err());
    }
}
