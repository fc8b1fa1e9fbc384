//! The provider contract as named checks, run against every provider. A provider must refuse what its capabilities
//! exclude, so no check is skipped.

mod cache_checks;
mod command_checks;
mod file_checks;
mod identity_checks;

use atoll_core::BoxFuture;
use atoll_core::id::{ProjectId, SandboxId, SessionId};
use atoll_core::provider::{
    CommandExit, CreateSpec, Error, ExecCommand, ExecEvent, ExecRef, ExecSpec, FileResult, Identity, OutputStream,
    Provider, ProviderId, ProviderSandbox, ReadScope, Transfer,
};
use atoll_core::sandbox::Settings;
use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

/// Time limit per check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(120);

/// `Err` describes the observed deviation.
type CheckOutcome = Result<(), String>;
type Check = for<'a> fn(&'a CheckContext<'a>) -> BoxFuture<'a, CheckOutcome>;

macro_rules! checks {
    ($($name:literal => $check:path,)+) => { &[$(($name, |context| Box::pin($check(context)))),+] };
}

const CHECKS: &[(&str, Check)] = checks! {
    "create is idempotent by its key" => identity_checks::create_is_idempotent,
    "concurrent creates with one key create one sandbox" => identity_checks::concurrent_creates_make_one,
    "find and list return the labels" => identity_checks::labels_are_seen,
    "get distinguishes found and gone" => identity_checks::get_distinguishes_found_and_gone,
    "destroy is idempotent and final" => identity_checks::destroy_is_idempotent,
    "an unknown id is gone, not an error" => identity_checks::unknown_is_gone,
    "unsupported calls have no side effect" => identity_checks::unsupported_calls_have_no_effect,
    "exit codes come from the command" => command_checks::exit_codes,
    "output is split or merged as declared" => command_checks::output_streams,
    "clients can re-attach to a command from a cursor" => command_checks::attach_again,
    "an ended command keeps its exit" => command_checks::ended_command_stays,
    "a command reads its input to the end" => command_checks::command_input,
    "a signal ends a command" => command_checks::signal_ends_command,
    "a signal overtakes unread input" => command_checks::signal_before_input,
    "a command over its time limit is timed out" => command_checks::command_timeout,
    "a downloaded file or range equals the upload" => file_checks::file_ranges,
    "a missing file is not a missing sandbox" => file_checks::missing_file,
    "a partial upload leaves the old file" => file_checks::partial_upload,
    "files can be listed, moved and deleted" => file_checks::file_operations,
    "a downloaded tree equals the upload" => file_checks::tree_transfer,
    "a fork starts with the parent's files and is isolated" => file_checks::fork_isolation,
    "a snapshot keeps the files" => file_checks::snapshot_contents,
    "a sandbox starts from a set-up layer, and changes it for no other" => cache_checks::cache_contents,
    "a paused sandbox stops and resumes" => file_checks::pause_and_resume,
};

/// Runs every check with its own sandboxes, created with `settings` and destroyed afterwards.
pub async fn check_provider(provider: &dyn Provider, settings: &Settings) -> Vec<(&'static str, Result<(), String>)> {
    let mut verdicts = Vec::new();
    for (promise, check) in CHECKS {
        let context = CheckContext { provider, settings, created: Mutex::default() };
        let verdict = tokio::time::timeout(CHECK_TIMEOUT, check(&context)).await;
        let verdict = verdict.unwrap_or_else(|_| Err(format!("not done within {CHECK_TIMEOUT:?}")));
        let cleaned = context.destroy_created().await;
        verdicts.push((*promise, verdict.and(cleaned)));
    }
    verdicts
}

/// Returns `Err` with the message unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($seen:tt)+) => {
        if !$holds {
            return Err(format!($($seen)+));
        }
    };
}
use ensure;

/// The provider under test and the sandboxes that the check created.
struct CheckContext<'a> {
    provider: &'a dyn Provider,
    settings: &'a Settings,
    created: Mutex<Vec<ProviderId>>,
}

/// The output of a command so far.
#[derive(Debug, Default)]
struct CollectedOutput {
    stdout: String,
    stderr: String,
    /// The position after the last output.
    cursor: u64,
    exit: Option<CommandExit>,
}

