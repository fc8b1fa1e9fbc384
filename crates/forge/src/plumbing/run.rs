//! One program, run to its end: bounded in time and in what it may say, and nothing of it left behind.
//!
//! Whatever it starts — a filter that a repository's configuration names, say — is in its process group.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, Signal, kill_process_group, pidfd_open, prlimit};
use std::fs::File;
use std::io::{self, Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How much of what a program says about its trouble is kept: the end of it, where the reason stands.
const STDERR_KEPT: usize = 4096;

/// How long what is still in the pipes may take after the program itself has ended.
const AFTER_THE_END: Duration = Duration::from_secs(1);

/// How far a program may go.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub time: Duration,
    /// Bytes on its standard output.
    pub output: u64,
    /// Bytes that it may allocate.
    pub memory: Option<u64>,
}

#[derive(Debug)]
pub enum Failure {
    /// The program could not be started.
    NotStarted(io::Error),
    /// It took longer than it may, and was killed with all that it had started.
    TimedOut,
    /// It said more than it may, and was killed.
    TooMuch,
    /// What it said could not be kept.
    Io(io::Error),
}

/// Where a program's standard output goes. `Err` ends the program.
pub type Sink<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), Failure>;

#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stderr: String,
}

/// Runs `command` with its output going to `keep`.
pub fn run(command: &mut Command, limits: Limits, keep: Sink<'_>) -> Result<Finished, Failure> {
    let deadline = Instant::now() + limits.time;
    let mut said = 0;
    let mut sink = |bytes: &[u8]| {
        said += bytes.len() as u64;
        if said > limits.output { Err(Failure::TooMuch) } else { keep(bytes) }
    };
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut group = Group { child: command.spawn().map_err(Failure::NotStarted)?, ended: None };
    let pid = Pid::from_child(&group.child);
    if let Some(bytes) = limits.memory {
        let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
        // Root without CAP_SYS_RESOURCE, as in some containers, may not do this to another user's process. The
        // other bounds still hold then.
        if let Err(error) = prlimit(Some(pid), Resource::Data, limit) {
            tracing::debug!(%error, "git runs without a bound of its memory");
        }
    }
    let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| Failure::Io(error.into()))?;
    let mut pipes = Pipes {
        stdout: group.child.stdout.take().map(OwnedFd::from),
        stderr: group.child.stderr.take().map(OwnedFd::from),
        tail: Vec::new(),
    };
    pipes.drain(&ended, &mut sink, deadline)?;
    let status = group.end().map_err(Failure::Io)?;
    Ok(Finished { status, stderr: readable(&pipes.tail) })
}

/// A program and all that it started. Whatever way this goes out of scope, they are gone.
struct Group {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Group {
    fn end(&mut self) -> io::Result<ExitStatus> {
        if let Some(status) = self.ended {
            return Ok(status);
        }
        // The child is not reaped yet, so its number cannot belong to another group.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let status = self.child.wait()?;
        self.ended = Some(status);
        Ok(status)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        drop(self.end());
    }
}

struct Pipes {
    stdout: Option<OwnedFd>,
    stderr: Option<OwnedFd>,
    tail: Vec<u8>,
}

impl Pipes {
    /// Reads until the program has ended and has nothing more to say.
    fn drain(&mut self, ended: &OwnedFd, sink: Sink<'_>, mut deadline: Instant) -> Result<(), Failure> {
        let mut buffer = vec![0; 128 * 1024];
        let mut gone = false;
        while !gone || self.stdout.is_some() || self.stderr.is_some() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // Something that the program left running may hold its pipes open for ever.
                return if gone { Ok(()) } else { Err(Failure::TimedOut) };
            }
            let [out, err, end] = self.wait(ended, gone, left)?;
            if out && !forward(&mut self.stdout, &mut buffer, sink)? {
                self.stdout = None;
            }
            if err {
                let tail = &mut self.tail;
                let open = forward(&mut self.stderr, &mut buffer, &mut |bytes| {
                    tail.extend_from_slice(bytes);
                    tail.drain(..tail.len().saturating_sub(STDERR_KEPT));
                    Ok(())
                })?;
                if !open {
                    self.stderr = None;
                }
            }
            if end && !gone {
                gone = true;
                deadline = deadline.min(Instant::now() + AFTER_THE_END);
            }
        }
        Ok(())
    }

    /// Which of stdout, stderr and the program's end have something for us.
    fn wait(&self, ended: &OwnedFd, gone: bool, time: Duration) -> Result<[bool; 3], Failure> {
        let ended = if gone { None } else { Some(ended) };
        let watched = [self.stdout.as_ref(), self.stderr.as_ref(), ended];
        let mut waiting: Vec<PollFd<'_>> =
            watched.iter().flatten().map(|descriptor| PollFd::new(descriptor, PollFlags::IN)).collect();
        let time =
            Timespec { tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: time.subsec_nanos().into() };
        match poll(&mut waiting, Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(Failure::Io(error.into())),
        }
        let mut answers = waiting.iter().map(|entry| !entry.revents().is_empty());
        Ok(watched.map(|descriptor| descriptor.is_some() && answers.next().unwrap_or(false)))
    }
}

