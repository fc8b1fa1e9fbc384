//! The promises of the provider contract, each as one check with its name. It runs against every
//! provider; what a provider says it can't do is checked to be refused, so nothing is skipped.

mod commands;
mod files;
mod identity;

use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{
    Command, CreateSpec, Error, ExecEvent, ExecRef, ExecSpec, Exit, Found, Identity, OutputStream, Provider,
    ProviderId, Transfer, Worked,
};
use atoll_core::sandbox::Settings;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// No promise takes longer; one that hangs is broken.
const DEADLINE: Duration = Duration::from_secs(120);

/// Kept, or what was seen instead.
type Verdict = Result<(), String>;
type Check = for<'a> fn(&'a Bench<'a>) -> BoxFuture<'a, Verdict>;

macro_rules! promises {
    ($($name:literal => $check:path,)+) => { &[$(($name, |bench| Box::pin($check(bench)))),+] };
}

const PROMISES: &[(&str, Check)] = promises! {
    "create is idempotent by its key" => identity::create_is_idempotent,
    "concurrent creates with one key make one sandbox" => identity::concurrent_creates_make_one,
    "labels are carried, and find and list see them" => identity::labels_are_seen,
    "get tells found and gone apart" => identity::get_tells_apart,
    "destroy is idempotent, and then it is gone" => identity::destroy_is_idempotent,
    "an unknown id is gone, not an accident" => identity::unknown_is_gone,
    "what it can't do is unsupported, before any side effect" => identity::inability_is_said,
    "exit codes are the command's own" => commands::exit_codes,
    "output comes as it says: split or merged" => commands::output,
    "a command is attached to again from a cursor" => commands::attach_again,
    "an ended command stays as it ended" => commands::ended_stays,
    "input is written, and closing it ends it" => commands::input,
    "a signal ends a command as signalled" => commands::signal,
    "a signal does not wait behind input that nobody reads" => commands::signal_before_input,
    "a command that takes too long is timed out" => commands::timeout,
    "a file comes out as it went in, also in part" => files::ranges,
    "a missing file is not a missing sandbox" => files::missing_file,
    "half a file leaves the old one" => files::half_a_file,
    "files are listed, looked at, moved and deleted" => files::housekeeping,
    "a tree comes out as it went in" => files::trees,
    "a fork begins with the files and is isolated both ways" => files::fork,
    "a snapshot is what it was taken of" => files::snapshot,
    "a paused sandbox stands still and goes on" => files::pause,
};

/// Checks every promise, each with sandboxes of its own that are destroyed after it. `settings`
/// are what the sandboxes are made with.
pub async fn check(provider: &dyn Provider, settings: &Settings) -> Vec<(&'static str, Result<(), String>)> {
    let mut verdicts = Vec::new();
    for (promise, check) in PROMISES {
        let bench = Bench { provider, settings, made: Mutex::default() };
        let verdict = tokio::time::timeout(DEADLINE, check(&bench)).await;
        let verdict = verdict.unwrap_or_else(|_| Err(format!("not done after {DEADLINE:?}")));
        let cleaned = bench.clean().await;
        verdicts.push((*promise, verdict.and(cleaned)));
    }
    verdicts
}

/// `Err` with what was seen, unless it holds.
macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err(format!($($seen)+));
        }
    };
}
use ensure;

/// What every check works with.
struct Bench<'a> {
    provider: &'a dyn Provider,
    settings: &'a Settings,
    made: Mutex<Vec<ProviderId>>,
}

/// What a command gave.
#[derive(Debug, Default)]
struct Heard {
    stdout: String,
    stderr: String,
    /// The position after the last output.
    cursor: u64,
    exit: Option<Exit>,
}

