//! Checks of files, forks, snapshots and pauses.

use super::{CheckContext, CheckOutcome, describe_error, ensure, shell_command, whole_file};
use atoll_core::id::SandboxId;
use atoll_core::provider::capabilities::{FileAbility, ForkAbility, OutputAbility, PauseAbility, SnapshotAbility};
use atoll_core::provider::{
    ByteRange, CommandExit, CreateSpec, Error, ExecSpec, FileErrorCode, FileKind, FileOperation, FileOperationOutput,
    FileResult, ProviderId, ProviderState, ReadScope, SandboxLookup, Transfer, WriteOptions,
};
use atoll_core::sandbox::Settings;
use bytes::Bytes;

const PATH: &str = "/workspace/notes/a.txt";

fn supports_files(context: &CheckContext<'_>) -> bool {
    context.provider.capabilities().files != FileAbility::None
}

pub(super) async fn file_ranges(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_files(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    context.upload_file(&id, PATH, b"0123456789abcdef").await?;
    let cases: [(u64, Option<u64>, &str); 6] = [
        (0, None, "0123456789abcdef"),
        (0, Some(4), "0123"),
        (10, None, "abcdef"),
        (5, Some(6), "56789a"),
        (14, Some(10), "ef"),
        (16, None, ""),
    ];
    for (offset, length, expected) in cases {
        let range = Some(ByteRange { offset, length });
        let part = Transfer::File { path: PATH.to_owned(), range, write: WriteOptions::default() };
        let actual = context.download_existing(&id, &part).await?;
        ensure!(actual == expected, "{range:?} gave {actual:?}");
    }
    context.upload_file(&id, PATH, b"anew").await?;
    context.expect_content(&id, PATH, "anew").await?;
    if context.provider.capabilities().output != OutputAbility::None {
        let output = context.run_command(&id, &format!("cat {PATH}")).await?;
        ensure!(output.stdout == "anew", "a command sees {output:?}");
    }
    Ok(())
}

pub(super) async fn missing_file(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_files(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    match context.download_bytes(&id, &whole_file("/workspace/nothing")).await {
        Ok(Err(error)) if error.fault == FileErrorCode::NotFound => Ok(()),
        other => Err(format!("a missing file gave {other:?}")),
    }
}

pub(super) async fn partial_upload(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_files(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    context.upload_file(&id, PATH, b"the old one").await?;
    let broken = || Error::Unreachable { detail: "it broke off".to_owned() };
    let pieces = [Ok(Bytes::from_static(b"half of the new")), Err(broken())];
    let done = context.provider.upload(&id, &whole_file(PATH), Box::pin(futures_util::stream::iter(pieces))).await;
    ensure!(done == Err(broken()), "half an upload gave {done:?}");
    context.expect_content(&id, PATH, "the old one").await?;
    Ok(())
}

async fn run_file_job(
    context: &CheckContext<'_>,
    id: &ProviderId,
    job: FileOperation,
) -> Result<FileResult<FileOperationOutput>, String> {
    context.provider.files(id, &job).await.map_err(describe_error("files"))
}

async fn list_directory(
    context: &CheckContext<'_>,
    id: &ProviderId,
    path: &str,
) -> Result<Vec<(String, FileKind)>, String> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        match run_file_job(
            context,
            id,
            FileOperation::List { path: path.to_owned(), after, limit: 2, scope: ReadScope::WholeSandbox },
        )
        .await?
        {
            Ok(FileOperationOutput::Listed { entries, next }) => {
                ensure!(entries.len() <= 2, "a page of two has {}", entries.len());
                all.extend(entries.into_iter().map(|entry| (entry.name, entry.kind)));
                after = next;
            }
            other => return Err(format!("a list of {path} is {other:?}")),
        }
        if after.is_none() {
            return Ok(all);
        }
    }
}

pub(super) async fn file_operations(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_files(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    for (path, content) in [("d/c", &b"3"[..]), ("d/a", b"1"), ("d/b/deep", b"22"), ("e", b"4")] {
        context.upload_file(&id, path, content).await?;
    }
    let owned = |name: &str, kind| (name.to_owned(), kind);
    let expected = [owned("a", FileKind::File), owned("b", FileKind::Directory), owned("c", FileKind::File)];
    let entries = list_directory(context, &id, "/workspace/d").await?;
    ensure!(entries == expected, "the list is {entries:?}");

    let stat = |path: &str| FileOperation::Stat { path: path.to_owned(), scope: ReadScope::WholeSandbox };
    match run_file_job(context, &id, stat("d/b/deep")).await? {
        Ok(FileOperationOutput::Info(entry)) => {
            let right = (entry.name.as_str(), entry.kind, entry.size) == ("deep", FileKind::File, 2);
            ensure!(right, "a file of two bytes is {entry:?}");
        }
        other => return Err(format!("stat gave {other:?}")),
    }
    let rename =
        |from: &str, to: &str, replace| FileOperation::Move { from: from.to_owned(), to: to.to_owned(), replace };
    let delete = |path: &str, recursive| FileOperation::Delete { path: path.to_owned(), recursive };
    let refused: [(FileOperation, FileErrorCode); 5] = [
        (stat("nothing"), FileErrorCode::NotFound),
        (rename("d/a", "e", false), FileErrorCode::Exists),
        (rename("nothing", "x", false), FileErrorCode::NotFound),
        (delete("nothing", true), FileErrorCode::NotFound),
        (delete("d", false), FileErrorCode::NotEmpty),
    ];
    for (job, fault) in refused {
        let result = run_file_job(context, &id, job.clone()).await?;
        ensure!(result.as_ref().is_err_and(|error| error.fault == fault), "{job:?} gave {result:?}");
    }
    for job in [rename("d/a", "e", true), rename("d/b", "moved", false), delete("d", true)] {
        let result = run_file_job(context, &id, job.clone()).await?;
        ensure!(result == Ok(FileOperationOutput::Completed), "{job:?} gave {result:?}");
    }
    context.expect_content(&id, "e", "1").await?;
    context.expect_content(&id, "moved/deep", "22").await?;
    let entries = list_directory(context, &id, ".").await?;
    let left = entries.iter().any(|(name, _)| name == "d" || name == "b");
    ensure!(!left, "deleted or moved files still exist: {entries:?}");
    Ok(())
}

pub(super) async fn tree_transfer(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_files(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    if context.provider.capabilities().files == FileAbility::Workspace {
        let result =
            context.provider.download(&id, &Transfer::Tar { root: "from".to_owned() }, ReadScope::WholeSandbox).await;
        ensure!(matches!(result, Err(Error::Unsupported { .. })), "expected unsupported for a tree, got {result:?}");
        return Ok(());
    }
    context.upload_file(&id, "from/a", b"one").await?;
    context.upload_file(&id, "from/deep/er/b", b"two").await?;
    let root = |root: &str| Transfer::Tar { root: root.to_owned() };
    let tar = context.download_existing(&id, &root("/workspace/from")).await?;
    ensure!(tar.len() % 512 == 0, "a tar of {} bytes", tar.len());
    let half = tar.slice(..tar.len() / 2);
    let put = |tar: Bytes| Box::pin(futures_util::stream::iter([Ok(tar)]));
    let done = context.provider.upload(&id, &root("to/there"), put(tar)).await.map_err(describe_error("upload"))?;
    let right = done.as_ref().is_ok_and(|done| done.skipped == 0 && done.bytes == 6);
    ensure!(right, "unpacking a tar gave {done:?}");
    context.expect_content(&id, "to/there/a", "one").await?;
    context.expect_content(&id, "to/there/deep/er/b", "two").await?;
    let done = context.provider.upload(&id, &root("half"), put(half)).await.map_err(describe_error("upload"))?;
    let refused = done.as_ref().is_err_and(|error| error.fault == FileErrorCode::BadContent);
    ensure!(refused, "unpacking half a tar gave {done:?}");
    Ok(())
}

pub(super) async fn fork_isolation(context: &CheckContext<'_>) -> CheckOutcome {
    if context.provider.capabilities().fork == ForkAbility::None || !supports_files(context) {
        return Ok(());
    }
    let parent = context.create_default_sandbox().await?;
    context.upload_file(&parent, PATH, b"shared").await?;
    let mut spec = context.new_spec();
    spec.settings.forked_from = Some(SandboxId::new());
    let forked = context.provider.fork(&parent, &spec, "fork").await.map_err(describe_error("fork"))?;
    crate::lock_state(&context.created).push(forked.id.clone());
    let again = context.provider.fork(&parent, &spec, "fork").await.map_err(describe_error("the same fork"))?;
    ensure!(again.id == forked.id, "one key gave {:?} and {:?}", forked.id, again.id);
    ensure!(parent != forked.id, "a fork is its parent");
    let started = context.create_sandbox(&spec, "fork").await?;
    ensure!(started.id == forked.id, "the fork {:?} was started as {:?}", forked.id, started.id);
    context.expect_found_count(&spec.identity.labels(), 1).await?;

    context.expect_content(&forked.id, PATH, "shared").await?;
    context.upload_file(&parent, PATH, b"the parent's").await?;
    context.expect_content(&forked.id, PATH, "shared").await?;
    context.upload_file(&forked.id, PATH, b"the fork's").await?;
    context.expect_content(&parent, PATH, "the parent's").await?;
    context.provider.destroy(&parent).await.map_err(describe_error("destroy"))?;
    context.expect_content(&forked.id, PATH, "the fork's").await
}

pub(super) async fn snapshot_contents(context: &CheckContext<'_>) -> CheckOutcome {
    if context.provider.capabilities().snapshot == SnapshotAbility::None || !supports_files(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    context.upload_file(&id, PATH, b"as it was").await?;
    let spec = context.new_spec();
    let name = format!("conformance-{}", spec.identity.sandbox);
    let created = context.provider.snapshot(&id, &name).await.map_err(describe_error("snapshot"))?;
    ensure!(created.name == name, "the snapshot's name is {:?}", created.name);
    context.upload_file(&id, PATH, b"as it became").await?;
    let settings = Settings { snapshot: Some(name.clone()), ..spec.settings };
    let copy = context.create_sandbox(&CreateSpec { settings, ..spec }, "from-snapshot").await?;
    context.expect_content(&copy.id, PATH, "as it was").await?;
    match context.provider.forget_snapshot(&name).await {
        Ok(()) | Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(format!("deleting the snapshot failed: {error}")),
    }

    let spec = context.new_spec();
    let settings = Settings { snapshot: Some("no-such-snapshot".to_owned()), ..spec.settings };
    match context.create_sandbox(&CreateSpec { settings, ..spec }, "from-nothing").await {
        Err(_) => Ok(()),
        Ok(copy) => Err(format!("an unknown snapshot created {:?}", copy.id)),
    }
}

pub(super) async fn pause_and_resume(context: &CheckContext<'_>) -> CheckOutcome {
    let ability = context.provider.capabilities().pause;
    if ability == PauseAbility::None {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    let runs = context.provider.capabilities().output != OutputAbility::None && ability == PauseAbility::Memory;
    // The pause is longer than the command's time limit, but does not count.
    let timed =
        ExecSpec { timeout: Some(std::time::Duration::from_millis(900)), ..shell_command("sleep 0.3; echo after") };
    let exec = if runs { Some(context.start_command(&id, &timed).await?) } else { None };
    context.provider.pause(&id).await.map_err(describe_error("pause"))?;
    context.provider.pause(&id).await.map_err(describe_error("pause of a paused sandbox"))?;
    let lookup = context.provider.get(&id).await;
    let paused = matches!(&lookup, SandboxLookup::Found(found) if found.state == ProviderState::Paused);
    ensure!(paused, "a paused sandbox is {lookup:?}");
    if let Some(exec) = &exec {
        let listening = context.read_output(exec, 0, |_| false);
        let output = tokio::time::timeout(std::time::Duration::from_secs(1), listening).await;
        ensure!(output.is_err(), "a command ran in a paused sandbox: {output:?}");
    }
    let resumed = context.provider.resume(&id).await.map_err(describe_error("resume"))?;
    ensure!(resumed.state == ProviderState::Running, "a resumed sandbox is {:?}", resumed.state);
    if let Some(exec) = &exec {
        let output = context.read_output(exec, 0, |_| false).await?;
        let went_on = output.stdout == "after\n" && output.exit == Some(CommandExit::Exited { code: 0 });
        ensure!(went_on, "after the pause a command gave {output:?}");
    }
    Ok(())
}
