//! Commands: how they end, what they say, and how they are reached.

use super::{Bench, Heard, Verdict, ensure, shell, told};
use atoll_core::provider::capabilities::{AttachAbility, OutputAbility};
use atoll_core::provider::{Command, Error, ExecSpec, Exit};
use bytes::Bytes;
use std::time::{Duration, Instant};

const SIGTERM: i32 = 15;

fn runs_commands(bench: &Bench<'_>) -> bool {
    bench.provider.capabilities().output != OutputAbility::None
}

pub(super) async fn exit_codes(bench: &Bench<'_>) -> Verdict {
    if !runs_commands(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    for (text, code) in [("true", 0), ("false", 1), ("exit 3", 3), ("false; true", 0), ("no-such-command-here", 127)] {
        let heard = bench.run(&id, text).await?;
        ensure!(heard.exit == Some(Exit::Exited { code }), "`{text}` ended as {:?}", heard.exit);
    }
    let argv = ExecSpec { command: Command::Argv(vec!["echo".into(), "a;  b".into()]), ..shell("") };
    let exec = bench.exec(&id, &argv).await?;
    let heard = bench.listen(&exec, 0, |_| false).await?;
    ensure!(heard.stdout == "a;  b\n", "an argument was taken apart: {heard:?}");
    Ok(())
}

pub(super) async fn output(bench: &Bench<'_>) -> Verdict {
    let text = "echo out; echo err >&2";
    match bench.provider.capabilities().output {
        OutputAbility::None => Ok(()),
        OutputAbility::Split => {
            let heard = bench.run(&bench.make().await?, text).await?;
            ensure!(heard.stdout == "out\n" && heard.stderr == "err\n", "heard {heard:?}");
            Ok(())
        }
        OutputAbility::Merged => {
            let heard = bench.run(&bench.make().await?, text).await?;
            ensure!(heard.stdout == "out\nerr\n" && heard.stderr.is_empty(), "heard {heard:?}");
            Ok(())
        }
    }
}

pub(super) async fn attach_again(bench: &Bench<'_>) -> Verdict {
    let ability = bench.provider.capabilities().attach;
    if ability == AttachAbility::None {
        return Ok(());
    }
    let id = bench.make().await?;
    let exec = bench.exec(&id, &shell("echo one; sleep 0.3; echo two")).await?;
    let first = bench.listen(&exec, 0, |heard| heard.stdout == "one\n").await?;
    ensure!(first.exit.is_none(), "the command ended before its time: {first:?}");
    let (from, expected) = match ability {
        AttachAbility::FromCursor => (first.cursor, "two\n"),
        AttachAbility::WholeLog | AttachAbility::None => (0, "one\ntwo\n"),
    };
    for _ in 0..2 {
        let rest = bench.listen(&exec, from, |_| false).await?;
        ensure!(rest.stdout == expected, "heard {rest:?} after {from}");
        ensure!(rest.exit == Some(Exit::Exited { code: 0 }), "ended as {:?}", rest.exit);
    }
    Ok(())
}

pub(super) async fn ended_stays(bench: &Bench<'_>) -> Verdict {
    if bench.provider.capabilities().attach == AttachAbility::None {
        return Ok(());
    }
    let id = bench.make().await?;
    let exec = bench.exec(&id, &shell("echo done; exit 4")).await?;
    let whole = |heard: &Heard| heard.stdout == "done\n" && heard.exit == Some(Exit::Exited { code: 4 });
    let heard = bench.listen(&exec, 0, |_| false).await?;
    ensure!(whole(&heard), "heard {heard:?}");
    bench.provider.signal(&exec, SIGTERM).await.map_err(told("a signal after the end"))?;
    let heard = bench.listen(&exec, 0, |_| false).await?;
    ensure!(whole(&heard), "heard {heard:?} the second time");
    Ok(())
}

pub(super) async fn input(bench: &Bench<'_>) -> Verdict {
    if !runs_commands(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    let exec = bench.exec(&id, &ExecSpec { stdin: true, ..shell("cat") }).await?;
    for part in ["first ", "second"] {
        bench.provider.write(&exec, Bytes::from_static(part.as_bytes())).await.map_err(told("write"))?;
    }
    bench.provider.close_stdin(&exec).await.map_err(told("close_stdin"))?;
    let heard = bench.listen(&exec, 0, |_| false).await?;
    ensure!(heard.stdout == "first second", "heard {heard:?}");
    let heard = bench.run(&id, "cat").await?;
    ensure!(heard.exit == Some(Exit::Exited { code: 0 }), "without input it ended as {:?}", heard.exit);
    let exec = bench.exec(&id, &shell("sleep 50")).await?;
    let refused = bench.provider.write(&exec, Bytes::from_static(b"lost")).await;
    ensure!(matches!(refused, Err(Error::NoInput { .. })), "input for one that takes none: {refused:?}");
    Ok(())
}

pub(super) async fn signal_before_input(bench: &Bench<'_>) -> Verdict {
    if !runs_commands(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    let argv = Command::Argv(vec!["sleep".into(), "50".into()]);
    let exec = bench.exec(&id, &ExecSpec { command: argv, stdin: true, ..shell("") }).await?;
    bench.provider.write(&exec, vec![0; 2_000_000].into()).await.map_err(told("write"))?;
    bench.provider.signal(&exec, SIGTERM).await.map_err(told("signal"))?;
    let heard = bench.listen(&exec, 0, |_| false).await?;
    ensure!(heard.exit == Some(Exit::Signalled { signal: SIGTERM }), "ended as {:?}", heard.exit);
    Ok(())
}

pub(super) async fn signal(bench: &Bench<'_>) -> Verdict {
    if !runs_commands(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    let argv = Command::Argv(vec!["sleep".into(), "50".into()]);
    let exec = bench.exec(&id, &ExecSpec { command: argv, ..shell("") }).await?;
    bench.provider.signal(&exec, SIGTERM).await.map_err(told("signal"))?;
    let heard = bench.listen(&exec, 0, |_| false).await?;
    ensure!(heard.exit == Some(Exit::Signalled { signal: SIGTERM }), "ended as {:?}", heard.exit);
    Ok(())
}

pub(super) async fn timeout(bench: &Bench<'_>) -> Verdict {
    if !runs_commands(bench) {
        return Ok(());
    }
    let id = bench.make().await?;
    let limit = Some(Duration::from_millis(300));
    let exec = bench.exec(&id, &ExecSpec { timeout: limit, ..shell("echo begun; sleep 50") }).await?;
    let began = Instant::now();
    let heard = bench.listen(&exec, 0, |_| false).await?;
    ensure!(heard.exit == Some(Exit::TimedOut), "ended as {:?}", heard.exit);
    ensure!(heard.stdout == "begun\n", "what it had said is lost: {heard:?}");
    ensure!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    Ok(())
}
