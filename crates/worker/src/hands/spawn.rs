//! Starting one program. A person or an agent waits for it, so it is prompt; what it starts in its turn has to wait like
//! everything else.

use super::{Placing, Program, tree};
use atoll_jail::inside::{Session, child};
use atoll_protocol::exec::Terminal;
use rustix::fs::{Access, access};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{InputModes, OptionalActions, Winsize, tcgetattr, tcsetattr, tcsetwinsize};
use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Gives the process id, or a sentence why it was not started.
pub(super) fn spawn(id: u64, program: &Program, input: Option<OwnedFd>, outputs: [OwnedFd; 2]) -> Result<u32, String> {
    let mut command = command(id, program)?;
    let [stdout, stderr] = outputs;
    command.process_group(0).stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(stdout).stderr(stderr);
    start(&mut command, program)
}

/// The same on a terminal of its own, whose other end comes along.
pub(super) fn on_terminal(id: u64, program: &Program, size: Terminal) -> Result<(u32, OwnedFd), String> {
    let mut command = command(id, program)?;
    let failed = |error: rustix::io::Errno| format!("failed to make a terminal: {error}");
    let (ours, theirs) = terminal(size).map_err(failed)?;
    let (input, output) = (theirs.try_clone(), theirs.try_clone());
    let (Ok(input), Ok(output)) = (input, output) else { return Err(failed(rustix::io::Errno::MFILE)) };
    command.stdin(input).stdout(output).stderr(theirs);
    let pid = start(child(&mut command, Session::Terminal), program)?;
    Ok((pid, ours))
}

/// Both ends, in the size that its program shall find.
fn terminal(size: Terminal) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let ours = openpt(flags)?;
    unlockpt(&ours)?;
    let theirs = ioctl_tiocgptpeer(&ours, flags)?;
    tcsetwinsize(&ours, Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let mut manner = tcgetattr(&theirs)?;
    // Whoever rubs out a character rubs out all of its bytes.
    manner.input_modes |= InputModes::IUTF8;
    tcsetattr(&theirs, OptionalActions::Now, &manner)?;
    Ok((ours, theirs))
}

fn command(id: u64, program: &Program) -> Result<Command, String> {
    let Some((name, arguments)) = program.argv.split_first() else { return Err("there is nothing to run".to_owned()) };
    if !program.cwd.is_dir() {
        return Err(format!("failed to run `{name}`: its working directory {} is not there", program.cwd.display()));
    }
    for (path, text) in &program.files {
        place(path, text).map_err(|error| format!("failed to write {} for `{name}`: {error}", path.display()))?;
    }
    let search = program.env.iter().find(|(variable, _)| variable == "PATH").map_or("", |(_, value)| value);
    let path = find(name, search)?;
    let mut command = Command::new(path);
    command.arg0(name).args(arguments).current_dir(&program.cwd).env_clear();
    command.envs(program.env.iter().map(|(variable, value)| (variable, value)));
    if !program.whole {
        command.env(tree::MARK, id.to_string());
    }
    Ok(command)
}

/// Does all that it can, and says what it could not first.
pub(super) fn place_all(placing: &Placing) -> Result<(), String> {
    let removed = placing.removed.iter().map(|path| {
        let removed = match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
        removed.map_err(|error| format!("failed to remove {}: {error}", path.display()))
    });
    let written = placing.files.iter().map(|file| {
        place(&file.path, &file.text).map_err(|error| format!("failed to write {}: {error}", file.path.display()))
    });
    removed.chain(written).fold(Ok(()), Result::and)
}

/// Whole or not at all; what stands at its place, be it a link, is replaced and not followed.
fn place(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let beside = path.with_extension("atoll-new");
    match fs::remove_file(&beside) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&beside)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&beside, path)
}

fn start(command: &mut Command, program: &Program) -> Result<u32, String> {
    match atoll_jail::prompt_child(command).spawn() {
        Ok(child) => Ok(child.id()),
        Err(error) => {
            let name = program.argv.first().map_or("", String::as_str);
            Err(format!("failed to run `{name}`: {error}"))
        }
    }
}

fn find(name: &str, search: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let places = search.split(':').filter(|place| !place.is_empty()).map(|place| Path::new(place).join(name));
    let mut found = places.filter(|path| path.is_file());
    found
        .find(|path| access(path, Access::EXEC_OK).is_ok())
        .ok_or_else(|| format!("failed to run `{name}`: there is no such program in {search}"))
}

#[cfg(test)]
mod tests {
    use super::super::Written;
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn files_are_private_whole_and_in_the_place_of_whatever_stood_there() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("outside"), "untouched").unwrap();
        fs::create_dir(at("home")).unwrap();
        symlink(at("outside"), at("home/link.json")).unwrap();
        fs::create_dir(at("home/directory")).unwrap();
        let file = |name: &str, text: &str| Written { path: at(name), text: text.to_owned() };
        let files = vec![
            file("home/.local/share/x/auth.json", "one"),
            file("home/directory", "two"),
            file("home/link.json", "three"),
        ];
        let error = place_all(&Placing { files, removed: vec![at("home/never")] }).unwrap_err();
        assert!(error.contains("home/directory") && !error.contains("two"), "{error}");
        assert_eq!(fs::read_to_string(at("home/.local/share/x/auth.json")).unwrap(), "one");
        assert_eq!(fs::read_to_string(at("home/link.json")).unwrap(), "three");
        assert_eq!(fs::read_to_string(at("outside")).unwrap(), "untouched");
        let mode = |name: &str| fs::symlink_metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("home/link.json"), mode("home/.local")), (0o600, 0o700));

        fs::remove_file(at("home/link.json")).unwrap();
        symlink(at("outside"), at("home/link.json")).unwrap();
        let removed = vec![at("home/link.json"), at("home/.local/share/x/auth.json")];
        place_all(&Placing { files: Vec::new(), removed }).unwrap();
        assert!(!at("home/link.json").exists() && !at("home/.local/share/x/auth.json").exists());
        assert!(at("outside").exists());
    }

    #[test]
    fn programs_are_found_along_the_path_that_they_get() {
        assert_eq!(find("sh", "/nowhere::/bin:/usr/bin").unwrap(), Path::new("/bin/sh"));
        assert_eq!(find("./sh", "").unwrap(), Path::new("./sh"));
        assert!(find("passwd", "/etc").unwrap_err().contains("no such program"), "a file, but none to run");
    }
}
