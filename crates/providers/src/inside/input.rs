//! What is said to a command: input in its order and no faster than the command takes it, everything else at once.

use crate::locked;
use atoll_core::provider::Error;
use atoll_protocol::exec::{Ask, WINDOW};
use std::convert::Infallible;
use std::sync::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Semaphore, mpsc};

/// Input that waits here because the command does not take it; whoever writes more waits too. More than one request
/// holds, so that a command that reads late can be given its input first.
const UNSENT: usize = 8 << 20;
/// In one frame.
const PIECE: usize = 64 << 10;

/// Whether a command takes input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Intake {
    Never,
    Open,
    Closed,
    /// The command itself has ended.
    Ended,
}

pub(super) struct Speech {
    intake: Mutex<Intake>,
    /// A terminal goes on being typed into after one end of its input.
    is_terminal: bool,
    input: mpsc::UnboundedSender<Ask>,
    /// Signals and sizes: they don't wait behind input.
    words: mpsc::UnboundedSender<Ask>,
    /// One permit for each byte of input that may still wait; closed at the end.
    room: Semaphore,
    window: Window,
}

/// What is yet to be said to one command.
pub(super) struct Unsaid {
    input: mpsc::UnboundedReceiver<Ask>,
    words: mpsc::UnboundedReceiver<Ask>,
}

/// How much may be on its way.
struct Window {
    free: Semaphore,
    /// Sent and not taken: what a worker says is not believed beyond that.
    sent: Mutex<usize>,
}

impl Window {
    /// Waits for room; the bytes then count as sent.
    async fn enter(&self, count: usize) {
        let needed = u32::try_from(count).unwrap_or(u32::MAX);
        // It is never closed.
        if let Ok(room) = self.free.acquire_many(needed).await {
            room.forget();
            *locked(&self.sent) += count;
        }
    }

    fn taken(&self, count: usize) {
        let mut sent = locked(&self.sent);
        let count = count.min(*sent);
        *sent -= count;
        self.free.add_permits(count);
    }
}