impl Bench<'_> {
    fn spec(&self) -> CreateSpec {
        let identity = Identity {
            deployment: "conformance".to_owned(),
            sandbox: SandboxId::new(),
            session: SessionId::new(),
            project: ProjectId::new(),
        };
        let labels = BTreeMap::from([("team/name".to_owned(), "reef".to_owned())]);
        CreateSpec { identity, labels, settings: self.settings.clone(), source: None, programs: Vec::new() }
    }

    async fn create(&self, spec: &CreateSpec, key: &str) -> Result<Found, String> {
        let found = self.provider.create(spec, key).await.map_err(told("create"))?;
        crate::locked(&self.made).push(found.id.clone());
        Ok(found)
    }

    async fn make(&self) -> Result<ProviderId, String> {
        let spec = self.spec();
        Ok(self.create(&spec, &spec.identity.sandbox.to_string()).await?.id)
    }

    async fn clean(&self) -> Verdict {
        let made = std::mem::take(&mut *crate::locked(&self.made));
        for id in made {
            self.provider.destroy(&id).await.map_err(told("destroy"))?;
        }
        Ok(())
    }

    /// Looks until it is so: some providers' lists lag behind.
    async fn finds(&self, labels: &BTreeMap<String, String>, count: usize) -> Verdict {
        let mut seen = 0;
        for _ in 0..50 {
            seen = self.provider.find(labels).await.map_err(told("find"))?.len();
            if seen == count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(format!("find sees {seen} sandboxes instead of {count}"))
    }

    async fn exec(&self, id: &ProviderId, spec: &ExecSpec) -> Result<ExecRef, String> {
        self.provider.exec(id, spec).await.map_err(told("exec"))
    }

    /// Runs to its end.
    async fn run(&self, id: &ProviderId, text: &str) -> Result<Heard, String> {
        let exec = self.exec(id, &shell(text)).await?;
        self.listen(&exec, 0, |_| false).await
    }

    /// Listens from `cursor` until the end, or until it was `enough`.
    async fn listen(&self, exec: &ExecRef, cursor: u64, enough: fn(&Heard) -> bool) -> Result<Heard, String> {
        let mut stream = self.provider.attach(exec, cursor).await.map_err(told("attach"))?;
        let mut heard = Heard { cursor, ..Heard::default() };
        while let Some(event) = stream.next().await {
            match event.map_err(told("the output"))? {
                ExecEvent::Output { stream, data, cursor } => {
                    ensure!(cursor > heard.cursor, "cursors go from {} to {cursor}", heard.cursor);
                    heard.cursor = cursor;
                    let text = match stream {
                        OutputStream::Stdout => &mut heard.stdout,
                        OutputStream::Stderr => &mut heard.stderr,
                    };
                    text.push_str(&String::from_utf8_lossy(&data));
                }
                ExecEvent::Gap { cursor } => return Err(format!("a gap before {cursor} after a few bytes")),
                ExecEvent::Ended(exit) => {
                    heard.exit = Some(exit);
                    ensure!(stream.next().await.is_none(), "something follows the end");
                    return Ok(heard);
                }
            }
            if enough(&heard) {
                return Ok(heard);
            }
        }
        Err(format!("the output ended without an end: {heard:?}"))
    }

    async fn upload(&self, id: &ProviderId, path: &str, content: &'static [u8]) -> Verdict {
        let chunks = content.chunks(5).map(|chunk| Ok(Bytes::from_static(chunk)));
        let data = Box::pin(futures_util::stream::iter(chunks));
        let done = self.provider.upload(id, &whole(path), data).await.map_err(told("upload"))?;
        let done = done.map_err(|error| format!("upload: {error}"))?;
        ensure!(done.bytes == content.len() as u64, "{} bytes went in, and {} are told", content.len(), done.bytes);
        Ok(())
    }

    async fn download(&self, id: &ProviderId, transfer: &Transfer) -> Result<Worked<Bytes>, Error> {
        let mut download = match self.provider.download(id, transfer).await? {
            Ok(download) => download,
            Err(error) => return Ok(Err(error)),
        };
        let mut content = BytesMut::new();
        while let Some(chunk) = download.data.next().await {
            content.extend_from_slice(&chunk?);
        }
        Ok(Ok(content.freeze()))
    }

    /// What must be there.
    async fn content(&self, id: &ProviderId, transfer: &Transfer) -> Result<Bytes, String> {
        let seen = self.download(id, transfer).await.map_err(told("download"))?;
        seen.map_err(|error| format!("download: {error}"))
    }

    async fn holds(&self, id: &ProviderId, path: &str, content: &str) -> Verdict {
        let seen = self.content(id, &whole(path)).await?;
        ensure!(seen == content, "{path} holds {seen:?} instead of {content:?}");
        Ok(())
    }
}

fn told(what: &str) -> impl Fn(Error) -> String {
    move |error| format!("{what}: {error}")
}

fn whole(path: &str) -> Transfer {
    Transfer::file(path)
}

fn shell(text: &str) -> ExecSpec {
    ExecSpec {
        command: Command::Shell(text.to_owned()),
        cwd: None,
        env: BTreeMap::new(),
        stdin: false,
        as_root: false,
        terminal: None,
        timeout: Some(Duration::from_secs(60)),
    }
}
