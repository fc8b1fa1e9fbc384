//! Commands in a sandbox, each over a connection of its own to the worker. What they print is
//! kept for a while, so that one can attach again, and several can read at once; a reader that is slow
//! slows the command down, and one that is gone does not. A terminal is slowed down by nobody.

use super::clock::Clock;
use super::input::{Speech, Unsaid};
use super::kept::Kept;
use super::link;
use super::standing::{Patience, Standing};
use crate::locked;
use atoll_core::provider::{
    Command, Error, ExecEvent, ExecInfo, ExecRef, ExecSpec, ExecStream, Exit, OutputStream, ProviderId, Size,
};
use atoll_protocol::exec::{Ask, End, LONGEST, Opening, Start, Tell, Terminal};
use bytes::Bytes;
use futures_util::stream;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::OwnedReadHalf;
use tokio::sync::watch;

/// How long an ended command can still be asked for.
const REMEMBERED: Duration = Duration::from_secs(600);
/// What ended commands may take together; then the oldest that nobody reads are forgotten sooner.
const ALL_ENDED: usize = 64 << 20;
/// What a command takes beside what it printed and its own words.
const OVERHEAD: usize = 1 << 10;
const PIECE: usize = 64 << 10;
/// What a shell answers when there is no such program.
const NOT_FOUND: i32 = 127;

#[derive(Default)]
pub(crate) struct Commands {
    known: Mutex<Known>,
    standing: Standing,
}

#[derive(Default)]
struct Known {
    /// In the order of their beginnings, by which they are named.
    all: BTreeMap<String, Arc<Running>>,
    /// What the ended ones among them take. Summed up as they come and go: to look at each would cost every command
    /// something for all that went before it.
    left_behind: usize,
}

struct Running {
    sandbox: ProviderId,
    argv: Vec<String>,
    began: Instant,
    /// Of its terminal, if it has one.
    size: Mutex<Option<Size>>,
    kept: Mutex<Kept>,
    /// Counts every change of `kept`.
    changed: watch::Sender<u64>,
    speech: Speech,
    clock: Clock,
    /// What it takes after its end, from then on.
    left_behind: OnceLock<usize>,
}

fn argv(command: &Command) -> Vec<String> {
    match command {
        Command::Argv(argv) => argv.clone(),
        Command::Shell(text) => vec!["/bin/sh".into(), "-c".into(), text.clone()],
    }
}

fn exit(end: &End) -> Exit {
    match end {
        End::Exited { code } => Exit::Exited { code: *code },
        End::Signalled { signal } => Exit::Signalled { signal: *signal },
        End::OutOfMemory => Exit::OutOfMemory,
        End::NotStarted { .. } => Exit::Exited { code: NOT_FOUND },
        End::Unknown => Exit::Unknown,
    }
}

/// What is said first of it.
fn first(spec: &ExecSpec) -> Result<Vec<u8>, Error> {
    let start = Start {
        argv: argv(&spec.command),
        cwd: spec.cwd.clone(),
        env: spec.env.clone(),
        stdin: spec.stdin,
        terminal: spec.terminal.map(|size| Terminal { columns: size.columns, rows: size.rows }),
    };
    let first = Ask::Start(start).encode();
    if first.len() > LONGEST {
        return Err(Error::Refused { detail: "the command line and its environment are longer than 1 MB".into() });
    }
    Ok(first)
}

fn lost(error: std::io::Error) -> Error {
    Error::Unreachable { detail: format!("its worker does not answer: {error}") }
}

impl Commands {
    pub(crate) async fn start(
        self: &Arc<Self>,
        id: &ProviderId,
        epoch: u64,
        socket: &Path,
        spec: &ExecSpec,
    ) -> Result<ExecRef, Error> {
        let connection = link::dial_with(socket, Opening::Exec, &first(spec)?).await.map_err(lost)?;
        Ok(self.go_on(id, epoch, connection, spec))
    }

