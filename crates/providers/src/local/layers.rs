//! Files as a whole: forks, snapshots and imported roots. They are taken while the sandbox is quiet:
//! its worker is asked first, and says no in the middle of a turn.

use super::Local;
use crate::inside::link;
use atoll_core::provider::{ByteStream, CreateSpec, Error, Found, ImageRef, ProviderId, SnapshotRef};
use atoll_core::time::Timestamp;
use atoll_jail::{Image, Launcher, Place, Snapshot, Spec};
use atoll_protocol::exec::{Opening, QUIET};
use futures_util::StreamExt;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// For a worker to become quiet: its agent ends first.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest sentence that a worker refuses with.
const SENTENCE: usize = 1000;

/// Nothing runs as the agent while this is held.
struct Stillness {
    _connection: Option<UnixStream>,
}

impl Local {
    pub(super) async fn fork_files(&self, id: &ProviderId, spec: &CreateSpec) -> Result<Found, Error> {
        let parent = self.place(id).await?;
        self.has_tier(spec.settings.isolation).await?;
        let still = still(&parent).await?;
        // Its root and its files are the parent's.
        let jail = Spec { image: None, snapshot: None, ..super::wanted(spec) };
        let made = self.ask(move |launcher| launcher.fork(&parent.name, &jail)).await;
        drop(still);
        made.map(|place| super::found(&place))
    }

    pub(super) async fn keep_files(&self, id: &ProviderId, snapshot: &str) -> Result<SnapshotRef, Error> {
        let place = self.place(id).await?;
        let still = still(&place).await?;
        let called = snapshot.to_owned();
        let made = self.ask(move |launcher| launcher.snapshot(&place.name, &called)).await;
        drop(still);
        made.map(of_snapshot)
    }

    pub(super) async fn list_snapshots(&self) -> Result<Vec<SnapshotRef>, Error> {
        Ok(self.ask(|launcher| launcher.snapshots()).await?.into_iter().map(of_snapshot).collect())
    }

    /// What is not kept is gone, and says so.
    pub(super) async fn forget(
        &self,
        forget: impl FnOnce(&Launcher) -> Result<(), atoll_jail::Error> + Send + 'static,
    ) -> Result<(), Error> {
        let forgotten = self.ask(move |launcher| match forget(launcher) {
            Err(atoll_jail::Error::NotKept { .. } | atoll_jail::Error::Label { .. }) => Ok(false),
            outcome => outcome.map(|()| true),
        });
        if forgotten.await? { Ok(()) } else { Err(Error::Gone) }
    }

    pub(super) async fn list_images(&self) -> Result<Vec<ImageRef>, Error> {
        Ok(self.ask(|launcher| launcher.images()).await?.into_iter().map(of_image).collect())
    }

    /// The archive goes through a pipe to the process that unpacks it. If that fails its own reason is
    /// the one to tell, not that it read no further.
    pub(super) async fn take_image(&self, image: &str, mut archive: ByteStream) -> Result<ImageRef, Error> {
        let broken = |error: std::io::Error| Error::Unreachable { detail: format!("no pipe to be had: {error}") };
        let (theirs, ours) = std::io::pipe().map_err(broken)?;
        let mut ours = pipe::Sender::from_owned_fd(ours.into()).map_err(broken)?;
        let called = image.to_owned();
        let unpacking = self.ask(move |launcher| launcher.import_image(&called, theirs.into()));
        let feeding = async move {
            while let Some(piece) = archive.next().await {
                if ours.write_all(&piece?).await.is_err() {
                    break;
                }
            }
            Ok::<(), Error>(())
        };
        let (unpacked, fed) = tokio::join!(unpacking, feeding);
        match (unpacked, fed) {
            // Half an archive may look like a whole one.
            (Ok(_), Err(error)) => {
                let called = image.to_owned();
                drop(self.ask(move |launcher| launcher.forget_image(&called)).await);
                Err(error)
            }
            (Err(error), _) => Err(error),
            (Ok(image), Ok(())) => Ok(of_image(image)),
        }
    }
}

/// Waits until nothing runs as the agent. A sandbox without a worker is still as it is.
async fn still(place: &Place) -> Result<Stillness, Error> {
    if !place.alive {
        return Ok(Stillness { _connection: None });
    }
    if place.paused {
        return Err(Error::Refused { detail: "the sandbox is paused; let it go on first".into() });
    }
    let lost = |error: std::io::Error| Error::Unreachable { detail: format!("its worker does not answer: {error}") };
    let mut connection = link::dial(&place.socket, Opening::Quiet).await.map_err(lost)?;
    let mut answer = vec![0; SENTENCE];
    let read = tokio::time::timeout(PATIENCE, connection.read(&mut answer)).await;
    let length = read.map_err(|_| Error::Busy { detail: "its agent does not come to rest".into() })?.map_err(lost)?;
    match answer.get(..length) {
        Some([QUIET]) => Ok(Stillness { _connection: Some(connection) }),
        Some([]) | None => Err(Error::Unreachable { detail: "its worker went away".into() }),
        Some(why) => Err(Error::Busy { detail: String::from_utf8_lossy(why).into_owned() }),
    }
}

fn at(milliseconds: u64) -> Option<Timestamp> {
    i64::try_from(milliseconds).ok()?.checked_mul(1000).map(Timestamp::from_micros)
}

fn of_snapshot(snapshot: Snapshot) -> SnapshotRef {
    let Snapshot { name, image, created_at, bytes, .. } = snapshot;
    SnapshotRef { name, bytes, image, created_at: at(created_at) }
}

fn of_image(image: Image) -> ImageRef {
    let Image { name, bytes, layers, created_at, .. } = image;
    ImageRef { name, bytes: Some(bytes), layers, created_at: at(created_at) }
}
