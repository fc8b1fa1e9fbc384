//! Quiesces the sandbox for one connection: replies with one byte when everything has stopped and resumes when the
//! connection closes. A refusal is a text instead.

use crate::executor::QuiesceRequest;
use crate::link::Connection;
use crate::spawner::Spawner;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Time limit of a quiesced sandbox.
const MAX_QUIESCE_TIME: Duration = Duration::from_secs(60);

pub async fn serve_quiesce(mut connection: Connection, requests: mpsc::Sender<QuiesceRequest>, spawner: Spawner) {
    let (ready, answer) = oneshot::channel();
    let (hold, resume) = oneshot::channel::<()>();
    let sent = requests.send(QuiesceRequest { ready, resume }).await.is_ok();
    let answer = if sent { answer.await.ok() } else { None };
    let refusal = match answer {
        Some(Ok(())) => None,
        Some(Err(why)) => Some(why),
        None => Some("the worker is exiting".to_owned()),
    };
    if let Some(why) = refusal {
        drop(connection.stream.write_all(why.as_bytes()).await);
        return;
    }
    let suspended = spawner.suspend().await;
    if connection.stream.write_all(&[atoll_protocol::exec::QUIESCED_REPLY]).await.is_ok() {
        // The server sends nothing; the read ends when it closes the connection.
        drop(timeout(MAX_QUIESCE_TIME, connection.stream.read(&mut [0])).await);
    }
    drop((suspended, hold));
}
