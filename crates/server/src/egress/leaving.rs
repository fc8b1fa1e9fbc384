//! Whether whoever asks a model by way of the proxy is still there. A proxy's connection may be closed by halves, so the
//! server of HTTP does not look; but nobody pays for an answer that nobody hears.

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

/// While there is something that is not read yet, the end can't be seen.
const AGAIN: Duration = Duration::from_millis(200);

/// How many answers of models are under way on a connection.
#[derive(Clone, Default)]
pub struct Answers(Arc<watch::Sender<usize>>);

/// One of them, until it is dropped.
pub struct UnderWay(Answers);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Answers {
    pub fn begin(&self) -> UnderWay {
        self.0.send_modify(|count| *count += 1);
        UnderWay(self.clone())
    }

    /// Ends when the peer has gone while an answer is under way.
    pub async fn left_alone(&self, peer: Option<OwnedReadHalf>) {
        let Some(mut peer) = peer else { return pending().await };
        let mut count = self.0.subscribe();
        loop {
            if count.wait_for(|count| *count > 0).await.is_err() {
                return pending().await;
            }
            tokio::select! {
                () = end_of(&mut peer) => return,
                _ = count.wait_for(|count| *count == 0) => {}
            }
        }
    }
}

async fn end_of(peer: &mut OwnedReadHalf) {
    let mut byte = [0];
    while let Ok(1..) = peer.peek(&mut byte).await {
        tokio::time::sleep(AGAIN).await;
    }
}

/// An answer that is under way until its last byte is handed over.
pub fn guarded<B>(body: B, under_way: UnderWay) -> BoxBody<Bytes, B::Error>
where
    B: Body<Data = Bytes> + Send + Sync + Unpin + 'static,
{
    Guarded { inner: body, _under_way: under_way }.boxed()
}

struct Guarded<B> {
    inner: B,
    _under_way: UnderWay,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Guarded<B> {
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
    async fn an_end_counts_only_while_an_answer_is_under_way() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let (peer, _writer) = server.into_split();
        let answers = Answers::default();
        let first = answers.begin();
        let left = answers.left_alone(Some(peer));
        tokio::pin!(left);
        assert!(tokio::time::timeout(MOMENT, &mut left).await.is_err(), "it is still there");
        drop(first);
        client.shutdown().await.unwrap();
        assert!(tokio::time::timeout(MOMENT, &mut left).await.is_err(), "half a connection is enough for others");
        let _second = answers.begin();
        tokio::time::timeout(LONG, &mut left).await.expect("it has gone");
    }
}
