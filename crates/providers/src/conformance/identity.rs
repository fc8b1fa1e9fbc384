//! Which sandbox is which, whether it is there, and what is not offered.

use super::{Bench, Verdict, ensure, shell, told, whole};
use atoll_core::provider::capabilities::{
    AttachAbility, Egress, FileAbility, ForkAbility, OutputAbility, PauseAbility, PreviewAbility, SnapshotAbility,
};
use atoll_core::provider::{ByteStream, Error, ExecRef, FileJob, Lookup, ProviderId};
use atoll_core::sandbox::{Network, NetworkPolicy};
use bytes::Bytes;
use futures_util::future::join_all;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) async fn create_is_idempotent(bench: &Bench<'_>) -> Verdict {
    let (one, two) = (bench.spec(), bench.spec());
    let first = bench.create(&one, "key-1").await?;
    let again = bench.create(&one, "key-1").await?;
    ensure!(first.id == again.id, "one key gave {:?} and {:?}", first.id, again.id);
    let other = bench.create(&two, "key-2").await?;
    ensure!(first.id != other.id, "two keys gave the same {:?}", other.id);
    bench.finds(&one.identity.labels(), 1).await
}

pub(super) async fn concurrent_creates_make_one(bench: &Bench<'_>) -> Verdict {
    let spec = bench.spec();
    let made = join_all((0..16).map(|_| bench.create(&spec, "one-key"))).await;
    let mut ids = made.into_iter().map(|one| Ok(one?.id)).collect::<Result<Vec<ProviderId>, String>>()?;
    ids.sort();
    ids.dedup();
    ensure!(ids.len() == 1, "16 creates with one key made {ids:?}");
    bench.finds(&spec.identity.labels(), 1).await
}

pub(super) async fn labels_are_seen(bench: &Bench<'_>) -> Verdict {
    let spec = bench.spec();
    let made = bench.create(&spec, "labels").await?;
    let mut all = spec.labels.clone();
    all.extend(spec.identity.labels());
    ensure!(made.labels == all, "made with {:?} instead of {all:?}", made.labels);

    let own = ("atoll.sandbox".to_owned(), spec.identity.sandbox.to_string());
    bench.finds(&BTreeMap::from([own.clone()]), 1).await?;
    bench.finds(&all, 1).await?;
    bench.finds(&BTreeMap::from([own, ("team/name".to_owned(), "shore".to_owned())]), 0).await?;

    let mut cursor = None;
    loop {
        let page = bench.provider.list(cursor.as_deref()).await.map_err(told("list"))?;
        if let Some(listed) = page.items.iter().find(|item| item.id == made.id) {
            ensure!(listed.labels == all, "listed with {:?} instead of {all:?}", listed.labels);
            return Ok(());
        }
        cursor = page.next_cursor;
        ensure!(cursor.is_some(), "list doesn't have it");
    }
}

pub(super) async fn get_tells_apart(bench: &Bench<'_>) -> Verdict {
    let (kept, ended) = (bench.make().await?, bench.make().await?);
    bench.provider.destroy(&ended).await.map_err(told("destroy"))?;
    let seen = bench.provider.get(&kept).await;
    ensure!(matches!(&seen, Lookup::Found(found) if found.id == kept), "a living sandbox is {seen:?}");
    let seen = bench.provider.get(&ended).await;
    ensure!(seen == Lookup::Gone, "a destroyed sandbox is {seen:?}");
    Ok(())
}

pub(super) async fn destroy_is_idempotent(bench: &Bench<'_>) -> Verdict {
    let spec = bench.spec();
    let made = bench.create(&spec, "destroyed").await?;
    for _ in 0..3 {
        bench.provider.destroy(&made.id).await.map_err(told("destroy"))?;
    }
    let seen = bench.provider.get(&made.id).await;
    ensure!(seen == Lookup::Gone, "a destroyed sandbox is {seen:?}");
    bench.finds(&spec.identity.labels(), 0).await
}