impl CheckContext<'_> {
    fn new_spec(&self) -> CreateSpec {
        let identity = Identity {
            deployment: "conformance".to_owned(),
            sandbox: SandboxId::new(),
            session: SessionId::new(),
            project: ProjectId::new(),
        };
        let labels = BTreeMap::from([("team/name".to_owned(), "reef".to_owned())]);
        CreateSpec {
            identity,
            labels,
            settings: self.settings.clone(),
            source: None,
            programs: Vec::new(),
            cache: None,
        }
    }

    async fn create_sandbox(&self, spec: &CreateSpec, key: &str) -> Result<ProviderSandbox, String> {
        let found = self.provider.create(spec, key).await.map_err(describe_error("create"))?;
        crate::lock_state(&self.created).push(found.id.clone());
        Ok(found)
    }

    async fn create_default_sandbox(&self) -> Result<ProviderId, String> {
        let spec = self.new_spec();
        Ok(self.create_sandbox(&spec, &spec.identity.sandbox.to_string()).await?.id)
    }

    async fn destroy_created(&self) -> CheckOutcome {
        let ids = std::mem::take(&mut *crate::lock_state(&self.created));
        for id in ids {
            self.provider.destroy(&id).await.map_err(describe_error("destroy"))?;
        }
        Ok(())
    }

    /// Polls until `find` returns `count` sandboxes: some providers' lists lag behind.
    async fn expect_found_count(&self, labels: &BTreeMap<String, String>, count: usize) -> CheckOutcome {
        let mut found_count = 0;
        for _ in 0..50 {
            found_count = self.provider.find_by_labels(labels).await.map_err(describe_error("find"))?.len();
            if found_count == count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        Err(format!("find returned {found_count} sandboxes instead of {count}"))
    }

    async fn start_command(&self, id: &ProviderId, spec: &ExecSpec) -> Result<ExecRef, String> {
        self.provider.exec(id, spec).await.map_err(describe_error("exec"))
    }

    /// Runs to completion.
    async fn run_command(&self, id: &ProviderId, text: &str) -> Result<CollectedOutput, String> {
        let exec = self.start_command(id, &shell_command(text)).await?;
        self.read_output(&exec, 0, |_| false).await
    }

    /// Reads from `cursor` until the command ends or `enough` returns true.
    async fn read_output(
        &self,
        exec: &ExecRef,
        cursor: u64,
        enough: fn(&CollectedOutput) -> bool,
    ) -> Result<CollectedOutput, String> {
        let mut stream = self.provider.attach(exec, cursor).await.map_err(describe_error("attach"))?;
        let mut output = CollectedOutput { cursor, ..CollectedOutput::default() };
        while let Some(event) = stream.next().await {
            match event.map_err(describe_error("the output"))? {
                ExecEvent::Output { stream, data, cursor } => {
                    ensure!(cursor > output.cursor, "the cursor went from {} to {cursor}", output.cursor);
                    output.cursor = cursor;
                    let text = match stream {
                        OutputStream::Stdout => &mut output.stdout,
                        OutputStream::Stderr => &mut output.stderr,
                    };
                    text.push_str(&String::from_utf8_lossy(&data));
                }
                ExecEvent::Gap { cursor } => return Err(format!("a gap before {cursor} after a few bytes")),
                ExecEvent::Ended(exit) => {
                    output.exit = Some(exit);
                    ensure!(stream.next().await.is_none(), "something follows the end");
                    return Ok(output);
                }
            }
            if enough(&output) {
                return Ok(output);
            }
        }
        Err(format!("the output ended without an end: {output:?}"))
    }

    async fn upload_file(&self, id: &ProviderId, path: &str, content: &'static [u8]) -> CheckOutcome {
        let chunks = content.chunks(5).map(|chunk| Ok(Bytes::from_static(chunk)));
        let data = Box::pin(futures_util::stream::iter(chunks));
        let done = self.provider.upload(id, &whole_file(path), data).await.map_err(describe_error("upload"))?;
        let done = done.map_err(|error| format!("upload: {error}"))?;
        ensure!(
            done.bytes == content.len() as u64,
            "sent {} bytes, but the provider reported {}",
            content.len(),
            done.bytes
        );
        Ok(())
    }

    async fn download_bytes(&self, id: &ProviderId, transfer: &Transfer) -> Result<FileResult<Bytes>, Error> {
        let mut download = match self.provider.download(id, transfer, ReadScope::WholeSandbox).await? {
            Ok(download) => download,
            Err(error) => return Ok(Err(error)),
        };
        let mut content = BytesMut::new();
        while let Some(chunk) = download.data.next().await {
            content.extend_from_slice(&chunk?);
        }
        Ok(Ok(content.freeze()))
    }

    /// Downloads a file that must exist.
    async fn download_existing(&self, id: &ProviderId, transfer: &Transfer) -> Result<Bytes, String> {
        let result = self.download_bytes(id, transfer).await.map_err(describe_error("download"))?;
        result.map_err(|error| format!("download: {error}"))
    }

    async fn expect_content(&self, id: &ProviderId, path: &str, content: &str) -> CheckOutcome {
        let actual = self.download_existing(id, &whole_file(path)).await?;
        ensure!(actual == content, "{path} holds {actual:?} instead of {content:?}");
        Ok(())
    }
}

fn describe_error(what: &str) -> impl Fn(Error) -> String {
    move |error| format!("{what}: {error}")
}

fn whole_file(path: &str) -> Transfer {
    Transfer::file(path)
}

fn shell_command(text: &str) -> ExecSpec {
    ExecSpec {
        command: ExecCommand::Shell(text.to_owned()),
        cwd: None,
        env: BTreeMap::new(),
        has_stdin: false,
        as_root: false,
        terminal: None,
        timeout: Some(Duration::from_secs(60)),
    }
}
