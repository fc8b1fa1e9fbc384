//! Runs one program with time and output limits and kills everything that it started.
//!
//! Its children, such as a configured filter, are in its process group.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process_group, pidfd_open, prlimit};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Bytes of stderr to retain: the end, which has the reason.
const STDERR_TAIL_BYTES: usize = 4096;

/// Time limit for draining the pipes after the program has exited.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The limits of a program run.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    pub timeout: Duration,
    /// Bytes on stdout.
    pub output_bytes: u64,
    /// Bytes that it may allocate.
    pub memory_bytes: Option<u64>,
    /// Size of each file that it writes.
    pub file_bytes: Option<u64>,
}

#[derive(Debug)]
pub enum RunFailure {
    SpawnFailed(io::Error),
    /// It exceeded its time limit and was killed with its children.
    TimedOut,
    /// It exceeded its output limit and was killed.
    OutputTooLarge,
    /// Reading or storing its output failed.
    Io(io::Error),
}

/// Receives a program's stdout. `Err` kills the program.
pub type OutputSink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), RunFailure>;

#[derive(Debug)]
pub struct ProcessExit {
    pub status: ExitStatus,
    pub stderr: String,
}

/// Runs `command` and passes its output to `keep`.
pub fn run_command(command: &mut Command, limits: RunLimits, keep: OutputSink<'_>) -> Result<ProcessExit, RunFailure> {
    let deadline = Instant::now() + limits.timeout;
    let mut total_bytes = 0;
    let mut sink = |bytes: &[u8]| {
        total_bytes += bytes.len() as u64;
        if total_bytes > limits.output_bytes { Err(RunFailure::OutputTooLarge) } else { keep(bytes) }
    };
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut group = ProcessGroup { child: command.spawn().map_err(RunFailure::SpawnFailed)?, exit_status: None };
    let pid = Pid::from_child(&group.child);
    for (resource, bytes) in [(Resource::Data, limits.memory_bytes), (Resource::Fsize, limits.file_bytes)] {
        let Some(bytes) = bytes else { continue };
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        // Root without CAP_SYS_RESOURCE (in some containers) may not do this to another user's process. The other
        // limits still apply.
        if let Err(error) = prlimit(Some(pid), resource, limit) {
            tracing::debug!(%error, ?resource, "git runs without a limit");
        }
    }
    let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| RunFailure::Io(error.into()))?;
    let mut pipes = OutputPipes {
        stdout: group.child.stdout.take().map(OwnedFd::from),
        stderr: group.child.stderr.take().map(OwnedFd::from),
        stderr_tail: Vec::new(),
    };
    pipes.drain(&ended, &mut sink, deadline)?;
    let status = group.kill_and_reap().map_err(RunFailure::Io)?;
    Ok(ProcessExit { status, stderr: to_single_line(&pipes.stderr_tail) })
}

/// A program and its children. Kills them on drop.
struct ProcessGroup {
    child: Child,
    exit_status: Option<ExitStatus>,
}

impl ProcessGroup {
    fn kill_and_reap(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.exit_status {
            return Ok(status);
        }
        // The child is not reaped yet, so its pid is not reused.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let status = self.child.wait()?;
        self.exit_status = Some(status);
        Ok(status)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        drop(self.kill_and_reap());
    }
}

struct OutputPipes {
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    stderr_tail: Vec<u8>,
}

impl OutputPipes {
    /// Reads until the program has exited and its pipes are empty.
    fn drain(&mut self, ended: &OwnedFd, sink: OutputSink<'_>, mut deadline: Instant) -> Result<(), RunFailure> {
        let mut buffer = vec![0; 128 * 1024];
        let mut has_exited = false;
        while !has_exited || self.stdout.is_some() || self.stderr.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // A background child may hold the pipes open forever.
                return if has_exited { Ok(()) } else { Err(RunFailure::TimedOut) };
            }
            let [out, err, end] = self.wait_until_ready(ended, has_exited, left)?;
            if out && !forward_once(&mut self.stdout, &mut buffer, sink)? {
                self.stdout = None;
            }
            if err {
                let tail = &mut self.stderr_tail;
                let open = forward_once(&mut self.stderr, &mut buffer, &mut |bytes| {
                    tail.extend_from_slice(bytes);
                    tail.drain(..tail.len().saturating_sub(STDERR_TAIL_BYTES));
                    Ok(())
                })?;
                if !open {
                    self.stderr = None;
                }
            }
            if end && !has_exited {
                has_exited = true;
                deadline = deadline.min(Instant::now() + DRAIN_TIMEOUT);
            }
        }
        Ok(())
    }

    /// Waits for stdout, stderr or the exit; returns which are ready.
    fn wait_until_ready(&self, ended: &OwnedFd, has_exited: bool, time: Duration) -> Result<[bool; 3], RunFailure> {
        let ended = if has_exited { None } else { Some(ended) };
        let watched = [self.stdout.as_ref(), self.stderr.as_ref(), ended];
        let mut waiting: Vec<PollFd<'_>> =
            watched.iter().flatten().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
        let time =
            Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
        match poll(&mut waiting, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(RunFailure::Io(error.into())),
        }
        let mut answers = waiting.iter().map(|entry| !entry.revents().is_empty());
        Ok(watched.map(|descriptor| descriptor.is_some() && answers.next().unwrap_or(false)))
    }
}

