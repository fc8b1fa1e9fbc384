//! Commands as a sandbox's own root. Its worker can't start these: it has given up what they need. The launcher does, and
//! here stands in between for the worker: the same frames, over a pair of sockets.

use atoll_core::provider::Error;
use atoll_jail::{Exit, Launcher, Place, Program, Running, Stopper};
use atoll_protocol::exec::{Ask, End, Start, Tell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, pipe};
use tokio::sync::{mpsc, oneshot};

const PIECE: usize = 64 << 10;
/// Output that waits until it is taken.
const WAITING: usize = 4;
/// Where the worker listens for what wants out, as it tells the commands that it starts itself.
const PROXY: &str = "http://127.0.0.1:7709";
const USUAL: &[(&str, &str)] = &[
    ("HTTP_PROXY", PROXY),
    ("HTTPS_PROXY", PROXY),
    ("http_proxy", PROXY),
    ("https_proxy", PROXY),
    ("NO_PROXY", "localhost,127.0.0.1,::1"),
    ("no_proxy", "localhost,127.0.0.1,::1"),
    ("TERM", "dumb"),
    // Nobody is there to answer a package's questions.
    ("DEBIAN_FRONTEND", "noninteractive"),
];

/// The end of a connection that carries one command, as a worker's would.
pub(super) fn serve(launcher: Arc<Launcher>, place: &Place) -> Result<UnixStream, Error> {
    if place.image.is_none() {
        let detail = "only a sandbox with an imported root has a root to run as; here what the host shows is read-only";
        return Err(Error::Refused { detail: detail.into() });
    }
    let (ours, theirs) = UnixStream::pair().map_err(|error| super::git::broken("no connection to be had", &error))?;
    let name = place.name.clone();
    tokio::spawn(async move {
        let (mut read, mut write) = theirs.into_split();
        let mut buffer = Vec::new();
        let end = match next(&mut read, &mut buffer).await {
            Some(Ask::Start(start)) => match begin(launcher, name, &start).await {
                Ok(begun) => carry(begun, &mut read, buffer, &mut write).await,
                Err(error) => End::NotStarted { error },
            },
            Some(_) | None => End::Unknown,
        };
        // Nobody listens any more: then nobody misses it.
        drop(write.write_all(&Tell::Ended(end).encode()).await);
    });
    Ok(ours)
}

struct Begun {
    running: Running,
    input: Option<pipe::Sender>,
    output: pipe::Receiver,
    errors: pipe::Receiver,
}

fn readable() -> std::io::Result<(pipe::Receiver, OwnedFd)> {
    let (read, write) = std::io::pipe()?;
    Ok((pipe::Receiver::from_owned_fd(read.into())?, write.into()))
}

async fn begin(launcher: Arc<Launcher>, name: String, start: &Start) -> Result<Begun, String> {
    if start.terminal.is_some() {
        return Err("a command as root has no terminal".into());
    }
    let failed = |error: std::io::Error| error.to_string();
    let (output, theirs) = readable().map_err(failed)?;
    let (errors, theirs_too) = readable().map_err(failed)?;
    let (read, write) = std::io::pipe().map_err(failed)?;
    let input = pipe::Sender::from_owned_fd(write.into()).map_err(failed)?;
    let usual = USUAL.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let given = start.env.iter().map(|(name, value)| (name.clone(), value.clone()));
    let program = Program {
        argv: start.argv.clone(),
        environment: usual.chain(given).collect(),
        directory: start.cwd.clone(),
        as_root: true,
    };
    let entering = move || launcher.enter_with(&name, program, [read.into(), theirs, theirs_too]);
    let running = match tokio::task::spawn_blocking(entering).await {
        Ok(running) => running.map_err(|error| error.to_string())?,
        Err(error) => return Err(error.to_string()),
    };
    Ok(Begun { running, input: start.stdin.then_some(input), output, errors })
}

