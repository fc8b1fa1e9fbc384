//! Which version a program is: by what lies around it, else by starting it once.

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

/// For a program to say its version; the slowest takes two seconds on a small machine.
const PATIENCE: Duration = Duration::from_secs(10);
const GLANCE: Duration = Duration::from_millis(10);
/// The user that owns nothing.
const NOBODY: u32 = 65_534;
/// The longest first line that may hold a version.
const LONGEST: usize = 4096;

/// By the package that it lies in, or by the name of its directory or file.
pub(crate) fn beside(program: &Path) -> Option<String> {
    let packages = program.ancestors().skip(1).take(5).map(|directory| directory.join("package.json"));
    let in_package = packages.filter_map(|path| fs::read(path).ok()).find_map(|text| {
        let package: Value = serde_json::from_slice(&text).ok()?;
        clean(package["version"].as_str()?)
    });
    in_package.or_else(|| program.file_name().and_then(|name| clean(name.to_str()?)))
}

/// The first thing in a text that looks like a version, without what names a kind of machine.
fn clean(text: &str) -> Option<String> {
    let word = text.split_whitespace().map(|word| word.trim_start_matches('v')).find(|word| {
        word.starts_with(|first: char| first.is_ascii_digit())
            && word.split('.').count() >= 3
            && word.len() <= 64
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'))
    })?;
    let word = word.split_once("-linux").map_or(word, |(version, _)| version);
    Some(word.to_owned())
}

/// By numbers first, then by letters: 1.10 comes after 1.9.
pub fn in_order(one: &str, other: &str) -> Ordering {
    let numbers = |version: &str| -> Vec<u64> {
        version.split(|letter: char| !letter.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
    };
    numbers(one).cmp(&numbers(other)).then_with(|| one.cmp(other))
}

/// A file as it was when it was asked.
type Known = HashMap<(PathBuf, i64, u64), Option<String>>;

/// Starts a program once, and remembers what it said for as long as the file is the same.
pub(crate) fn asked(program: &Path) -> Option<String> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let found = fs::metadata(program).ok()?;
    let key = (program.to_path_buf(), found.mtime(), found.len());
    let known = KNOWN.get_or_init(Mutex::default);
    if let Some(version) = known.lock().unwrap_or_else(PoisonError::into_inner).get(&key) {
        return version.clone();
    }
    let version = said(program).and_then(|text| clean(text.lines().next()?));
    known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, version.clone());
    version
}

/// What it says to `--version`, with no environment, no input and a home that is empty and gone afterwards. Root lets
/// nobody run it.
fn said(program: &Path) -> Option<String> {
    said_within(program, PATIENCE)
}

fn said_within(program: &Path, patience: Duration) -> Option<String> {
    let home = tempfile::tempdir().ok()?;
    // By its descriptor, as nobody may not be able to go where it lies; a script's interpreter has to.
    let file = File::open(program).ok()?;
    let mut command = match is_elf(program) {
        true => Command::new(format!("/proc/self/fd/{}", file.as_raw_fd())),
        false => Command::new(program),
    };
    command.arg0(program).arg("--version").env_clear().env("HOME", home.path()).env("PATH", "/usr/bin:/bin");
    command.current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).process_group(0);
    if rustix::process::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
        std::os::unix::fs::chown(home.path(), Some(NOBODY), Some(NOBODY)).ok()?;
    }
    let mut child = command.spawn().ok()?;
    let deadline = Instant::now() + patience;
    let ended = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(GLANCE),
            Ok(None) | Err(_) => {
                let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
                if let Some(group) = group {
                    // It may have started others, which hold the pipe.
                    let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
                }
                drop(child.wait());
                break false;
            }
        }
    };
    let mut text = Vec::new();
    // Somebody that it left behind may hold the pipe open: only what is there is read.
    let mut pipe = child.stdout.take()?;
    rustix::io::ioctl_fionbio(&pipe, true).ok()?;
    let mut piece = [0; LONGEST];
    while let Ok(count @ 1..) = pipe.read(&mut piece) {
        text.extend_from_slice(&piece[..count]);
        if text.len() >= LONGEST {
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
    fn a_version_is_found_in_what_programs_say() {
        let read = |text: &str| clean(text).unwrap_or_default();
        assert_eq!(read("2.1.325 (Claude Code)"), "2.1.325");
        assert_eq!(read("codex-cli 0.166.0"), "0.166.0");
        assert_eq!(read("0.166.0-linux-x64"), "0.166.0");
        assert_eq!(read("v20.20.2"), "20.20.2");
        assert_eq!(read("1.0.0-beta.1+x"), "1.0.0-beta.1+x");
        for none in ["", "claude", "1", "version 1.2", "1.2.3\u{1b}[2J"] {
            assert_eq!(clean(none), None, "{none:?}");
        }
        assert_eq!(in_order("1.10.0", "1.9.9"), Ordering::Greater);
        assert_eq!(in_order("1.2.3", "1.2.3"), Ordering::Equal);
    }

    #[test]
    fn a_program_is_asked_once_and_not_waited_for_for_ever() {
        let base = tempfile::tempdir().unwrap();
        fs::set_permissions(base.path(), fs::Permissions::from_mode(0o755)).unwrap();
        // A real program: scripts can't be started by their descriptor.
        let program = base.path().join("tool");
        fs::copy("/bin/true", &program).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(asked(&program), clean(&said(&program).unwrap_or_default()));
        assert_eq!(asked(&base.path().join("none")), None);

        // A script counts how often it is asked, and says where it is at home.
        let (script, count) = (base.path().join("script"), base.path().join("count"));
        fs::write(&count, "").unwrap();
        fs::set_permissions(&count, fs::Permissions::from_mode(0o666)).unwrap();
        let text = format!("#!/bin/sh\necho x >>{}\ntest -d \"$HOME\" && echo tool v1.2.3\n", count.display());
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        for _ in 0..3 {
            assert_eq!(asked(&script).as_deref(), Some("1.2.3"));
        }
        assert_eq!(fs::read_to_string(&count).unwrap(), "x\n", "once");
        assert_eq!(said_within(&base.path().join("none"), PATIENCE), None);
        let endless = base.path().join("endless");
        fs::write(&endless, "#!/bin/sh\necho 1.2.3\nsleep 1000 & sleep 1000\n").unwrap();
        fs::set_permissions(&endless, fs::Permissions::from_mode(0o755)).unwrap();
        let began = Instant::now();
        assert_eq!(said_within(&endless, Duration::from_millis(200)), None);
        assert!(began.elapsed() < PATIENCE);
    }
}
