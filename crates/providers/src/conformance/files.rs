//! Files, and what is made of whole sandboxes: forks, snapshots, pauses.

use super::{Bench, Verdict, ensure, shell, told, whole};
use atoll_core::id::SandboxId;
use atoll_core::provider::capabilities::{FileAbility, ForkAbility, OutputAbility, PauseAbility, SnapshotAbility};
use atoll_core::provider::{
    CreateSpec, Error, ExecSpec, Exit, FileDone, FileFault, FileJob, FileKind, Lookup, ProviderId, ProviderState,
    Range, Transfer, Worked, WriteOptions,
};
use atoll_core::sandbox::Settings;
use bytes::Bytes;

const PATH: &str = "/workspace/notes/a.txt";

fn moves_files(bench: &Bench<'_>) -> bool {
    bench.provider.capabilities().files != FileAbility::None
}

pub(super) async fn ranges(bench: &Bench<'_>) -> Verdict {
    if !moves_files(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    bench.upload(&id, PATH, b"0123456789abcdef").await?;
    let cases: [(u64, Option<u64>, &str); 6] = [
        (0, None, "0123456789abcdef"),
        (0, Some(4), "0123"),
        (10, None, "abcdef"),
        (5, Some(6), "56789a"),
        (14, Some(10), "ef"),
        (16, None, ""),
    ];
    for (offset, length, expected) in cases {
        let range = Some(Range { offset, length });
        let part = Transfer::File { path: PATH.to_owned(), range, write: WriteOptions::default() };
        let seen = bench.content(&id, &part).await?;
        ensure!(seen == expected, "{range:?} gave {seen:?}");
    }
    bench.upload(&id, PATH, b"anew").await?;
    bench.holds(&id, PATH, "anew").await?;
    if bench.provider.capabilities().output != OutputAbility::None {
        let heard = bench.run(&id, &format!("cat {PATH}")).await?;
        ensure!(heard.stdout == "anew", "a command sees {heard:?}");
    }
    Ok(())
}

pub(super) async fn missing_file(bench: &Bench<'_>) -> Verdict {
    if !moves_files(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    match bench.download(&id, &whole("/workspace/nothing")).await {
        Ok(Err(error)) if error.fault == FileFault::NotFound => Ok(()),
        other => Err(format!("a missing file gave {other:?}")),
    }
}

pub(super) async fn half_a_file(bench: &Bench<'_>) -> Verdict {
    if !moves_files(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    bench.upload(&id, PATH, b"the old one").await?;
    let broken = || Error::Unreachable { detail: "it broke off".to_owned() };
    let pieces = [Ok(Bytes::from_static(b"half of the new")), Err(broken())];
    let done = bench.provider.upload(&id, &whole(PATH), Box::pin(futures_util::stream::iter(pieces))).await;
    ensure!(done == Err(broken()), "half an upload gave {done:?}");
    bench.holds(&id, PATH, "the old one").await?;
    Ok(())
}

async fn work(bench: &Bench<'_>, id: &ProviderId, job: FileJob) -> Result<Worked<FileDone>, String> {
    bench.provider.files(id, &job).await.map_err(told("files"))
}

async fn listed(bench: &Bench<'_>, id: &ProviderId, path: &str) -> Result<Vec<(String, FileKind)>, String> {
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        match work(bench, id, FileJob::List { path: path.to_owned(), after, limit: 2 }).await? {
            Ok(FileDone::Listed { entries, next }) => {
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

pub(super) async fn housekeeping(bench: &Bench<'_>) -> Verdict {
    if !moves_files(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    for (path, content) in [("d/c", &b"3"[..]), ("d/a", b"1"), ("d/b/deep", b"22"), ("e", b"4")] {
        bench.upload(&id, path, content).await?;
    }
    let owned = |name: &str, kind| (name.to_owned(), kind);
    let expected = [owned("a", FileKind::File), owned("b", FileKind::Directory), owned("c", FileKind::File)];
    let seen = listed(bench, &id, "/workspace/d").await?;
    ensure!(seen == expected, "the list is {seen:?}");

    let stat = |path: &str| FileJob::Stat { path: path.to_owned() };
    match work(bench, &id, stat("d/b/deep")).await? {
        Ok(FileDone::Seen(entry)) => {
            let right = (entry.name.as_str(), entry.kind, entry.size) == ("deep", FileKind::File, 2);
            ensure!(right, "a file of two bytes is {entry:?}");
        }
        other => return Err(format!("a look gave {other:?}")),
    }
    let rename = |from: &str, to: &str, replace| FileJob::Move { from: from.to_owned(), to: to.to_owned(), replace };
    let delete = |path: &str, recursive| FileJob::Delete { path: path.to_owned(), recursive };
    let refused: [(FileJob, FileFault); 5] = [
        (stat("nothing"), FileFault::NotFound),
        (rename("d/a", "e", false), FileFault::Exists),
        (rename("nothing", "x", false), FileFault::NotFound),
        (delete("nothing", true), FileFault::NotFound),
        (delete("d", false), FileFault::NotEmpty),
    ];
    for (job, fault) in refused {
        let told = work(bench, &id, job.clone()).await?;
        ensure!(told.as_ref().is_err_and(|error| error.fault == fault), "{job:?} gave {told:?}");
    }
    for job in [rename("d/a", "e", true), rename("d/b", "moved", false), delete("d", true)] {
        let told = work(bench, &id, job.clone()).await?;
        ensure!(told == Ok(FileDone::Done), "{job:?} gave {told:?}");
    }
    bench.holds(&id, "e", "1").await?;
    bench.holds(&id, "moved/deep", "22").await?;
    let seen = listed(bench, &id, ".").await?;
    let left = seen.iter().any(|(name, _)| name == "d" || name == "b");
    ensure!(!left, "what was deleted or moved is still there: {seen:?}");
    Ok(())
}

pub(super) async fn trees(bench: &Bench<'_>) -> Verdict {
    if !moves_files(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    if bench.provider.capabilities().files == FileAbility::Workspace {
        let told = bench.provider.download(&id, &Transfer::Tar { root: "from".to_owned() }).await;
        ensure!(matches!(told, Err(Error::Unsupported { .. })), "a tree is not unsupported, but {told:?}");
        return Ok(());
    }
    bench.upload(&id, "from/a", b"one").await?;
    bench.upload(&id, "from/deep/er/b", b"two").await?;
    let root = |root: &str| Transfer::Tar { root: root.to_owned() };
    let tar = bench.content(&id, &root("/workspace/from")).await?;
    ensure!(tar.len() % 512 == 0, "a tar of {} bytes", tar.len());
    let half = tar.slice(..tar.len() / 2);
    let put = |tar: Bytes| Box::pin(futures_util::stream::iter([Ok(tar)]));
    let done = bench.provider.upload(&id, &root("to/there"), put(tar)).await.map_err(told("upload"))?;
    let right = done.as_ref().is_ok_and(|done| done.skipped == 0 && done.bytes == 6);
    ensure!(right, "a tar was taken in as {done:?}");
    bench.holds(&id, "to/there/a", "one").await?;
    bench.holds(&id, "to/there/deep/er/b", "two").await?;
    let done = bench.provider.upload(&id, &root("half"), put(half)).await.map_err(told("upload"))?;
    let refused = done.as_ref().is_err_and(|error| error.fault == FileFault::BadContent);
    ensure!(refused, "half a tar was taken in as {done:?}");
    Ok(())
}

pub(super) async fn fork(bench: &Bench<'_>) -> Verdict {
    if bench.provider.capabilities().fork == ForkAbility::None || !moves_files(bench) {
        return Ok(());
    }
    let parent = bench.make().await?;
    bench.upload(&parent, PATH, b"shared").await?;
    let mut spec = bench.spec();
    spec.settings.forked_from = Some(SandboxId::new());
    let forked = bench.provider.fork(&parent, &spec, "fork").await.map_err(told("fork"))?;
    crate::locked(&bench.made).push(forked.id.clone());
    let again = bench.provider.fork(&parent, &spec, "fork").await.map_err(told("the same fork"))?;
    ensure!(again.id == forked.id, "one key gave {:?} and {:?}", forked.id, again.id);
    ensure!(parent != forked.id, "a fork is its parent");
    let started = bench.create(&spec, "fork").await?;
    ensure!(started.id == forked.id, "the fork {:?} was started as {:?}", forked.id, started.id);
    bench.finds(&spec.identity.labels(), 1).await?;

    bench.holds(&forked.id, PATH, "shared").await?;
    bench.upload(&parent, PATH, b"the parent's").await?;
    bench.holds(&forked.id, PATH, "shared").await?;
    bench.upload(&forked.id, PATH, b"the fork's").await?;
    bench.holds(&parent, PATH, "the parent's").await?;
    bench.provider.destroy(&parent).await.map_err(told("destroy"))?;
    bench.holds(&forked.id, PATH, "the fork's").await
}

pub(super) async fn snapshot(bench: &Bench<'_>) -> Verdict {
    if bench.provider.capabilities().snapshot == SnapshotAbility::None || !moves_files(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    bench.upload(&id, PATH, b"as it was").await?;
    let spec = bench.spec();
    let name = format!("conformance-{}", spec.identity.sandbox);
    let taken = bench.provider.snapshot(&id, &name).await.map_err(told("snapshot"))?;
    ensure!(taken.name == name, "it is called {:?}", taken.name);
    bench.upload(&id, PATH, b"as it became").await?;
    let settings = Settings { snapshot: Some(name.clone()), ..spec.settings };
    let made = bench.create(&CreateSpec { settings, ..spec }, "from-snapshot").await?;
    bench.holds(&made.id, PATH, "as it was").await?;
    match bench.provider.forget_snapshot(&name).await {
        Ok(()) | Err(Error::Unsupported { .. }) => {}
        Err(error) => return Err(format!("it can't be forgotten: {error}")),
    }

    let spec = bench.spec();
    let settings = Settings { snapshot: Some("nobody-took-this".to_owned()), ..spec.settings };
    match bench.create(&CreateSpec { settings, ..spec }, "from-nothing").await {
        Err(_) => Ok(()),
        Ok(made) => Err(format!("an unknown snapshot made {:?}", made.id)),
    }
}

pub(super) async fn pause(bench: &Bench<'_>) -> Verdict {
    let ability = bench.provider.capabilities().pause;
    if ability == PauseAbility::None {
        return Ok(());
    }
    let id = bench.make().await?;
    let runs = bench.provider.capabilities().output != OutputAbility::None && ability == PauseAbility::Memory;
    // More than its time passes while it stands still, which does not count.
    let timed = ExecSpec { timeout: Some(std::time::Duration::from_millis(900)), ..shell("sleep 0.3; echo after") };
    let exec = if runs { Some(bench.exec(&id, &timed).await?) } else { None };
    bench.provider.pause(&id).await.map_err(told("pause"))?;
    bench.provider.pause(&id).await.map_err(told("pause of a paused one"))?;
    let seen = bench.provider.get(&id).await;
    let paused = matches!(&seen, Lookup::Found(found) if found.state == ProviderState::Paused);
    ensure!(paused, "a paused sandbox is {seen:?}");
    if let Some(exec) = &exec {
        let listening = bench.listen(exec, 0, |_| false);
        let heard = tokio::time::timeout(std::time::Duration::from_secs(1), listening).await;
        ensure!(heard.is_err(), "a command went on in a paused sandbox: {heard:?}");
    }
    let resumed = bench.provider.resume(&id).await.map_err(told("resume"))?;
    ensure!(resumed.state == ProviderState::Running, "a resumed sandbox is {:?}", resumed.state);
    if let Some(exec) = &exec {
        let heard = bench.listen(exec, 0, |_| false).await?;
        let went_on = heard.stdout == "after\n" && heard.exit == Some(Exit::Exited { code: 0 });
        ensure!(went_on, "after the pause a command gave {heard:?}");
    }
    Ok(())
}