impl Speech {
    pub(super) fn new(takes_input: bool, is_terminal: bool) -> (Self, Unsaid) {
        let ((input, unsaid_input), (words, unsaid_words)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let intake = if takes_input || is_terminal { Intake::Open } else { Intake::Never };
        let window = Window { free: Semaphore::new(WINDOW), sent: Mutex::new(0) };
        let speech =
            Self { intake: Mutex::new(intake), is_terminal, input, words, room: Semaphore::new(UNSENT), window };
        (speech, Unsaid { input: unsaid_input, words: unsaid_words })
    }

    pub(super) fn say(&self, word: Ask) {
        // To one that has ended there is nothing to say, and that is no fault.
        drop(self.words.send(word));
    }

    /// As much as there is room for, the rest when there is.
    pub(super) async fn write(&self, data: &[u8]) -> Result<(), Error> {
        for piece in data.chunks(PIECE) {
            self.takes_input()?;
            let needed = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            // Closed only at the end, which the next look sees.
            let Ok(room) = self.room.acquire_many(needed).await else { break };
            // Given back when it is sent.
            room.forget();
            drop(self.input.send(Ask::Stdin(piece.to_vec())));
        }
        self.takes_input()
    }

    pub(super) fn close(&self) -> Result<(), Error> {
        self.takes_input()?;
        if !self.is_terminal {
            *locked(&self.intake) = Intake::Closed;
        }
        drop(self.input.send(Ask::CloseStdin));
        Ok(())
    }

    fn takes_input(&self) -> Result<(), Error> {
        let detail = match *locked(&self.intake) {
            Intake::Open => return Ok(()),
            Intake::Never => "this command takes no input: start it with `stdin`",
            Intake::Closed => "the end of this command's input was said already",
            Intake::Ended => "the command has ended",
        };
        Err(Error::NoInput { detail: detail.into() })
    }

    pub(super) fn taken(&self, count: u32) {
        self.window.taken(usize::try_from(count).unwrap_or(usize::MAX));
    }

    /// Nobody waits for room any more.
    pub(super) fn end(&self) {
        *locked(&self.intake) = Intake::Ended;
        self.room.close();
    }

    pub(super) async fn speak(&self, mut unsaid: Unsaid, mut write: OwnedWriteHalf) -> Infallible {
        let mut next = None;
        loop {
            let ask = tokio::select! {
                biased;
                Some(word) = unsaid.words.recv() => word,
                Some(input) = self.allowed(&mut unsaid.input, &mut next) => input,
                else => break,
            };
            if write.write_all(&ask.encode()).await.is_err() {
                break;
            }
            if let Ask::Stdin(data) = &ask {
                self.room.add_permits(data.len());
            }
        }
        // The end is the other half's to tell; this half stays open for it.
        std::future::pending().await
    }

    /// The next of the input as soon as it may be sent. May be dropped: what was taken up waits in `next`.
    async fn allowed(&self, input: &mut mpsc::UnboundedReceiver<Ask>, next: &mut Option<Ask>) -> Option<Ask> {
        if next.is_none() {
            *next = Some(input.recv().await?);
        }
        if let Some(Ask::Stdin(data)) = next {
            self.window.enter(data.len()).await;
        }
        next.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::io::AsyncReadExt;
    use tokio::net::UnixStream;
    use tokio::time::timeout;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// The next thing that is said.
    async fn hear(stream: &mut UnixStream, buffer: &mut Vec<u8>) -> Ask {
        loop {
            if let Some(ask) = Ask::decode(buffer).unwrap() {
                return ask;
            }
            assert_ne!(timeout(PATIENCE, stream.read_buf(buffer)).await.unwrap().unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn a_signal_overtakes_input_that_nobody_takes() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let (speech, unsaid) = Speech::new(true, false);
        let speech = std::sync::Arc::new(speech);
        let (_read, write) = ours.into_split();
        let speaking = std::sync::Arc::clone(&speech);
        let speaking = tokio::spawn(async move { match speaking.speak(unsaid, write).await {} });
        speech.write(&vec![7; 600_000]).await.unwrap();
        let (mut buffer, mut heard) = (Vec::new(), 0);
        while heard < WINDOW {
            match hear(&mut theirs, &mut buffer).await {
                Ask::Stdin(data) => heard += data.len(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(heard, WINDOW);
        speech.say(Ask::Signal(9));
        assert_eq!(hear(&mut theirs, &mut buffer).await, Ask::Signal(9));
        // A count that can't be true opens the window no wider.
        speech.taken(u32::MAX);
        speech.taken(u32::MAX);
        speech.close().unwrap();
        while heard < 600_000 {
            match hear(&mut theirs, &mut buffer).await {
                Ask::Stdin(data) => heard += data.len(),
                other => panic!("{other:?} after {heard}"),
            }
            speech.taken(u32::MAX);
        }
        assert_eq!((heard, hear(&mut theirs, &mut buffer).await), (600_000, Ask::CloseStdin));
        speaking.abort();
    }

    #[tokio::test]
    async fn input_is_refused_where_it_would_be_lost() {
        let said = |result: Result<(), Error>| result.unwrap_err().to_string();
        let (none, _unsaid) = Speech::new(false, false);
        assert!(said(none.write(b"a").await).contains("takes no input"));
        assert!(said(none.close()).contains("takes no input"));
        let (open, _unsaid) = Speech::new(true, false);
        open.write(b"a").await.unwrap();
        open.close().unwrap();
        assert!(said(open.write(b"b").await).contains("said already"));
        assert!(said(open.write(b"").await).contains("said already"), "also nothing");
        let (terminal, _unsaid) = Speech::new(false, true);
        terminal.close().unwrap();
        terminal.write(b"a").await.unwrap();
        let much = vec![0; UNSENT];
        let full = terminal.write(&much);
        let ending = async { terminal.end() };
        let (full, ()) = tokio::join!(full, ending);
        assert!(said(full).contains("has ended"), "who waits for room is told");
    }
}