pub(super) async fn unknown_is_gone(bench: &Bench<'_>) -> Verdict {
    let nobody = ProviderId("nobody-made-this".to_owned());
    let seen = bench.provider.get(&nobody).await;
    ensure!(seen == Lookup::Gone, "get answers {seen:?}");
    bench.provider.destroy(&nobody).await.map_err(told("destroy of what isn't there"))?;
    let (can, spec, at) = (bench.provider.capabilities(), bench.spec(), &nobody);
    if can.pause != PauseAbility::None {
        is_gone("pause", bench.provider.pause(at).await)?;
        is_gone("resume", bench.provider.resume(at).await)?;
    }
    if can.fork != ForkAbility::None {
        is_gone("fork", bench.provider.fork(at, &spec, "fork-of-nobody").await)?;
    }
    if can.snapshot != SnapshotAbility::None {
        is_gone("snapshot", bench.provider.snapshot(at, "of-nobody").await)?;
    }
    if can.output != OutputAbility::None {
        is_gone("exec", bench.provider.exec(at, &shell("true")).await)?;
    }
    if can.attach != AttachAbility::None {
        let exec = ExecRef { sandbox: nobody.clone(), exec: "1".to_owned(), epoch: 1 };
        is_gone("attach", bench.provider.attach(&exec, 0).await)?;
        is_gone("signal", bench.provider.signal(&exec, 15).await)?;
    }
    if can.files != FileAbility::None {
        is_gone("upload", bench.provider.upload(at, &whole("a"), untouched().0).await)?;
        is_gone("download", bench.provider.download(at, &whole("a")).await)?;
        is_gone("files", bench.provider.files(at, &look()).await)?;
    }
    Ok(())
}

pub(super) async fn inability_is_said(bench: &Bench<'_>) -> Verdict {
    let made = bench.make().await?;
    let at = &made;
    let before = bench.provider.get(at).await;
    let (can, provider, spec) = (bench.provider.capabilities(), bench.provider, bench.spec());
    if can.pause == PauseAbility::None {
        is_unsupported("pause", provider.pause(at).await)?;
        is_unsupported("resume", provider.resume(at).await)?;
    }
    if can.fork == ForkAbility::None {
        is_unsupported("fork", provider.fork(at, &spec, "fork").await)?;
        bench.finds(&spec.identity.labels(), 0).await?;
    }
    if can.snapshot == SnapshotAbility::None {
        is_unsupported("snapshot", provider.snapshot(at, "snapshot").await)?;
    }
    if can.output == OutputAbility::None {
        is_unsupported("exec", provider.exec(at, &shell("true")).await)?;
    }
    if can.attach == AttachAbility::None {
        let exec = ExecRef { sandbox: made.clone(), exec: "1".to_owned(), epoch: 1 };
        is_unsupported("attach", provider.attach(&exec, 0).await)?;
    }
    if can.files == FileAbility::None {
        let (data, touched) = untouched();
        is_unsupported("upload", provider.upload(at, &whole("a"), data).await)?;
        ensure!(!touched.load(Ordering::SeqCst), "upload is unsupported, but read its data first");
        is_unsupported("download", provider.download(at, &whole("a")).await)?;
        is_unsupported("files", provider.files(at, &look()).await)?;
    }
    if can.preview == PreviewAbility::None {
        is_unsupported("preview", provider.preview(at, 8080, None).await)?;
    }
    if matches!(can.egress, Egress::None | Egress::Unmanaged) {
        let all = Network { policy: NetworkPolicy::All, allow: Vec::new() };
        is_unsupported("set_network", provider.set_network(at, &all).await)?;
    }
    let after = provider.get(at).await;
    ensure!(before == after, "it was {before:?} before and is {after:?} after what is unsupported");
    Ok(())
}

fn is_gone<T>(what: &str, answer: Result<T, Error>) -> Verdict {
    match answer {
        Err(Error::Gone) => Ok(()),
        Err(other) => Err(format!("{what} of an unknown id: {other}")),
        Ok(_) => Err(format!("{what} of an unknown id went well")),
    }
}

fn is_unsupported<T>(what: &str, answer: Result<T, Error>) -> Verdict {
    match answer {
        Err(Error::Unsupported { .. }) => Ok(()),
        Err(other) => Err(format!("{what} is not unsupported, but: {other}")),
        Ok(_) => Err(format!("{what} went well, though the capabilities say none")),
    }
}

fn look() -> FileJob {
    FileJob::Stat { path: "a".to_owned() }
}

/// Data that knows whether somebody looked at it.
fn untouched() -> (ByteStream, Arc<AtomicBool>) {
    let touched = Arc::new(AtomicBool::new(false));
    let seen = touched.clone();
    let data = futures_util::stream::iter(std::iter::once_with(move || {
        seen.store(true, Ordering::SeqCst);
        Ok(Bytes::from_static(b"data"))
    }));
    (Box::pin(data), touched)
}
