//! Files, and what is made of whole sandboxes: forks, snapshots, pauses.

use super::{Bench, Verdict, ensure, shell, told};
use atoll_core::provider::capabilities::{FileAbility, ForkAbility, OutputAbility, PauseAbility, SnapshotAbility};
use atoll_core::provider::{CreateSpec, Error, Exit, Lookup, ProviderState, Range};
use atoll_core::sandbox::Settings;

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
        let seen = bench.download(&id, PATH, range).await.map_err(told("download"))?;
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
    match bench.download(&id, "/workspace/nothing", None).await {
        Err(Error::Refused { .. }) => Ok(()),
        other => Err(format!("a missing file gave {other:?}")),
    }
}

pub(super) async fn fork(bench: &Bench<'_>) -> Verdict {
    if bench.provider.capabilities().fork == ForkAbility::None || !moves_files(bench) {
        return Ok(());
    }
    let parent = bench.make().await?;
    bench.upload(&parent, PATH, b"shared").await?;
    let spec = bench.spec();
    let forked = bench.provider.fork(&parent, &spec, "fork").await.map_err(told("fork"))?;
    crate::locked(&bench.made).push(forked.id.clone());
    let again = bench.provider.fork(&parent, &spec, "fork").await.map_err(told("the same fork"))?;
    ensure!(again.id == forked.id, "one key gave {:?} and {:?}", forked.id, again.id);
    ensure!(parent != forked.id, "a fork is its parent");
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
    let settings = Settings { snapshot: Some(name), ..spec.settings };
    let made = bench.create(&CreateSpec { settings, ..spec }, "from-snapshot").await?;
    bench.holds(&made.id, PATH, "as it was").await?;

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
    let exec = if runs { Some(bench.exec(&id, &shell("sleep 0.3; echo after")).await?) } else { None };
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
