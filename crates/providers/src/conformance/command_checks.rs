//! Checks of commands: exit, output, input, signals and time-outs.

use super::{CheckContext, CheckOutcome, CollectedOutput, describe_error, ensure, shell_command};
use atoll_core::provider::capabilities::{AttachAbility, OutputAbility};
use atoll_core::provider::{CommandExit, Error, ExecCommand, ExecSpec};
use bytes::Bytes;
use std::time::{Duration, Instant};

const SIGTERM: i32 = 15;

fn supports_commands(context: &CheckContext<'_>) -> bool {
    context.provider.capabilities().output != OutputAbility::None
}

pub(super) async fn exit_codes(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_commands(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    for (text, code) in [("true", 0), ("false", 1), ("exit 3", 3), ("false; true", 0), ("no-such-command-here", 127)] {
        let output = context.run_command(&id, text).await?;
        ensure!(output.exit == Some(CommandExit::Exited { code }), "`{text}` ended as {:?}", output.exit);
    }
    let argv = ExecSpec { command: ExecCommand::Argv(vec!["echo".into(), "a;  b".into()]), ..shell_command("") };
    let exec = context.start_command(&id, &argv).await?;
    let output = context.read_output(&exec, 0, |_| false).await?;
    ensure!(output.stdout == "a;  b\n", "an argument was split: {output:?}");
    Ok(())
}

pub(super) async fn output_streams(context: &CheckContext<'_>) -> CheckOutcome {
    let text = "echo out; echo err >&2";
    match context.provider.capabilities().output {
        OutputAbility::None => Ok(()),
        OutputAbility::Split => {
            let output = context.run_command(&context.create_default_sandbox().await?, text).await?;
            ensure!(output.stdout == "out\n" && output.stderr == "err\n", "output {output:?}");
            Ok(())
        }
        OutputAbility::Merged => {
            let output = context.run_command(&context.create_default_sandbox().await?, text).await?;
            ensure!(output.stdout == "out\nerr\n" && output.stderr.is_empty(), "output {output:?}");
            Ok(())
        }
    }
}

pub(super) async fn attach_again(context: &CheckContext<'_>) -> CheckOutcome {
    let ability = context.provider.capabilities().attach;
    if ability == AttachAbility::None {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    let exec = context.start_command(&id, &shell_command("echo one; sleep 0.3; echo two")).await?;
    let first = context.read_output(&exec, 0, |output| output.stdout == "one\n").await?;
    ensure!(first.exit.is_none(), "the command ended too early: {first:?}");
    let (from, expected) = match ability {
        AttachAbility::FromCursor => (first.cursor, "two\n"),
        AttachAbility::WholeLog | AttachAbility::None => (0, "one\ntwo\n"),
    };
    for _ in 0..2 {
        let rest = context.read_output(&exec, from, |_| false).await?;
        ensure!(rest.stdout == expected, "output {rest:?} after {from}");
        ensure!(rest.exit == Some(CommandExit::Exited { code: 0 }), "ended as {:?}", rest.exit);
    }
    Ok(())
}

pub(super) async fn ended_command_stays(context: &CheckContext<'_>) -> CheckOutcome {
    if context.provider.capabilities().attach == AttachAbility::None {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    let exec = context.start_command(&id, &shell_command("echo done; exit 4")).await?;
    let whole =
        |output: &CollectedOutput| output.stdout == "done\n" && output.exit == Some(CommandExit::Exited { code: 4 });
    let output = context.read_output(&exec, 0, |_| false).await?;
    ensure!(whole(&output), "output {output:?}");
    context.provider.signal(&exec, SIGTERM).await.map_err(describe_error("a signal after the end"))?;
    let output = context.read_output(&exec, 0, |_| false).await?;
    ensure!(whole(&output), "output {output:?} the second time");
    Ok(())
}

pub(super) async fn command_input(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_commands(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    let exec = context.start_command(&id, &ExecSpec { has_stdin: true, ..shell_command("cat") }).await?;
    for part in ["first ", "second"] {
        context.provider.write(&exec, Bytes::from_static(part.as_bytes())).await.map_err(describe_error("write"))?;
    }
    context.provider.close_stdin(&exec).await.map_err(describe_error("close_stdin"))?;
    let output = context.read_output(&exec, 0, |_| false).await?;
    ensure!(output.stdout == "first second", "output {output:?}");
    let output = context.run_command(&id, "cat").await?;
    ensure!(output.exit == Some(CommandExit::Exited { code: 0 }), "without input it ended as {:?}", output.exit);
    let exec = context.start_command(&id, &shell_command("sleep 50")).await?;
    let refused = context.provider.write(&exec, Bytes::from_static(b"lost")).await;
    ensure!(matches!(refused, Err(Error::NoInput { .. })), "input without stdin: {refused:?}");
    Ok(())
}

pub(super) async fn signal_before_input(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_commands(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    let argv = ExecCommand::Argv(vec!["sleep".into(), "50".into()]);
    let exec = context.start_command(&id, &ExecSpec { command: argv, has_stdin: true, ..shell_command("") }).await?;
    context.provider.write(&exec, vec![0; 2_000_000].into()).await.map_err(describe_error("write"))?;
    context.provider.signal(&exec, SIGTERM).await.map_err(describe_error("signal"))?;
    let output = context.read_output(&exec, 0, |_| false).await?;
    ensure!(output.exit == Some(CommandExit::Signalled { signal: SIGTERM }), "ended as {:?}", output.exit);
    Ok(())
}

pub(super) async fn signal_ends_command(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_commands(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    let argv = ExecCommand::Argv(vec!["sleep".into(), "50".into()]);
    let exec = context.start_command(&id, &ExecSpec { command: argv, ..shell_command("") }).await?;
    context.provider.signal(&exec, SIGTERM).await.map_err(describe_error("signal"))?;
    let output = context.read_output(&exec, 0, |_| false).await?;
    ensure!(output.exit == Some(CommandExit::Signalled { signal: SIGTERM }), "ended as {:?}", output.exit);
    Ok(())
}

pub(super) async fn command_timeout(context: &CheckContext<'_>) -> CheckOutcome {
    if !supports_commands(context) {
        return Ok(());
    }
    let id = context.create_default_sandbox().await?;
    let limit = Some(Duration::from_millis(300));
    let exec =
        context.start_command(&id, &ExecSpec { timeout: limit, ..shell_command("echo begun; sleep 50") }).await?;
    let began = Instant::now();
    let output = context.read_output(&exec, 0, |_| false).await?;
    ensure!(output.exit == Some(CommandExit::TimedOut), "ended as {:?}", output.exit);
    ensure!(output.stdout == "begun\n", "its output is lost: {output:?}");
    ensure!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    Ok(())
}