    /// The same over a connection at whose other end somebody does what a worker does.
    pub(crate) async fn start_over(
        self: &Arc<Self>,
        id: &ProviderId,
        epoch: u64,
        mut connection: UnixStream,
        spec: &ExecSpec,
    ) -> Result<ExecRef, Error> {
        connection.write_all(&first(spec)?).await.map_err(lost)?;
        Ok(self.go_on(id, epoch, connection, spec))
    }

    /// With what was asked for over this connection.
    fn go_on(self: &Arc<Self>, id: &ProviderId, epoch: u64, connection: UnixStream, spec: &ExecSpec) -> ExecRef {
        let (speech, unsaid) = Speech::new(spec.stdin, spec.terminal.is_some());
        let running = Arc::new(Running {
            sandbox: id.clone(),
            argv: argv(&spec.command),
            began: Instant::now(),
            size: Mutex::new(spec.terminal),
            kept: Mutex::new(Kept::new(spec.terminal.is_some())),
            changed: watch::Sender::new(0),
            speech,
            clock: Clock::new(spec.timeout),
            left_behind: OnceLock::new(),
        });
        let exec = uuid::Uuid::now_v7().simple().to_string();
        locked(&self.known).all.insert(exec.clone(), Arc::clone(&running));
        tokio::spawn(Arc::clone(self).carry(exec.clone(), running, connection, unsaid));
        ExecRef { sandbox: id.clone(), exec, epoch }
    }

    async fn carry(self: Arc<Self>, exec: String, running: Arc<Running>, connection: UnixStream, unsaid: Unsaid) {
        let exit = to_its_end(&running, connection, unsaid).await;
        running.speech.end();
        locked(&running.kept).end(exit);
        locked(&self.known).ended(&running);
        running.changed.send_modify(|count| *count += 1);
        // From here on the list alone keeps it, which may forget it sooner.
        drop(running);
        self.forget_oldest(ALL_ENDED);
        tokio::time::sleep(REMEMBERED).await;
        locked(&self.known).forget(&exec);
    }

    /// So that all ended commands take no more than `most`.
    fn forget_oldest(&self, most: usize) {
        let mut known = locked(&self.known);
        if known.left_behind <= most {
            return;
        }
        let Known { all, left_behind } = &mut *known;
        // In the order of their beginnings, and so nearly of their ends.
        all.retain(|_, running| {
            let left = running.left_behind.get().filter(|_| *left_behind > most);
            let left = left.filter(|_| locked(&running.kept).reader_count() == 0);
            *left_behind -= left.unwrap_or(&0);
            left.is_none()
        });
    }

    fn get(&self, exec: &ExecRef) -> Result<Arc<Running>, Error> {
        let found = locked(&self.known).all.get(&exec.exec).cloned();
        found.filter(|running| running.sandbox == exec.sandbox).ok_or(Error::Gone)
    }

    pub(crate) fn signal(&self, exec: &ExecRef, signal: i32) -> Result<(), Error> {
        self.get(exec)?.speech.say(Ask::Signal(signal));
        Ok(())
    }

    /// Not faster than the command reads.
    pub(crate) async fn write(&self, exec: &ExecRef, data: &Bytes) -> Result<(), Error> {
        self.get(exec)?.speech.write(data).await
    }

    pub(crate) fn close_stdin(&self, exec: &ExecRef) -> Result<(), Error> {
        self.get(exec)?.speech.close()
    }

    pub(crate) fn resize(&self, exec: &ExecRef, size: Size) -> Result<(), Error> {
        let running = self.get(exec)?;
        {
            let mut known = locked(&running.size);
            if known.is_none() {
                return Err(Error::Refused { detail: "this command has no terminal".into() });
            }
            if size.columns == 0 || size.rows == 0 {
                return Err(Error::Refused { detail: "a terminal has at least one column and one row".into() });
            }
            *known = Some(size);
        }
        running.speech.say(Ask::Resize(Terminal { columns: size.columns, rows: size.rows }));
        Ok(())
    }

