//! Bodies of requests in hand. They are read whole, since the model may stand at their end; so there is a bound to each,
//! to all of a sandbox and to all together, by what was really sent: whoever only announces much takes no room.

use super::refusal::Refusal;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Body;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest request: images go in them.
pub const LARGEST: usize = 64 << 20;
/// Of all sandboxes, and of one.
const ALL: usize = 256 << 20;
const ONE: usize = 128 << 20;
const UNIT: usize = 1 << 10;
/// For there to be room for more.
const ROOM: Duration = Duration::from_secs(20);
/// For a whole body: it comes from this machine.
const READING: Duration = Duration::from_secs(120);

#[derive(Clone)]
pub struct Room(Arc<Semaphore>);

impl Room {
    pub fn of_all() -> Self {
        Self(Arc::new(Semaphore::new(ALL / UNIT)))
    }

    pub fn of_one() -> Self {
        Self(Arc::new(Semaphore::new(ONE / UNIT)))
    }

    async fn take(&self, units: u32) -> Result<OwnedSemaphorePermit, Refusal> {
        let taken = tokio::time::timeout(ROOM, Arc::clone(&self.0).acquire_many_owned(units)).await;
        taken.ok().and_then(Result::ok).ok_or(Refusal::Busy)
    }
}

/// The room that a body takes, given back with it.
#[derive(Default)]
pub struct Held(Vec<OwnedSemaphorePermit>);

pub async fn read<B>(body: B, one: &Room, all: &Room) -> Result<(Bytes, Held), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let read = tokio::time::timeout(READING, read_on(body, one, all)).await;
    read.unwrap_or(Err(Refusal::Unreadable))
}

async fn read_on<B>(mut body: B, one: &Room, all: &Room) -> Result<(Bytes, Held), Refusal>
where
    B: Body<Data = Bytes> + Unpin,
{
    let told = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if told > LARGEST {
        return Err(Refusal::TooLarge { most: LARGEST });
    }
    let (mut bytes, mut held, mut units) = (BytesMut::new(), Held::default(), 0);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Refusal::Unreadable)?.into_data() else { continue };
        if bytes.len() + data.len() > LARGEST {
            return Err(Refusal::TooLarge { most: LARGEST });
        }
        // What a growing buffer takes.
        let needed = (bytes.len() + data.len()).div_ceil(UNIT).next_power_of_two();
        if needed > units {
            let more = u32::try_from(needed - units).map_err(|_| Refusal::Busy)?;
            held.0.push(one.take(more).await?);
            held.0.push(all.take(more).await?);
            units = needed;
        }
        bytes.extend_from_slice(&data);
    }
    Ok((bytes.freeze(), held))
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use std::convert::Infallible;

    #[tokio::test]
    async fn a_body_is_read_whole_and_gives_its_room_back() {
        let (one, all) = (Room::of_one(), Room::of_all());
        let before = (one.0.available_permits(), all.0.available_permits());
        let pieces = stream::iter((0..100).map(|_| Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; 5000])))));
        let (bytes, held) = read(StreamBody::new(pieces), &one, &all).await.unwrap();
        assert_eq!(bytes.len(), 500_000);
        assert_eq!(before.0 - one.0.available_permits(), 512);
        assert_eq!(before.1 - all.0.available_permits(), 512);
        drop(held);
        assert_eq!((one.0.available_permits(), all.0.available_permits()), before);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_large_or_has_no_room_is_refused() {
        let (one, all) = (Room::of_one(), Room::of_all());
        let large = Full::new(Bytes::from(vec![0; LARGEST + 1]));
        assert_eq!(read(large, &one, &all).await.err(), Some(Refusal::TooLarge { most: LARGEST }));
        let full = Room(Arc::new(Semaphore::new(3)));
        let body = || Full::new(Bytes::from(vec![0; 4 * UNIT]));
        assert_eq!(read(body(), &one, &full).await.err(), Some(Refusal::Busy));
        assert_eq!(read(body(), &full, &all).await.err(), Some(Refusal::Busy));
        assert_eq!(one.0.available_permits(), ONE / UNIT, "nothing is left behind");
        let never = StreamBody::new(stream::pending::<Result<Frame<Bytes>, Infallible>>());
        assert_eq!(read(never, &one, &all).await.err(), Some(Refusal::Unreadable));
    }
}
