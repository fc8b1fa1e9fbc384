//! Input and control requests to a command: input in order and no faster than the command reads, control at once.

use crate::lock_state;
use atoll_core::provider::Error;
use atoll_protocol::exec::{ExecClientFrame, STDIN_WINDOW_BYTES};
use std::convert::Infallible;
use std::sync::Mutex;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::OwnedWriteHalf;
use tokio::sync::{Semaphore, mpsc};

/// Limit on queued input; writers wait beyond it. Larger than one request, so that a command that reads late can get
/// its input first.
const MAX_QUEUED_BYTES: usize = 8 << 20;
const MAX_FRAME_BYTES: usize = 64 << 10;

/// The state of a command's stdin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum InputState {
    Disabled,
    Open,
    Closed,
    /// The command has ended.
    Ended,
}

pub(super) struct CommandInput {
    state: Mutex<InputState>,
    /// A terminal stays open for input after an end-of-file.
    is_terminal: bool,
    input: mpsc::UnboundedSender<ExecClientFrame>,
    /// Signals and resizes, which do not wait behind input.
    control: mpsc::UnboundedSender<ExecClientFrame>,
    /// One permit per byte that may still be queued; closed when the command ends.
    queue_space: Semaphore,
    window: SendWindow,
}

/// The receiving ends of a command's queues.
pub(super) struct InputQueue {
    input: mpsc::UnboundedReceiver<ExecClientFrame>,
    control: mpsc::UnboundedReceiver<ExecClientFrame>,
}

/// Flow control: limits the bytes in flight.
struct SendWindow {
    free: Semaphore,
    /// Bytes in flight; acknowledgements beyond this are ignored.
    sent: Mutex<usize>,
}

impl SendWindow {
    /// Waits for space and counts the bytes as sent.
    async fn reserve_bytes(&self, count: usize) {
        let needed = u32::try_from(count).unwrap_or(u32::MAX);
        // The semaphore is never closed.
        if let Ok(room) = self.free.acquire_many(needed).await {
            room.forget();
            *lock_state(&self.sent) += count;
        }
    }

    fn release_bytes(&self, count: usize) {
        let mut sent = lock_state(&self.sent);
        let count = count.min(*sent);
        *sent -= count;
        self.free.add_permits(count);
    }
}

