//! Detects a program's version from the surrounding files, or by running it once.

use crate::find::is_elf;
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Time-out of `--version`. The slowest agent takes two seconds on a small machine.
const VERSION_TIMEOUT: Duration = Duration::from_secs(10);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The unprivileged user `nobody`.
const NOBODY_UID: u32 = 65_534;
/// Maximum length of the output that may contain a version.
const MAX_LINE_BYTES: usize = 4096;

/// Reads the version from the surrounding package, or from the directory or file name.
pub(crate) fn read_package_version(program: &Path) -> Option<String> {
    let packages = program.ancestors().skip(1).take(5).map(|directory| directory.join("package.json"));
    let in_package = packages.filter_map(|path| fs::read(path).ok()).find_map(|text| {
        let package: Value = serde_json::from_slice(&text).ok()?;
        extract_version(package["version"].as_str()?)
    });
    in_package.or_else(|| program.file_name().and_then(|name| extract_version(name.to_str()?)))
}

/// Extracts the first version number from a text, without a platform suffix.
fn extract_version(text: &str) -> Option<String> {
    let word = text.split_whitespace().map(|word| word.trim_start_matches('v')).find(|word| {
        word.starts_with(|first: char| first.is_ascii_digit())
            && word.split('.').count() >= 3
            && word.len() <= 64
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'))
    })?;
    let word = word.split_once("-linux").map_or(word, |(version, _)| version);
    Some(word.to_owned())
}

/// Compares versions numerically, then by letters: 1.10 is newer than 1.9.
pub fn compare_versions(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    numbers(one).cmp(&numbers(other)).then_with(|| one.cmp(other))
}

/// Cached versions by path, modification time and size.
type VersionCache = HashMap<(PathBuf, i64, u64), Option<String>>;

/// Runs a program once and caches its version until the file changes.
pub(crate) fn query_version_cached(program: &Path) -> Option<String> {
    static VERSION_CACHE: OnceLock<Mutex<VersionCache>> = OnceLock::new();
    let found = fs::metadata(program).ok()?;
    let key = (program.to_path_buf(), found.mtime(), found.len());
    let known = VERSION_CACHE.get_or_init(Mutex::default);
    if let Some(version) = known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return version.clone();
    }
    let version = query_version_text(program, "--version").and_then(|text| extract_version(text.lines().next()?));
    known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, version.clone());
    version
}

/// Runs a program's version command with an empty environment, no input and a temporary home. If Atoll is root, it runs
/// the program as the user `nobody`.
pub fn query_version_text(program: &Path, argument: &str) -> Option<String> {
    query_version_within(program, argument, VERSION_TIMEOUT)
}

fn query_version_within(program: &Path, argument: &str, patience: Duration) -> Option<String> {
    let home = tempfile::tempdir().ok()?;
    // Execute by descriptor: the user `nobody` may not be able to enter the directory. Scripts still need their path.
    let file = File::open(program).ok()?;
    let mut command = match is_elf(program) {
        true => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
        false => Command::new(program),
    };
    command.arg0(program).arg(argument).env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY_UID).gid(NOBODY_UID);
        std::os::unix::fs::chown(home.path(), Some(NOBODY_UID), Some(NOBODY_UID)).ok()?;
    }
    let mut child = command.spawn().ok()?;
    let deadline = Instant::now() + patience;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(POLL_INTERVAL),
            Ok(None) | Err(_) => {
                let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
                if let Some(group) = group {
                    // Its child processes may hold the pipe open.
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                drop(child.wait());
                break false;
            }
        }
    };
    let mut text = Vec::new();
    // A background process may hold the pipe open, so read only what is available.
    let mut pipe = child.stdout.take()?;
    rustix::io::ioctl_fionbio(&pipe, true).ok()?;
    let mut piece = [0; MAX_LINE_BYTES];
    while let Ok(count @ 1..) = pipe.read(&mut piece) {
        text.extend_from_slice(&piece[..count]);
        if text.len() >= MAX_LINE_BYTES {
            break;
        }
    }
    ended.then(|| String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn extracts_versions_from_program_output() {
        let read = |text: &str| extract_version(text).unwrap_or_default();
        assert_eq!(read("2.1.325 (Claude Code)"), "2.1.325");
        assert_eq!(read("codex-cli 0.166.0"), "0.166.0");
        assert_eq!(read("0.166.0-linux-x64"), "0.166.0");
        assert_eq!(read("v20.20.2"), "20.20.2");
        assert_eq!(read("1.0.0-beta.1+x"), "1.0.0-beta.1+x");
        for none in ["", "claude", "1", "version 1.2", "1.2.3\u{1b}[2J"] {
            assert_eq!(extract_version(none), None, "{none:?}");
        }
        assert_eq!(compare_versions("1.10.0", "1.9.9"), Ordering::Greater);
        assert_eq!(compare_versions("1.2.3", "1.2.3"), Ordering::Equal);
    }

    #[test]
    fn runs_a_program_once_with_a_timeout() {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // A binary: scripts cannot be executed by descriptor.
        let program = base.path().join("tool");
        fs::copy("/bin/true", &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(
            query_version_cached(&program),
            extract_version(&query_version_text(&program, "--version").unwrap_or_default())
        );
        assert_eq!(query_version_cached(&base.path().join("none")), None);

        // The script counts its runs and prints its home directory.
        let (script, count) = (base.path().join("script"), base.path().join("count"));
        fs::write(&count, "").unwrap();
        fs::set_permissions(&count, fs::Permissions::from_mode(0o666)).unwrap();
        let text = format!("#!/bin/sh\necho x >>{}\ntest -d \"$HOME\" && echo tool v1.2.3\n", count.display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        for _ in 0..3 {
            assert_eq!(query_version_cached(&script).as_deref(), Some("1.2.3"));
        }
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\n", "once");
        assert_eq!(query_version_within(&base.path().join("none"), "--version", VERSION_TIMEOUT), None);
        let endless = base.path().join("endless");
        fs::write(&endless, "#!/bin/sh\necho 1.2.3\nsleep 1000 & sleep 1000\n").unwrap();
        fs::set_permissions(&endless, fs::Permissions::from_mode(0o755)).unwrap();
        let began = Instant::now();
        assert_eq!(query_version_within(&endless, "--version", Duration::from_millis(200)), None);
        assert!(began.elapsed() < VERSION_TIMEOUT);
    }
}
