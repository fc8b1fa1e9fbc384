//! Detects a client that disconnects during a model response. Proxy connections may be half-closed, so hyper does not
//! detect it; without this, the upstream would keep generating a paid response.

use bytes::Bytes;
use http_body_util::BodyExt;
use http_body_util::combinators::BoxBody;
use hyper::body::{Body, Frame, SizeHint};
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::tcp::OwnedReadHalf;
use tokio::sync::watch;

/// Recheck delay while unread data hides the end of the stream.
const RECHECK_DELAY: Duration = Duration::from_millis(200);

/// The number of open model responses on a connection.
#[derive(Clone, Default)]
pub struct OpenResponses(Arc<watch::Sender<usize>>);

/// Counts one open response until it is dropped.
pub struct ResponseGuard(OpenResponses);

impl Drop for ResponseGuard {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl OpenResponses {
    pub fn begin(&self) -> ResponseGuard {
        self.0.send_modify(|count| *count += 1);
        ResponseGuard(self.clone())
    }

    /// Returns when the peer disconnects while a response is open.
    pub async fn wait_for_disconnect(&self, peer: Option<OwnedReadHalf>) {
        let Some(mut peer) = peer else { return pending().await };
        let mut count = self.0.subscribe();
        loop {
            if count.wait_for(|count| *count > 0).await.is_err() {
                return pending().await;
            }
            tokio::select! {
                () = wait_for_end(&mut peer) => return,
                _ = count.wait_for(|count| *count == 0) => {}
            }
        }
    }
}

async fn wait_for_end(peer: &mut OwnedReadHalf) {
    let mut byte = [0];
    while let Ok(1..) = peer.peek(&mut byte).await {
        tokio::time::sleep(RECHECK_DELAY).await;
    }
}

/// Keeps a response open until its last byte is delivered.
pub fn guard_body<B>(body: B, under_way: ResponseGuard) -> BoxBody<Bytes, B::Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
{
    GuardedBody { inner: body, _guard: under_way }.boxed()
}

struct GuardedBody<B> {
    inner: B,
    _guard: ResponseGuard,
}

impl<B: Body<Data = Bytes> + Unpin> Body for GuardedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    const MOMENT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    #[tokio::test]
    async fn detects_a_disconnect_only_while_a_response_is_open() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let (peer, _writer) = server.into_split();
        let answers = OpenResponses::default();
        let first = answers.begin();
        let left = answers.wait_for_disconnect(Some(peer));
        tokio::pin!(left);
        assert!(tokio::time::timeout(MOMENT, &mut left).await.is_err(), "still connected");
        drop(first);
        client.shutdown().await.unwrap();
        assert!(
            tokio::time::timeout(MOMENT, &mut left).await.is_err(),
            "a half-closed connection is fine without a response"
        );
        let _second = answers.begin();
        tokio::time::timeout(LONG, &mut left).await.expect("disconnected");
    }
}
