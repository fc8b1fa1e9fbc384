//! The floor of message delivery: a minimal server that commits one row per request.

use super::ingest_sqlite::SqliteFloor;
use anyhow::Result;
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use std::cell::RefCell;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;

/// Starts the server on its own thread. It serves one connection and ends with it.
pub async fn start_commit_server(database: &Path) -> Result<SocketAddr> {
    let floor = SqliteFloor::open(database).await?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    std::thread::spawn(move || serve_commits(&listener, floor));
    Ok(address)
}

fn serve_commits(listener: &TcpListener, floor: SqliteFloor) -> Result<()> {
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    stream.set_nonblocking(true)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let floor = RefCell::new(floor);
        let answer = service_fn(async |request: Request<Incoming>| -> Result<Response<Full<Bytes>>> {
            request.into_body().collect().await?;
            floor.borrow_mut().commit_rows(1)?;
            Ok(Response::new(Full::new(Bytes::from_static(b"{}"))))
        });
        let io = TokioIo::new(tokio::net::TcpStream::from_std(stream)?);
        http1::Builder::new().serve_connection(io, answer).await?;
        Ok(())
    })
}
