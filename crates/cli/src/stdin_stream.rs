//! stdin as the body of a request.

use atoll_client::Body;
use bytes::Bytes;
use futures_util::stream;
use std::io::{self, Read};
use tokio::sync::mpsc;

/// Limit on chunks that are not sent yet.
const MAX_BUFFERED_CHUNKS: usize = 4;

pub type Chunk = io::Result<Bytes>;

/// A body that streams stdin.
pub fn stdin_body() -> Body {
    let (sender, chunks) = mpsc::channel(MAX_BUFFERED_CHUNKS);
    tokio::task::spawn_blocking(move || read_chunks(io::stdin(), &sender, |_| {}));
    chunk_body(chunks)
}

/// A request body from the chunks of a channel.
pub fn chunk_body(chunks: mpsc::Receiver<Chunk>) -> Body {
    let chunks = stream::unfold(chunks, |mut chunks| async move { Some((chunks.recv().await?, chunks)) });
    Body::wrap_stream(chunks)
}

/// Reads to the end on a blocking thread: a read of stdin cannot be cancelled.
pub fn read_chunks(mut from: impl Read, sender: &mpsc::Sender<Chunk>, count: impl Fn(u64)) {
    let mut buffer = vec![0; atoll_trees::CHUNK_BYTES];
    loop {
        let chunk = match from.read(&mut buffer) {
            Ok(0) => return,
            Ok(length) => Ok(Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default())),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => Err(error),
        };
        let failed = chunk.is_err();
        count(chunk.as_ref().map_or(0, |chunk| chunk.len() as u64));
        if sender.blocking_send(chunk).is_err() || failed {
            return;
        }
    }
}