    /// The time of a sandbox's commands stands from the moment in which it is asked to stand still.
    pub(crate) async fn pausing<T>(
        &self,
        sandbox: &ProviderId,
        pause: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.each_clock(sandbox, Clock::stand);
        self.standing.stand(sandbox);
        let paused = pause.await;
        match &paused {
            // Also of who was started meanwhile.
            Ok(_) => self.each_clock(sandbox, Clock::stand),
            Err(_) => self.resumed(sandbox),
        }
        paused
    }

    pub(crate) fn resumed(&self, sandbox: &ProviderId) {
        self.each_clock(sandbox, Clock::go_on);
        self.standing.go_on(sandbox);
    }

    /// By an earlier server.
    pub(crate) fn found_paused(&self, sandbox: &ProviderId) {
        self.standing.stand(sandbox);
    }

    pub(crate) fn stands(&self, sandbox: &ProviderId) -> bool {
        self.standing.stands(sandbox)
    }

    /// With those who move its files.
    pub(crate) fn patience(&self, sandbox: &ProviderId) -> Patience {
        self.standing.of(sandbox)
    }

    pub(crate) fn destroyed(&self, sandbox: &ProviderId) {
        self.standing.forget(sandbox);
    }

    fn each_clock(&self, sandbox: &ProviderId, change: fn(&Clock)) {
        let known = locked(&self.known);
        known.all.values().filter(|running| running.sandbox == *sandbox).for_each(|running| change(&running.clock));
    }

    /// Those of a sandbox that can still be attached to, oldest first.
    pub(crate) fn list(&self, sandbox: &ProviderId) -> Vec<ExecInfo> {
        let known = locked(&self.known);
        let of_it = known.all.iter().filter(|(_, running)| running.sandbox == *sandbox);
        of_it.map(|(exec, running)| running.info(exec)).collect()
    }

    pub(crate) fn attach(self: &Arc<Self>, exec: &ExecRef, cursor: u64) -> Result<ExecStream, Error> {
        let running = self.get(exec)?;
        let number = locked(&running.kept).enter(cursor);
        let changed = running.changed.subscribe();
        let reader = Reader { all: Arc::clone(self), running, changed, number, cursor, over: false };
        Ok(Box::pin(stream::unfold(reader, |mut reader| async move { Some((reader.next().await?, reader)) })))
    }
}

impl Known {
    fn ended(&mut self, running: &Running) {
        let words: usize = running.argv.iter().map(String::len).sum();
        let left = locked(&running.kept).bytes() + words + OVERHEAD;
        if running.left_behind.set(left).is_ok() {
            self.left_behind += left;
        }
    }

    fn forget(&mut self, exec: &str) {
        let left = self.all.remove(exec).and_then(|running| running.left_behind.get().copied());
        self.left_behind -= left.unwrap_or(0);
    }
}

impl Running {
    fn info(&self, exec: &str) -> ExecInfo {
        let kept = locked(&self.kept);
        ExecInfo {
            exec: exec.to_owned(),
            argv: self.argv.clone(),
            terminal: *locked(&self.size),
            age: self.began.elapsed(),
            cursor: kept.cursor(),
            readers: kept.reader_count(),
            ended: kept.ended(),
        }
    }
}

struct Reader {
    all: Arc<Commands>,
    running: Arc<Running>,
    changed: watch::Receiver<u64>,
    number: u64,
    cursor: u64,
    over: bool,
}

