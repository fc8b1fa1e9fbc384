//! Checks of identity, lookup and unsupported operations.

use super::{CheckContext, CheckOutcome, describe_error, ensure, shell_command, whole_file};
use atoll_core::provider::capabilities::{
    AttachAbility, FileAbility, ForkAbility, OutputAbility, PauseAbility, SnapshotAbility,
};
use atoll_core::provider::{ByteStream, Error, ExecRef, FileOperation, ProviderId, ReadScope, SandboxLookup};
use atoll_core::sandbox::Repo;
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) async fn create_is_idempotent(context: &CheckContext<'_>) -> CheckOutcome {
    let (one, two) = (context.new_spec(), context.new_spec());
    let first = context.create_sandbox(&one, "key-1").await?;
    let again = context.create_sandbox(&one, "key-1").await?;
    ensure!(first.id == again.id, "one key gave {:?} and {:?}", first.id, again.id);
    let other = context.create_sandbox(&two, "key-2").await?;
    ensure!(first.id != other.id, "two keys gave the same {:?}", other.id);
    context.expect_found_count(&one.identity.labels(), 1).await
}

pub(super) async fn concurrent_creates_make_one(context: &CheckContext<'_>) -> CheckOutcome {
    let spec = context.new_spec();
    let results = join_all((0..16).map(|_| context.create_sandbox(&spec, "one-key"))).await;
    let mut ids = results.into_iter().map(|one| Ok(one?.id)).collect::<Result<Vec<ProviderId>, String>>()?;
    ids.sort();
    ids.dedup();
    ensure!(ids.len() == 1, "16 creates with one key created {ids:?}");
    context.expect_found_count(&spec.identity.labels(), 1).await
}

pub(super) async fn labels_are_seen(context: &CheckContext<'_>) -> CheckOutcome {
    let mut spec = context.new_spec();
    let worktree = "/src/calc".to_owned();
    spec.settings.repo = Some(Repo { path: Some(worktree.clone()), ..Repo::default() });
    let sandbox = context.create_sandbox(&spec, "labels").await?;
    let mut all = spec.labels.clone();
    all.extend(spec.identity.labels());
    all.insert("atoll.worktree".to_owned(), worktree);
    ensure!(sandbox.labels == all, "created with {:?} instead of {all:?}", sandbox.labels);

    let own = ("atoll.sandbox".to_owned(), spec.identity.sandbox.to_string());
    context.expect_found_count(&BTreeMap::from([own.clone()]), 1).await?;
    context.expect_found_count(&all, 1).await?;
    context.expect_found_count(&BTreeMap::from([own, ("team/name".to_owned(), "shore".to_owned())]), 0).await?;

    let mut cursor = None;
    loop {
        let page = context.provider.list(cursor.as_deref()).await.map_err(describe_error("list"))?;
        if let Some(listed) = page.items.iter().find(|item| item.id == sandbox.id) {
            ensure!(listed.labels == all, "listed with {:?} instead of {all:?}", listed.labels);
            return Ok(());
        }
        cursor = page.next_cursor;
        ensure!(cursor.is_some(), "list does not return the sandbox");
    }
}

pub(super) async fn get_distinguishes_found_and_gone(context: &CheckContext<'_>) -> CheckOutcome {
    let (living, ended) = (context.create_default_sandbox().await?, context.create_default_sandbox().await?);
    context.provider.destroy(&ended).await.map_err(describe_error("destroy"))?;
    let lookup = context.provider.get(&living).await;
    ensure!(matches!(&lookup, SandboxLookup::Found(found) if found.id == living), "a living sandbox is {lookup:?}");
    let lookup = context.provider.get(&ended).await;
    ensure!(lookup == SandboxLookup::Gone, "a destroyed sandbox is {lookup:?}");
    Ok(())
}

pub(super) async fn destroy_is_idempotent(context: &CheckContext<'_>) -> CheckOutcome {
    let spec = context.new_spec();
    let sandbox = context.create_sandbox(&spec, "destroyed").await?;
    for _ in 0..3 {
        context.provider.destroy(&sandbox.id).await.map_err(describe_error("destroy"))?;
    }
    let lookup = context.provider.get(&sandbox.id).await;
    ensure!(lookup == SandboxLookup::Gone, "a destroyed sandbox is {lookup:?}");
    context.expect_found_count(&spec.identity.labels(), 0).await
}

