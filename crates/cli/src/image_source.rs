//! The source of an imported image: an archive, an OCI layout, or an image of an engine on this machine.

use crate::chunk_channel::{ChunkWriter, chunk_channel};
use crate::failure::{Failure, Result};
use crate::stdin_stream::{Chunk, chunk_body, stdin_body};
use atoll_client::Body;
use bytes::Bytes;
use rustix::fs::{Mode, OFlags};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::str::FromStr;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The file that marks the directory of an OCI layout.
const LAYOUT_FILE: &str = "oci-layout";
/// What is kept of an engine's error messages.
const MAX_ERROR_BYTES: u64 = 8 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageSource {
    Stdin,
    /// An archive, or the directory of an OCI layout.
    Path(PathBuf),
    /// `PROGRAM://IMAGE`: an image of a local engine.
    Engine {
        program: &'static str,
        image: String,
    },
}

impl FromStr for ImageSource {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        for program in ["docker", "podman"] {
            if let Some(image) = text.strip_prefix(program).and_then(|rest| rest.strip_prefix("://")) {
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-/:@".contains(&byte);
                if image.is_empty() || image.starts_with('-') || !image.bytes().all(is_name) {
                    return Err(format!("expected {program}://IMAGE, such as {program}://debian:stable"));
                }
                return Ok(Self::Engine { program, image: image.to_owned() });
            }
        }
        Ok(match text.strip_prefix("oci:").unwrap_or(text) {
            "-" => Self::Stdin,
            path => Self::Path(path.into()),
        })
    }
}

/// An archive as the body of a request. `producer` fails if the archive is incomplete.
pub struct ArchiveBody {
    pub body: Body,
    pub producer: Option<JoinHandle<Result>>,
}

impl ImageSource {
    pub async fn open(&self) -> Result<ArchiveBody> {
        match self {
            Self::Stdin => Ok(ArchiveBody { body: stdin_body(), producer: None }),
            Self::Path(path) if path.is_dir() => pack_layout(path),
            Self::Path(path) => {
                let archive = tokio::fs::File::open(path).await.map_err(|error| unreadable(path, &error))?;
                Ok(ArchiveBody { body: Body::from(archive), producer: None })
            }
            Self::Engine { program, image } => save_image(program, image),
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    Failure::input(format!("cannot read {}: {error}", path.display()))
}

/// Packs the directory of an OCI layout as tar.
fn pack_layout(path: &Path) -> Result<ArchiveBody> {
    if !path.join(LAYOUT_FILE).is_file() {
        let detail = format!("{} is a directory without {LAYOUT_FILE}, so it is not an OCI layout", path.display());
        let hint = format!("For a root directory, run: tar -C {} -c . | atoll image import NAME -", path.display());
        return Err(Failure::input(detail).with_hint(hint));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd =
        rustix::fs::open(path, flags, Mode::empty()).map_err(|error| unreadable(path, &error.into()))?;
    let (sender, chunks) = chunk_channel();
    let path = path.to_owned();
    let producer = tokio::task::spawn_blocking(move || {
        let mut omitted = None;
        let left_out = |file: &[u8], why: &str| {
            omitted.get_or_insert_with(|| format!("{}: {why}", atoll_trees::display_path(file)));
        };
        let packed = atoll_trees::pack_tree(&root, ChunkWriter(sender.clone()), left_out, |_| {});
        let failed = match (packed, omitted) {
            // Without a receiver the request is over, and its own error says why.
            (Err(atoll_trees::Error::Stream(_)), _) | (Ok(_), None) => return Ok(()),
            (Err(error), _) => error.to_string(),
            (Ok(_), Some(omitted)) => omitted,
        };
        // Fail the request, so that the server does not see a complete archive.
        drop(sender.blocking_send(Err(io::Error::other(failed.clone()))));
        Err(Failure::work("io", format!("cannot read {}: {failed}", path.display())))
    });
    Ok(ArchiveBody { body: chunk_body(chunks), producer: Some(producer) })
}

/// Runs `PROGRAM save IMAGE` and streams its output.
fn save_image(program: &'static str, image: &str) -> Result<ArchiveBody> {
    let mut command = Command::new(program);
    command.args(["save", image]).kill_on_drop(true);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let hint = format!(
                "Install {program}, or run `{program} save {image} -o FILE` where the image is, and import FILE."
            );
            Failure::input(format!("there is no {program} on this machine")).with_hint(hint)
        }
        _ => Failure::work("io", format!("cannot run {program}: {error}")),
    })?;
    let (sender, chunks) = chunk_channel();
    let image = image.to_owned();
    let producer = tokio::spawn(async move {
        let Err(failed) = copy_output(child, &sender).await else { return Ok(()) };
        drop(sender.send(Err(io::Error::other(failed.clone()))).await);
        let hint = format!("`{program} image ls` lists the images of this machine; `{program} pull {image}` adds one.");
        Err(Failure::work("image_not_saved", format!("`{program} save {image}` failed: {failed}")).with_hint(hint))
    });
    Ok(ArchiveBody { body: chunk_body(chunks), producer: Some(producer) })
}