/// One read of a pipe that has something; false at its end.
fn forward(pipe: &mut Option<OwnedFd>, buffer: &mut [u8], sink: Sink<'_>) -> Result<bool, Failure> {
    let Some(pipe) = pipe else { return Ok(false) };
    match rustix::io::read(pipe.as_fd(), &mut *buffer) {
        Ok(0) => Ok(false),
        Ok(count) => sink(&buffer[..count]).map(|()| true),
        Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => Ok(true),
        Err(error) => Err(Failure::Io(error.into())),
    }
}

/// What a program said, on one line and without anything that a terminal would obey.
fn readable(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("hint:"));
    lines.collect::<Vec<_>>().join("; ").chars().filter(|character| !character.is_control()).collect()
}

/// A file with these bytes that a program can read as its standard input. It has no name in `directory`, where it is.
pub fn input(bytes: &[u8], directory: &Path) -> io::Result<File> {
    let mut file = tempfile::tempfile_in(directory)?;
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, time: Duration) -> (Result<Finished, Failure>, Vec<u8>, Duration) {
        let mut said = Vec::new();
        let began = Instant::now();
        let mut sink = |bytes: &[u8]| {
            said.extend_from_slice(bytes);
            Ok(())
        };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).stdin(Stdio::null());
        let result = run(&mut command, Limits { time, output: 1 << 20, memory: None }, &mut sink);
        (result, said, began.elapsed())
    }

    #[test]
    fn gives_what_was_said_and_how_it_ended() {
        let (result, said, _) = shell("echo out; printf 'one\\n\\033[31mtwo\\n' >&2; exit 3", Duration::from_secs(20));
        let finished = result.unwrap();
        assert_eq!((finished.status.code(), said.as_slice()), (Some(3), b"out\n".as_slice()));
        assert_eq!(finished.stderr, "one; [31mtwo");
    }

    #[test]
    fn what_takes_too_long_is_killed_with_its_children() {
        let directory = tempfile::tempdir().unwrap();
        let canary = directory.path().join("canary");
        let script = format!("(sleep 2; touch {}) & sleep 60", canary.display());
        let (result, _, took) = shell(&script, Duration::from_millis(200));
        assert!(matches!(result, Err(Failure::TimedOut)));
        assert!(took < Duration::from_secs(2));
        std::thread::sleep(Duration::from_millis(2300));
        assert!(!canary.exists());
    }

    #[test]
    fn a_child_left_behind_does_not_hold_us_up_and_does_not_stay() {
        let (result, said, took) = shell("sleep 60 & echo $!", Duration::from_secs(50));
        assert!(result.unwrap().status.success());
        assert!(took < Duration::from_secs(20));
        let child = String::from_utf8(said).unwrap();
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", child.trim())).unwrap_or_default();
        // It may take a moment to die, and its new parent one to notice.
        let gone = || state().is_empty() || state().contains(") Z ");
        let waited = (0..500).any(|_| {
            gone() || {
                std::thread::sleep(Duration::from_millis(10));
                false
            }
        });
        assert!(waited, "{}", state());
    }

    #[test]
    fn what_says_too_much_is_killed() {
        let (result, said, _) = shell("yes", Duration::from_secs(20));
        assert!(matches!(result, Err(Failure::TooMuch)));
        assert!(said.len() <= 1 << 20);
    }

    #[test]
    fn memory_is_bounded() {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", "read go; x=$(head -c 300000000 /dev/zero | tr '\\0' x); echo ${#x}"]);
        command.stdin(input(b"go\n", &std::env::temp_dir()).unwrap());
        let mut said = Vec::new();
        let mut sink = |bytes: &[u8]| {
            said.extend_from_slice(bytes);
            Ok(())
        };
        let limits = Limits { time: Duration::from_secs(20), output: u64::MAX, memory: Some(64 << 20) };
        drop(run(&mut command, limits, &mut sink));
        assert_ne!(String::from_utf8_lossy(&said).trim(), "300000000");
    }
}