async fn carry(
    begun: Begun,
    read: &mut OwnedReadHalf,
    buffer: Vec<u8>,
    write: &mut (impl tokio::io::AsyncWrite + Unpin),
) -> End {
    let Begun { mut running, input, output, errors } = begun;
    let stopper = running.stopper();
    // No thread waits for it: there are fewer of them than there may be commands.
    let (wake, woken) = oneshot::channel();
    running.when_ended(move || {
        let _ = wake.send(());
    });
    let ended = async move {
        let _ = woken.await;
        running.wait(Duration::ZERO)
    };
    tokio::pin!(ended);
    let (told, mut tells) = mpsc::channel(WAITING);
    let printing =
        [tokio::spawn(print(output, told.clone(), Tell::Stdout)), tokio::spawn(print(errors, told, Tell::Stderr))];
    let (taken, mut of_input) = mpsc::unbounded_channel();
    let asking = obey(read, buffer, input, &stopper, taken);
    tokio::pin!(asking);
    let mut asked = false;
    let exit = loop {
        tokio::select! {
            Some(tell) = tells.recv() => if write.write_all(&tell.encode()).await.is_err() {
                // Whoever wanted it is gone.
                drop(stopper.stop());
            },
            Some(count) = of_input.recv() => {
                let taken = Tell::Taken(u32::try_from(count).unwrap_or(u32::MAX));
                if write.write_all(&taken.encode()).await.is_err() {
                    drop(stopper.stop());
                }
            }
            () = &mut asking, if !asked => asked = true,
            exit = &mut ended => break exit,
        }
    };
    // What it left running may hold its output open; what the command itself printed is in the pipes by now.
    let rest = async {
        while let Some(tell) = tells.recv().await {
            if write.write_all(&tell.encode()).await.is_err() {
                break;
            }
        }
    };
    drop(tokio::time::timeout(Duration::from_secs(1), rest).await);
    printing.iter().for_each(tokio::task::JoinHandle::abort);
    match exit {
        Ok(Exit::Exited(code)) => End::Exited { code },
        Ok(Exit::Signalled(signal)) => End::Signalled { signal },
        Ok(Exit::OutOfMemory) => End::OutOfMemory,
        Ok(Exit::TimedOut | Exit::Unknown) | Err(_) => End::Unknown,
    }
}

async fn print(mut pipe: pipe::Receiver, told: mpsc::Sender<Tell>, kind: fn(Vec<u8>) -> Tell) {
    let mut piece = vec![0; PIECE];
    while let Ok(count @ 1..) = pipe.read(&mut piece).await {
        if told.send(kind(piece.get(..count).unwrap_or_default().to_vec())).await.is_err() {
            return;
        }
    }
}

/// Does what is asked of the command until nobody asks any more, which ends it. It is always listened to: a command that
/// does not read its input must not hide that it is to end.
async fn obey(
    read: &mut OwnedReadHalf,
    mut buffer: Vec<u8>,
    mut input: Option<pipe::Sender>,
    stopper: &Stopper,
    taken: mpsc::UnboundedSender<usize>,
) {
    let (mut unread, mut closing) = (Vec::new(), false);
    // With the command ends who would hear it.
    let tell = |count: usize| {
        let _ = taken.send(count);
    };
    loop {
        let ask = tokio::select! {
            ask = next(read, &mut buffer) => ask,
            written = write(&mut input, &unread), if !unread.is_empty() => {
                // One that reads no more is not in need of it.
                let count = written.unwrap_or_else(|_| {
                    closing = true;
                    unread.len()
                });
                unread.drain(..count);
                tell(count);
                if closing && unread.is_empty() {
                    input = None;
                }
                continue;
            }
        };
        match ask {
            Some(Ask::Stdin(data)) if input.is_some() && !closing => unread.extend_from_slice(&data),
            Some(Ask::Stdin(data)) => tell(data.len()),
            Some(Ask::CloseStdin) => {
                closing = true;
                input = input.filter(|_| !unread.is_empty());
            }
            // The launcher knows one way to end what it has started.
            Some(Ask::Signal(_)) => drop(stopper.stop()),
            Some(Ask::Start(_) | Ask::Resize(_)) => {}
            None => break,
        }
    }
    drop(stopper.stop());
}

async fn write(input: &mut Option<pipe::Sender>, data: &[u8]) -> std::io::Result<usize> {
    match input {
        Some(pipe) => pipe.write(data).await,
        None => std::future::pending().await,
    }
}

async fn next(read: &mut (impl AsyncRead + Unpin), buffer: &mut Vec<u8>) -> Option<Ask> {
    let mut piece = vec![0; PIECE];
    loop {
        match Ask::decode(buffer) {
            Ok(Some(ask)) => return Some(ask),
            Ok(None) => {}
            Err(error) => {
                tracing::warn!(%error, "what is asked of a command can't be read");
                return None;
            }
        }
        match read.read(&mut piece).await {
            Ok(0) | Err(_) => return None,
            Ok(count) => buffer.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
}