/// Reads once from a ready pipe; returns false at its end.
fn forward_once(pipe: &mut Option<OwnedFd>, buffer: &mut [u8], sink: OutputSink<'_>) -> Result<bool, RunFailure> {
    let Some(pipe) = pipe else { return Ok(false) };
    match rustix::io::read(pipe.as_fd(), &mut *buffer) {
        Ok(0) => Ok(false),
        Ok(count) => sink(&buffer[..count]).map(|()| true),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(true),
        Err(error) => Err(RunFailure::Io(error.into())),
    }
}

/// Joins output into one line without control characters.
fn to_single_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("hint:"));
    lines.collect::<Vec<_>>().join("; ").chars().filter(|character| !character.is_control()).collect()
}

/// Creates an unnamed file in `directory` with these bytes, for use as stdin.
pub fn stdin_file(bytes: &[u8], directory: &Path) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_test_wait::wait_until;

    fn run_shell(script: &str, time: Duration) -> (Result<ProcessExit, RunFailure>, Vec<u8>, Duration) {
        let mut output = Vec::new();
        let began = Instant::now();
        let mut sink = |bytes: &[u8]| {
            output.extend_from_slice(bytes);
            Ok(())
        };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        let result = run_command(
            &mut command,
            RunLimits { timeout: time, output_bytes: 1 << 20, memory_bytes: None, file_bytes: None },
            &mut sink,
        );
        (result, output, began.elapsed())
    }

    #[test]
    fn returns_output_and_exit_status() {
        let (result, output, _) =
            run_shell("echo out; printf 'one\\n\\033[31mtwo\\n' >&2; exit 3", Duration::from_secs(20));
        let finished = result.unwrap();
        assert_eq!((finished.status.code(), output.as_slice()), (Some(3), b"out\n".as_slice()));
        assert_eq!(finished.stderr, "one; [31mtwo");
    }

    #[test]
    fn a_timeout_kills_the_program_and_its_children() {
        let (result, output, took) = run_shell("sleep 60 & echo $!; sleep 60", Duration::from_millis(500));
        assert!(matches!(result, Err(RunFailure::TimedOut)));
        assert!(took < Duration::from_secs(30), "the sleeps take a minute");
        wait_until_gone(&output);
    }

    /// Waits until the process with this pid is gone or a zombie, whose new parent may take a moment to notice.
    fn wait_until_gone(pid: &[u8]) {
        let pid: u32 = std::str::from_utf8(pid).unwrap().trim().parse().unwrap();
        wait_until("the child's end", || {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        });
    }

    #[test]
    fn a_background_child_is_killed_and_does_not_block() {
        let (result, output, took) = run_shell("sleep 60 & echo $!", Duration::from_secs(50));
        assert!(result.unwrap().status.success());
        assert!(took < Duration::from_secs(30), "the sleep takes a minute");
        wait_until_gone(&output);
    }

    #[test]
    fn too_much_output_kills_the_program() {
        let (result, output, _) = run_shell("yes", Duration::from_secs(20));
        assert!(matches!(result, Err(RunFailure::OutputTooLarge)));
        assert!(output.len() <= 1 << 20);
    }

    #[test]
    fn memory_is_limited() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read go; x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}"]);
        command.stdin(stdin_file(b"go\n", &std::env::temp_dir()).unwrap());
        let mut output = Vec::new();
        let mut sink = |bytes: &[u8]| {
            output.extend_from_slice(bytes);
            Ok(())
        };
        let limits = RunLimits {
            timeout: Duration::from_secs(20),
            output_bytes: u64::MAX,
            memory_bytes: Some(64 << 20),
            file_bytes: None,
        };
        drop(run_command(&mut command, limits, &mut sink));
        assert_ne!(String::from_utf8_lossy(&output).trim(), "300000000");
    }
}
