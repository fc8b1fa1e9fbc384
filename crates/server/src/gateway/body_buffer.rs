//! Buffers request bodies. The gateway reads them whole, since the model may come last. Memory is bounded per body, per
//! sandbox and in total, by the bytes received rather than the announced length.

use super::gateway_refusal::GatewayRefusal;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum size of a request; requests contain images.
pub const MAX_BODY_BYTES: usize = 64 << 20;
/// Memory for the bodies of all sandboxes, and of one.
const TOTAL_BUFFER_BYTES: usize = 256 << 20;
const SANDBOX_BUFFER_BYTES: usize = 128 << 20;
const PERMIT_BYTES: usize = 1 << 10;
/// Maximum wait for free memory.
const SPACE_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum time to receive a body.
const READ_TIMEOUT: Duration = Duration::from_secs(120);

/// A bounded amount of buffer memory.
#[derive(Clone)]
pub struct BufferSpace(Arc<Semaphore>);

impl BufferSpace {
    pub fn for_all() -> Self {
        Self(Arc::new(Semaphore::new(TOTAL_BUFFER_BYTES / PERMIT_BYTES)))
    }

    pub fn for_sandbox() -> Self {
        Self(Arc::new(Semaphore::new(SANDBOX_BUFFER_BYTES / PERMIT_BYTES)))
    }

    async fn acquire(&self, units: u32) -> Result<OwnedSemaphorePermit, GatewayRefusal> {
        let permit = tokio::time::timeout(SPACE_TIMEOUT, Arc::clone(&self.0).acquire_many_owned(units)).await;
        permit.ok().and_then(Result::ok).ok_or(GatewayRefusal::Busy)
    }
}

/// The memory of one body, released on drop.
#[derive(Default)]
pub struct BufferPermit(Vec<OwnedSemaphorePermit>);

pub async fn read_body<B>(
    body: B,
    one: &BufferSpace,
    all: &BufferSpace,
) -> Result<(Bytes, BufferPermit), GatewayRefusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let read = tokio::time::timeout(READ_TIMEOUT, read_frames(body, one, all)).await;
    read.unwrap_or(Err(GatewayRefusal::Unreadable))
}

async fn read_frames<B>(
    mut body: B,
    one: &BufferSpace,
    all: &BufferSpace,
) -> Result<(Bytes, BufferPermit), GatewayRefusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let min_bytes = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if min_bytes > MAX_BODY_BYTES {
        return Err(GatewayRefusal::TooLarge { most: MAX_BODY_BYTES });
    }
    let (mut bytes, mut permit, mut units) = (BytesMut::new(), BufferPermit::default(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| GatewayRefusal::Unreadable)?.into_data() else { continue };
        if bytes.len() + data.len() > MAX_BODY_BYTES {
            return Err(GatewayRefusal::TooLarge { most: MAX_BODY_BYTES });
        }
        // A growing buffer doubles its capacity.
        let needed = (bytes.len() + data.len()).div_ceil(PERMIT_BYTES).next_power_of_two();
        if needed > units {
            let more = u32::try_from(needed - units).map_err(|_| GatewayRefusal::Busy)?;
            permit.0.push(one.acquire(more).await?);
            permit.0.push(all.acquire(more).await?);
            units = needed;
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), permit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use std::convert::Infallible;

    #[tokio::test]
    async fn reads_a_whole_body_and_releases_its_memory() {
        let (one, all) = (BufferSpace::for_sandbox(), BufferSpace::for_all());
        let before = (one.0.available_permits(), all.0.available_permits());
        let pieces = stream::iter((0..100).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 5000])))));
        let (bytes, permit) = read_body(StreamBody::new(pieces), &one, &all).await.unwrap();
        assert_eq!(bytes.len(), 500_000);
        assert_eq!(before.0 - one.0.available_permits(), 512);
        assert_eq!(before.1 - all.0.available_permits(), 512);
        drop(permit);
        assert_eq!((one.0.available_permits(), all.0.available_permits()), before);
    }

    #[tokio::test(start_paused = true)]
    async fn refuses_bodies_that_are_too_large_or_find_no_memory() {
        let (one, all) = (BufferSpace::for_sandbox(), BufferSpace::for_all());
        let large = Full::new(Bytes::from(vec![0; MAX_BODY_BYTES + 1]));
        assert_eq!(read_body(large, &one, &all).await.err(), Some(GatewayRefusal::TooLarge { most: MAX_BODY_BYTES }));
        let full = BufferSpace(Arc::new(Semaphore::new(3)));
        let body = || Full::new(Bytes::from(vec![0; 4 * PERMIT_BYTES]));
        assert_eq!(read_body(body(), &one, &full).await.err(), Some(GatewayRefusal::Busy));
        assert_eq!(read_body(body(), &full, &all).await.err(), Some(GatewayRefusal::Busy));
        assert_eq!(one.0.available_permits(), SANDBOX_BUFFER_BYTES / PERMIT_BYTES, "all memory is released");
        let never = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        assert_eq!(read_body(never, &one, &all).await.err(), Some(GatewayRefusal::Unreadable));
    }
}