impl CommandInput {
    pub(super) fn new(takes_input: bool, is_terminal: bool) -> (Self, InputQueue) {
        let ((input, queued_input), (control, queued_control)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let state = if takes_input || is_terminal { InputState::Open } else { InputState::Disabled };
        let window = SendWindow { free: Semaphore::new(STDIN_WINDOW_BYTES), sent: Mutex::new(0) };
        let command_input = Self {
            state: Mutex::new(state),
            is_terminal,
            input,
            control,
            queue_space: Semaphore::new(MAX_QUEUED_BYTES),
            window,
        };
        (command_input, InputQueue { input: queued_input, control: queued_control })
    }

    pub(super) fn send_control(&self, word: ExecClientFrame) {
        // An ended command ignores control requests.
        drop(self.control.send(word));
    }

    /// Queues the data, waiting for space as needed.
    pub(super) async fn write(&self, data: &[u8]) -> Result<(), Error> {
        for piece in data.chunks(MAX_FRAME_BYTES) {
            self.check_open()?;
            let needed = u32::try_from(piece.len()).unwrap_or(u32::MAX);
            // Closed only when the command ends; `check_open` reports that.
            let Ok(room) = self.queue_space.acquire_many(needed).await else { break };
            // `send_queued` returns the permits.
            room.forget();
            drop(self.input.send(ExecClientFrame::Stdin(piece.to_vec())));
        }
        self.check_open()
    }

    pub(super) fn close(&self) -> Result<(), Error> {
        self.check_open()?;
        if !self.is_terminal {
            *lock_state(&self.state) = InputState::Closed;
        }
        drop(self.input.send(ExecClientFrame::CloseStdin));
        Ok(())
    }

    fn check_open(&self) -> Result<(), Error> {
        let detail = match *lock_state(&self.state) {
            InputState::Open => return Ok(()),
            InputState::Disabled => "the command takes no input; start it with `stdin`",
            InputState::Closed => "the command's input is already closed",
            InputState::Ended => "the command has ended",
        };
        Err(Error::NoInput { detail: detail.into() })
    }

    pub(super) fn acknowledge_bytes(&self, count: u32) {
        self.window.release_bytes(usize::try_from(count).unwrap_or(usize::MAX));
    }

    /// Marks the command as ended and wakes waiting writers.
    pub(super) fn discard_input(&self) {
        *lock_state(&self.state) = InputState::Ended;
        self.queue_space.close();
    }

    pub(super) async fn send_queued(&self, mut queue: InputQueue, mut write: OwnedWriteHalf) -> Infallible {
        let mut next = None;
        loop {
            let ask = tokio::select! {
                biased;
                Some(word) = queue.control.recv() => word,
                Some(input) = self.next_allowed(&mut queue.input, &mut next) => input,
                else => break,
            };
            if write.write_all(&ask.encode()).await.is_err() {
                break;
            }
            if let ExecClientFrame::Stdin(data) = &ask {
                self.queue_space.add_permits(data.len());
            }
        }
        // The read half reports the end; keep this half open for it.
        std::future::pending().await
    }

    /// Returns the next input once the window allows it. Cancel-safe: a received item waits in `next`.
    async fn next_allowed(
        &self,
        input: &mut mpsc::UnboundedReceiver<ExecClientFrame>,
        next: &mut Option<ExecClientFrame>,
    ) -> Option<ExecClientFrame> {
        if next.is_none() {
            *next = Some(input.recv().await?);
        }
        if let Some(ExecClientFrame::Stdin(data)) = next {
            self.window.reserve_bytes(data.len()).await;
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

    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    /// Reads the next request.
    async fn next_frame(stream: &mut UnixStream, buffer: &mut Vec<u8>) -> ExecClientFrame {
        loop {
            if let Some(ask) = ExecClientFrame::decode(buffer).unwrap() {
                return ask;
            }
            assert_ne!(timeout(TEST_TIMEOUT, stream.read_buf(buffer)).await.unwrap().unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn a_signal_overtakes_unread_input() {
        let (client, mut worker) = UnixStream::pair().unwrap();
        let (command_input, queue) = CommandInput::new(true, false);
        let command_input = std::sync::Arc::new(command_input);
        let (_read, write) = client.into_split();
        let speaking = std::sync::Arc::clone(&command_input);
        let speaking = tokio::spawn(async move { match speaking.send_queued(queue, write).await {} });
        command_input.write(&vec![7; 600_000]).await.unwrap();
        let (mut buffer, mut received) = (Vec::new(), 0);
        while received < STDIN_WINDOW_BYTES {
            match next_frame(&mut worker, &mut buffer).await {
                ExecClientFrame::Stdin(data) => received += data.len(),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(received, STDIN_WINDOW_BYTES);
        command_input.send_control(ExecClientFrame::Signal(9));
        assert_eq!(next_frame(&mut worker, &mut buffer).await, ExecClientFrame::Signal(9));
        // An excessive acknowledgement does not widen the window.
        command_input.acknowledge_bytes(u32::MAX);
        command_input.acknowledge_bytes(u32::MAX);
        command_input.close().unwrap();
        while received < 600_000 {
            match next_frame(&mut worker, &mut buffer).await {
                ExecClientFrame::Stdin(data) => received += data.len(),
                other => panic!("{other:?} after {received}"),
            }
            command_input.acknowledge_bytes(u32::MAX);
        }
        assert_eq!((received, next_frame(&mut worker, &mut buffer).await), (600_000, ExecClientFrame::CloseStdin));
        speaking.abort();
    }

    #[tokio::test]
    async fn input_is_refused_where_it_would_be_lost() {
        let error_text = |result: Result<(), Error>| result.unwrap_err().to_string();
        let (none, _queue) = CommandInput::new(false, false);
        assert!(error_text(none.write(b"a").await).contains("takes no input"));
        assert!(error_text(none.close()).contains("takes no input"));
        let (open, _queue) = CommandInput::new(true, false);
        open.write(b"a").await.unwrap();
        open.close().unwrap();
        assert!(error_text(open.write(b"b").await).contains("already closed"));
        assert!(error_text(open.write(b"").await).contains("already closed"), "also for an empty write");
        let (terminal, _queue) = CommandInput::new(false, true);
        terminal.close().unwrap();
        terminal.write(b"a").await.unwrap();
        let much = vec![0; MAX_QUEUED_BYTES];
        let full = terminal.write(&much);
        let ending = async { terminal.discard_input() };
        let (full, ()) = tokio::join!(full, ending);
        assert!(error_text(full).contains("has ended"), "a waiting writer gets the error");
    }
}
