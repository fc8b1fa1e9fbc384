//! Finds the programs that listen on ports. Only a process with the agent's rights may look at the agent's descriptors,
//! so a helper process does it.

use super::PortTools;
use crate::spawner::{ProgramSpec, StdStreams};
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::time::timeout;

const SEARCH_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_OUTPUT_BYTES: u64 = 16 << 10;
const MAX_NAME_CHARS: usize = 64;

#[derive(Debug)]
pub(super) struct ProgramFinder(pub(super) PortTools);

impl ProgramFinder {
    /// The program of each socket, by the socket's inode. A program that is not found is absent.
    pub(super) async fn find_programs(&self, inodes: impl Iterator<Item = u64>) -> BTreeMap<u64, String> {
        let inodes: Vec<String> = inodes.map(|inode| inode.to_string()).collect();
        if inodes.is_empty() {
            return BTreeMap::new();
        }
        timeout(SEARCH_TIMEOUT, self.run_helper(inodes)).await.ok().flatten().unwrap_or_default()
    }

    async fn run_helper(&self, inodes: Vec<String>) -> Option<BTreeMap<u64, String>> {
        let PortTools { spawner, environment, worker } = &self.0;
        let (stdout, to_stdout) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        let (_stderr, to_stderr) = pipe_with(PipeFlags::CLOEXEC).ok()?;
        let argv = [worker.to_string_lossy().into_owned(), "port-programs".to_owned()].into_iter().chain(inodes);
        let program = ProgramSpec {
            argv: argv.collect(),
            cwd: PathBuf::from("/"),
            env: environment.for_command(&BTreeMap::new()),
            kill_group_on_exit: true,
            terminal: None,
            files: Vec::new(),
        };
        let streams = StdStreams { input: None, stdout: to_stdout, stderr: to_stderr };
        let _process = spawner.spawn(program, streams).await.ok()?;
        let mut text = String::new();
        Receiver::from_owned_fd(stdout).ok()?.take(MAX_OUTPUT_BYTES).read_to_string(&mut text).await.ok()?;
        Some(parse_lines(&text))
    }
}

/// Parses lines `INODE NAME`. The helper runs as the agent, so the text is not trusted.
fn parse_lines(text: &str) -> BTreeMap<u64, String> {
    let lines = text.lines().filter_map(|line| {
        let (inode, name) = line.split_once(' ')?;
        let name: String = name.chars().filter(|c| !c.is_control()).take(MAX_NAME_CHARS).collect();
        Some((inode.parse().ok()?, name)).filter(|(_, name)| !name.is_empty())
    });
    lines.collect()
}

/// `port-programs INODE…`: prints the program of each socket.
pub fn main(arguments: &[String]) -> ExitCode {
    let mut wanted: BTreeSet<u64> = arguments.iter().filter_map(|inode| inode.parse().ok()).collect();
    let mut out = std::io::stdout().lock();
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    for process in processes.filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok()) {
        if wanted.is_empty() {
            break;
        }
        let sockets: Vec<u64> = sockets_of(&process.path()).filter(|inode| wanted.remove(inode)).collect();
        let Some(name) = std::fs::read_to_string(process.path().join("comm")).ok().filter(|_| !sockets.is_empty())
        else {
            continue;
        };
        for inode in sockets {
            // Fails only if the worker no longer reads.
            drop(writeln!(out, "{inode} {}", name.trim()));
        }
    }
    ExitCode::SUCCESS
}

/// The inodes of a process's sockets; none if its descriptors are not accessible.
fn sockets_of(process: &Path) -> impl Iterator<Item = u64> {
    let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    descriptors.filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_only_valid_lines() {
        let found = parse_lines("12 node\n13 \u{1b}[31mred\nx y\n14\n15 \n");
        assert_eq!(found, BTreeMap::from([(12, "node".to_owned()), (13, "[31mred".to_owned())]));
    }

    #[test]
    fn finds_the_sockets_of_this_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = rustix::fs::fstat(&listener).unwrap().st_ino;
        assert!(sockets_of(Path::new("/proc/self")).any(|socket| socket == inode));
    }
}