impl Reader {
    async fn next(&mut self) -> Option<Result<ExecEvent, Error>> {
        loop {
            if self.over {
                return None;
            }
            self.changed.mark_unchanged();
            let event = locked(&self.running.kept).after(self.cursor);
            match event {
                Some(event) => {
                    match &event {
                        ExecEvent::Output { cursor, .. } | ExecEvent::Gap { cursor } => self.cursor = *cursor,
                        ExecEvent::Ended(_) => self.over = true,
                    }
                    locked(&self.running.kept).move_on(self.number, self.cursor);
                    self.running.changed.send_modify(|count| *count += 1);
                    return Some(Ok(event));
                }
                None => drop(self.changed.changed().await),
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        locked(&self.running.kept).leave(self.number);
        self.running.changed.send_modify(|count| *count += 1);
        if locked(&self.running.kept).ended().is_some() {
            self.all.forget_oldest(ALL_ENDED);
        }
    }
}

async fn to_its_end(running: &Running, connection: UnixStream, unsaid: Unsaid) -> Exit {
    let (read, write) = connection.into_split();
    let listening = listen(running, read);
    tokio::pin!(listening);
    tokio::select! {
        exit = &mut listening => exit,
        never = running.speech.speak(unsaid, write) => match never {},
        // Nobody speaks to it any more, whereupon the worker ends it and tells the rest.
        () = running.clock.run_out() => {
            listening.await;
            Exit::TimedOut
        }
    }
}

/// Takes in what the command prints, until it ends. A connection that breaks says nothing of the end.
async fn listen(running: &Running, mut read: OwnedReadHalf) -> Exit {
    let mut changed = running.changed.subscribe();
    let mut buffer = Vec::new();
    let mut piece = vec![0; PIECE];
    loop {
        loop {
            let told = match Tell::decode(&mut buffer) {
                Ok(Some(told)) => told,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(%error, "a worker's words about a command can't be read");
                    return Exit::Unknown;
                }
            };
            let (stream, data) = match told {
                Tell::Stdout(data) => (OutputStream::Stdout, data),
                Tell::Stderr(data) => (OutputStream::Stderr, data),
                Tell::Taken(count) => {
                    running.speech.taken(count);
                    continue;
                }
                Tell::Ended(end) => {
                    if let End::NotStarted { error } = &end {
                        let text = format!("can't be run: {error}\n");
                        locked(&running.kept).push(OutputStream::Stderr, text.as_bytes());
                    }
                    return exit(&end);
                }
            };
            locked(&running.kept).push(stream, &data);
            running.changed.send_modify(|count| *count += 1);
        }
        loop {
            changed.mark_unchanged();
            if locked(&running.kept).has_room() {
                break;
            }
            drop(changed.changed().await);
        }
        match read.read(&mut piece).await {
            Ok(0) | Err(_) => return Exit::Unknown,
            Ok(count) => buffer.extend_from_slice(piece.get(..count).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(commands: &Commands, name: &str, printed: usize) {
        let (speech, _) = Speech::new(false, false);
        let mut kept = Kept::new(false);
        kept.push(OutputStream::Stdout, &vec![b'x'; printed]);
        kept.end(Exit::Exited { code: 0 });
        let running = Running {
            sandbox: ProviderId("one".into()),
            argv: vec!["yes".into()],
            began: Instant::now(),
            size: Mutex::new(None),
            kept: Mutex::new(kept),
            changed: watch::Sender::new(0),
            speech,
            clock: Clock::new(None),
            left_behind: OnceLock::new(),
        };
        let mut known = locked(&commands.known);
        known.ended(&running);
        known.all.insert(name.to_owned(), Arc::new(running));
    }

    #[tokio::test]
    async fn ended_commands_have_one_bound_together() {
        let commands = Arc::new(Commands::default());
        let (id, named) = (ProviderId("one".into()), |exec: &str| ExecRef {
            sandbox: ProviderId("one".into()),
            exec: exec.to_owned(),
            epoch: 1,
        });
        for name in ["a", "b", "c", "d"] {
            ended(&commands, name, 1 << 20);
        }
        let reader = commands.attach(&named("a"), 0).unwrap();
        commands.forget_oldest(9 << 20);
        assert_eq!(commands.list(&id).len(), 4);
        commands.forget_oldest(3 << 20);
        let left: Vec<String> = commands.list(&id).into_iter().map(|info| info.exec).collect();
        assert_eq!(left, ["a", "d"], "the oldest went, but none that somebody reads");
        drop(reader);
        commands.forget_oldest(2 << 20);
        assert!(commands.get(&named("a")).is_err() && commands.get(&named("d")).is_ok());
        locked(&commands.known).forget("a");
        locked(&commands.known).forget("d");
        assert_eq!(locked(&commands.known).left_behind, 0, "what came is what went");
    }
}
