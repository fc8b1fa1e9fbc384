//! Forks, snapshots and imported images. The sandbox is quiesced first; its worker refuses that during a turn.

use super::Local;
use super::limit_notices::fixed_dirs_notice;
use crate::worker_client::{SandboxNotice, link};
use atoll_core::provider::{ByteStream, CreateSpec, Error, ImageRef, ProviderId, ProviderSandbox, SnapshotRef};
use atoll_core::time::Timestamp;
use atoll_jail::{Image, Launcher, SandboxInfo, SandboxSpec, Snapshot};
use atoll_protocol::exec::{ConnectionKind, QUIESCED_REPLY};
use futures_util::StreamExt;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// Time limit for the worker to quiesce, which ends the agent first.
const QUIESCE_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest accepted refusal text.
const MAX_REFUSAL_BYTES: usize = 1000;

/// No process runs as the agent while this guard lives.
pub(super) struct QuiesceGuard {
    _connection: Option<UnixStream>,
}

impl Local {
    pub(super) async fn fork_files(&self, id: &ProviderId, spec: &CreateSpec) -> Result<ProviderSandbox, Error> {
        let parent = self.find_info(id).await?;
        self.require_tier(spec.settings.isolation).await?;
        let still = quiesce_agent(&parent).await?;
        // A fork has its parent's image and files.
        let jail = SandboxSpec { image: None, snapshot: None, cache: None, ..super::launcher_spec(spec) };
        let name = parent.name.clone();
        let result = self.call_launcher(move |launcher| launcher.fork_sandbox(&name, &jail)).await;
        drop(still);
        if result.is_ok() {
            self.report_fixed_dirs(id, &parent).await;
        }
        result.map(|info| super::describe_sandbox(&info))
    }

    /// Reports once to a sandbox that its directories cannot be renamed since it was forked or snapshotted.
    pub(super) async fn report_fixed_dirs(&self, id: &ProviderId, before: &SandboxInfo) {
        let Ok(now) = self.find_info(id).await else { return };
        if let (Some(text), false, Ok(sandbox)) = (fixed_dirs_notice(&now), before.has_fixed_dirs, now.name.parse()) {
            self.host.report_notice(sandbox, SandboxNotice::Text(text));
        }
    }

    pub(super) async fn create_snapshot(&self, id: &ProviderId, snapshot: &str) -> Result<SnapshotRef, Error> {
        let info = self.find_info(id).await?;
        let still = quiesce_agent(&info).await?;
        let (name, called) = (info.name.clone(), snapshot.to_owned());
        let result = self.call_launcher(move |launcher| launcher.create_snapshot(&name, &called)).await;
        drop(still);
        if result.is_ok() {
            self.report_fixed_dirs(id, &info).await;
        }
        result.map(snapshot_ref)
    }

    pub(super) async fn list_snapshots(&self) -> Result<Vec<SnapshotRef>, Error> {
        Ok(self.call_launcher(|launcher| launcher.list_snapshots()).await?.into_iter().map(snapshot_ref).collect())
    }

    /// Deletes a snapshot, cache or image; `Gone` if it does not exist.
    pub(super) async fn forget_entry(
        &self,
        forget: impl FnOnce(&Launcher) -> Result<(), atoll_jail::Error> + Send + 'static,
    ) -> Result<(), Error> {
        let forgotten = self.call_launcher(move |launcher| match forget(launcher) {
            Err(atoll_jail::Error::NotFound { .. } | atoll_jail::Error::InvalidLabel { .. }) => Ok(false),
            outcome => outcome.map(|()| true),
        });
        if forgotten.await? { Ok(()) } else { Err(Error::Gone) }
    }

    pub(super) async fn list_images(&self) -> Result<Vec<ImageRef>, Error> {
        Ok(self.call_launcher(|launcher| launcher.list_images()).await?.into_iter().map(image_ref).collect())
    }

    /// Streams the archive to the unpacking process. If unpacking fails, reports its reason and not the broken pipe.
    pub(super) async fn import_archive(&self, image: &str, mut archive: ByteStream) -> Result<ImageRef, Error> {
        let broken = |error: std::io::Error| Error::Unreachable { detail: format!("cannot create a pipe: {error}") };
        let (reader, sender) = std::io::pipe().map_err(broken)?;
        let mut sender = pipe::Sender::from_owned_fd(sender.into()).map_err(broken)?;
        let called = image.to_owned();
        let unpacking = self.call_launcher(move |launcher| launcher.import_image(&called, reader.into()));
        let feeding = async move {
            while let Some(piece) = archive.next().await {
                if sender.write_all(&piece?).await.is_err() {
                    break;
                }
            }
            Ok::<(), Error>(())
        };
        let (unpacked, fed) = tokio::join!(unpacking, feeding);
        match (unpacked, fed) {
            // A truncated archive may look complete.
            (Ok(_), Err(error)) => {
                let called = image.to_owned();
                drop(self.call_launcher(move |launcher| launcher.forget_image(&called)).await);
                Err(error)
            }
            (Err(error), _) => Err(error),
            (Ok(image), Ok(())) => Ok(image_ref(image)),
        }
    }
}

/// Waits until no process runs as the agent. A sandbox without a worker is already quiet.
pub(super) async fn quiesce_agent(info: &SandboxInfo) -> Result<QuiesceGuard, Error> {
    if !info.is_alive {
        return Ok(QuiesceGuard { _connection: None });
    }
    if info.is_paused {
        return Err(Error::Refused { detail: "the sandbox is paused; resume it first".into() });
    }
    let lost = |error: std::io::Error| Error::Unreachable { detail: format!("the worker does not respond: {error}") };
    let mut connection = link::dial_worker(&info.worker_socket, ConnectionKind::Quiesce).await.map_err(lost)?;
    let mut answer = vec![0; MAX_REFUSAL_BYTES];
    let read = tokio::time::timeout(QUIESCE_TIMEOUT, connection.read(&mut answer)).await;
    let length = read.map_err(|_| Error::Busy { detail: "the agent does not stop".into() })?.map_err(lost)?;
    match answer.get(..length) {
        Some([QUIESCED_REPLY]) => Ok(QuiesceGuard { _connection: Some(connection) }),
        Some([]) | None => Err(Error::Unreachable { detail: "the worker closed the connection".into() }),
        Some(why) => Err(Error::Busy { detail: String::from_utf8_lossy(why).into_owned() }),
    }
}

pub(super) fn timestamp_from_millis(milliseconds: u64) -> Option<Timestamp> {
    i64::try_from(milliseconds).ok()?.checked_mul(1000).map(Timestamp::from_micros)
}

fn snapshot_ref(snapshot: Snapshot) -> SnapshotRef {
    let Snapshot { name, image, created_at, bytes, .. } = snapshot;
    SnapshotRef { name, bytes, image, created_at: timestamp_from_millis(created_at) }
}

fn image_ref(image: Image) -> ImageRef {
    let Image { name, bytes, layers, created_at, .. } = image;
    ImageRef { name, bytes: Some(bytes), layers, created_at: timestamp_from_millis(created_at) }
}