/// Sends the program's output; the error is its last message.
async fn copy_output(mut child: Child, sender: &mpsc::Sender<Chunk>) -> Result<(), String> {
    let errors = tokio::spawn(read_errors(child.stderr.take()));
    if let Some(mut output) = child.stdout.take() {
        let mut buffer = vec![0; atoll_trees::CHUNK_BYTES];
        loop {
            let length = output.read(&mut buffer).await.map_err(|error| error.to_string())?;
            let chunk = buffer.get(..length).unwrap_or_default();
            // Without a receiver the request is over, and its own error says why.
            if chunk.is_empty() || sender.send(Ok(Bytes::copy_from_slice(chunk))).await.is_err() {
                break;
            }
        }
    }
    let status = child.wait().await.map_err(|error| error.to_string())?;
    if status.success() || sender.is_closed() {
        return Ok(());
    }
    let text = errors.await.unwrap_or_default();
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).map(|line| line.trim().to_owned());
    Err(last.unwrap_or_else(|| status.to_string()))
}

async fn read_errors(stream: Option<impl AsyncRead + Unpin>) -> String {
    let Some(stream) = stream else { return String::new() };
    let (mut text, mut head) = (Vec::new(), stream.take(MAX_ERROR_BYTES));
    drop(head.read_to_end(&mut text).await);
    // A full pipe would block the program.
    drop(tokio::io::copy(&mut head.into_inner(), &mut tokio::io::sink()).await);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distinguishes_engines_layouts_and_archives() {
        let parse = |text: &str| text.parse::<ImageSource>();
        let engine = |program, image: &str| Ok(ImageSource::Engine { program, image: image.to_owned() });
        assert_eq!(parse("docker://debian:stable"), engine("docker", "debian:stable"));
        assert_eq!(parse("podman://localhost/a@sha256:ab"), engine("podman", "localhost/a@sha256:ab"));
        assert_eq!(parse("-"), Ok(ImageSource::Stdin));
        assert_eq!(parse("oci:dir"), Ok(ImageSource::Path("dir".into())));
        assert_eq!(parse("docker/root.tar"), Ok(ImageSource::Path("docker/root.tar".into())));
        for bad in ["docker://", "docker://-o/x", "podman://a b", "docker://a;b"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn an_ordinary_directory_is_no_layout() {
        let dir = tempfile::tempdir().unwrap();
        let failure = ImageSource::Path(dir.path().into()).open().await.err().unwrap();
        assert!(failure.to_text(false).unwrap().contains("tar -C "), "{failure:?}");
        std::fs::write(dir.path().join(LAYOUT_FILE), "{}").unwrap();
        let archive = ImageSource::Path(dir.path().into()).open().await.unwrap();
        drop(archive.body);
        archive.producer.unwrap().await.unwrap().unwrap();
    }
}
