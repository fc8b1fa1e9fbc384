//! The connection that makes a sandbox quiet: once it is, one byte says so, and it stays quiet until the other side
//! closes. Whoever is refused gets a sentence instead.

use crate::executor::Quiet;
use crate::hands::Handle;
use crate::link::Connection;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// A sandbox is not kept from working for longer, whatever happens outside.
const LONGEST: Duration = Duration::from_secs(60);

pub async fn serve(mut connection: Connection, asks: mpsc::Sender<Quiet>, hands: Handle) {
    let (ready, answer) = oneshot::channel();
    let (hold, over) = oneshot::channel::<()>();
    let asked = asks.send(Quiet { ready, over }).await.is_ok();
    let answer = if asked { answer.await.ok() } else { None };
    let refusal = match answer {
        Some(Ok(())) => None,
        Some(Err(why)) => Some(why),
        None => Some("its worker is going".to_owned()),
    };
    if let Some(why) = refusal {
        drop(connection.stream.write_all(why.as_bytes()).await);
        return;
    }
    let resting = hands.rest().await;
    if connection.stream.write_all(&[atoll_protocol::exec::QUIET]).await.is_ok() {
        let mut rest = [0];
        // Nothing comes; the end does.
        drop(timeout(LONGEST, connection.stream.read(&mut rest)).await);
    }
    drop((resting, hold));
}