pub(super) async fn unknown_is_gone(context: &CheckContext<'_>) -> CheckOutcome {
    let nobody = ProviderId("no-such-sandbox".to_owned());
    let lookup = context.provider.get(&nobody).await;
    ensure!(lookup == SandboxLookup::Gone, "get returned {lookup:?}");
    context.provider.destroy(&nobody).await.map_err(describe_error("destroy of an unknown id"))?;
    let (can, spec, at) = (context.provider.capabilities(), context.new_spec(), &nobody);
    if can.pause != PauseAbility::None {
        is_gone("pause", context.provider.pause(at).await)?;
        is_gone("resume", context.provider.resume(at).await)?;
    }
    if can.fork != ForkAbility::None {
        is_gone("fork", context.provider.fork(at, &spec, "fork-of-nobody").await)?;
    }
    if can.snapshot != SnapshotAbility::None {
        is_gone("snapshot", context.provider.snapshot(at, "of-nobody").await)?;
    }
    if can.output != OutputAbility::None {
        is_gone("exec", context.provider.exec(at, &shell_command("true")).await)?;
    }
    if can.attach != AttachAbility::None {
        let exec = ExecRef { sandbox: nobody.clone(), exec: "1".to_owned() };
        is_gone("attach", context.provider.attach(&exec, 0).await)?;
        is_gone("signal", context.provider.signal(&exec, 15).await)?;
    }
    if can.files != FileAbility::None {
        is_gone("upload", context.provider.upload(at, &whole_file("a"), tracked_upload().0).await)?;
        is_gone("download", context.provider.download(at, &whole_file("a"), ReadScope::WholeSandbox).await)?;
        is_gone("files", context.provider.files(at, &stat_job()).await)?;
    }
    Ok(())
}

pub(super) async fn unsupported_calls_have_no_effect(context: &CheckContext<'_>) -> CheckOutcome {
    let id = context.create_default_sandbox().await?;
    let at = &id;
    let before = context.provider.get(at).await;
    let (can, provider, spec) = (context.provider.capabilities(), context.provider, context.new_spec());
    if can.pause == PauseAbility::None {
        is_unsupported("pause", provider.pause(at).await)?;
        is_unsupported("resume", provider.resume(at).await)?;
    }
    if can.fork == ForkAbility::None {
        is_unsupported("fork", provider.fork(at, &spec, "fork").await)?;
        context.expect_found_count(&spec.identity.labels(), 0).await?;
    }
    if can.snapshot == SnapshotAbility::None {
        is_unsupported("snapshot", provider.snapshot(at, "snapshot").await)?;
    }
    if can.output == OutputAbility::None {
        is_unsupported("exec", provider.exec(at, &shell_command("true")).await)?;
    }
    if can.attach == AttachAbility::None {
        let exec = ExecRef { sandbox: id.clone(), exec: "1".to_owned() };
        is_unsupported("attach", provider.attach(&exec, 0).await)?;
    }
    if can.files == FileAbility::None {
        let (data, touched) = tracked_upload();
        is_unsupported("upload", provider.upload(at, &whole_file("a"), data).await)?;
        ensure!(!touched.load(Ordering::SeqCst), "upload is unsupported, but read its data first");
        is_unsupported("download", provider.download(at, &whole_file("a"), ReadScope::WholeSandbox).await)?;
        is_unsupported("files", provider.files(at, &stat_job()).await)?;
    }
    let after = provider.get(at).await;
    ensure!(before == after, "unsupported calls changed {before:?} to {after:?}");
    Ok(())
}

fn is_gone<T>(what: &str, answer: Result<T, Error>) -> CheckOutcome {
    match answer {
        Err(Error::Gone) => Ok(()),
        Err(other) => Err(format!("{what} of an unknown id: {other}")),
        Ok(_) => Err(format!("{what} of an unknown id succeeded")),
    }
}

fn is_unsupported<T>(what: &str, answer: Result<T, Error>) -> CheckOutcome {
    match answer {
        Err(Error::Unsupported { .. }) => Ok(()),
        Err(other) => Err(format!("{what}: expected unsupported, got {other}")),
        Ok(_) => Err(format!("{what} succeeded, but the capabilities exclude it")),
    }
}

fn stat_job() -> FileOperation {
    FileOperation::Stat { path: "a".to_owned(), scope: ReadScope::WholeSandbox }
}

/// An upload stream that records whether the provider read it.
fn tracked_upload() -> (ByteStream, Arc<AtomicBool>) {
    let touched = Arc::new(AtomicBool::new(false));
    let flag = touched.clone();
    let data = futures_util::stream::iter(std::iter::once_with(move || {
        flag.store(true, Ordering::SeqCst);
        Ok(Bytes::from_static(b"data"))
    }));
    (Box::pin(data), touched)
}
