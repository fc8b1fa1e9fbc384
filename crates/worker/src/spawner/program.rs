//! Spawns one program. It gets short scheduling slices, because a person or an agent waits for it; its children get
//! ordinary ones.

use super::{FileUpdate, ProgramSpec, process_tree};
use atoll_jail::init_process::{CommandSession, prepare_child};
use atoll_protocol::exec::TerminalSize;
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

/// Spawns a program with pipes; returns its pid.
pub(super) fn spawn_with_pipes(
    id: u64,
    program: &ProgramSpec,
    input: Option<OwnedFd>,
    outputs: [OwnedFd; 2],
) -> Result<u32, String> {
    let mut command = build_command(id, program)?;
    let [stdout, stderr] = outputs;
    command.process_group(0).stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(stdout).stderr(stderr);
    spawn_command(&mut command, program)
}

/// Spawns a program on a terminal of its own; returns its pid and the terminal's master end.
pub(super) fn spawn_on_terminal(id: u64, program: &ProgramSpec, size: TerminalSize) -> Result<(u32, OwnedFd), String> {
    let mut command = build_command(id, program)?;
    let failed = |error: rustix::io::Errno| format!("failed to make a terminal: {error}");
    let (master, slave) = open_terminal(size).map_err(failed)?;
    let (input, output) = (slave.try_clone(), slave.try_clone());
    let (Ok(input), Ok(output)) = (input, output) else { return Err(failed(rustix::io::Errno::MFILE)) };
    command.stdin(input).stdout(output).stderr(slave);
    let pid = spawn_command(prepare_child(&mut command, CommandSession::Terminal), program)?;
    Ok((pid, master))
}

/// Opens a terminal of the given size.
fn open_terminal(size: TerminalSize) -> rustix::io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let master = openpt(flags)?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, flags)?;
    tcsetwinsize(&master, Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 })?;
    let mut modes = tcgetattr(&slave)?;
    // Backspace erases whole UTF-8 characters.
    modes.input_modes |= InputModes::IUTF8;
    tcsetattr(&slave, OptionalActions::Now, &modes)?;
    Ok((master, slave))
}

fn build_command(id: u64, program: &ProgramSpec) -> Result<Command, String> {
    let Some((name, arguments)) = program.argv.split_first() else { return Err("the command is empty".to_owned()) };
    if !program.cwd.is_dir() {
        return Err(format!("failed to run `{name}`: its working directory {} does not exist", program.cwd.display()));
    }
    for (path, text) in &program.files {
        write_file(path, text).map_err(|error| format!("failed to write {} for `{name}`: {error}", path.display()))?;
    }
    let search = program.env.iter().find(|(variable, _)| variable == "PATH").map_or("", |(_, value)| value);
    let path = find_program(name, search)?;
    let mut command = Command::new(path);
    command.arg0(name).args(arguments).current_dir(&program.cwd).env_clear();
    command.envs(program.env.iter().map(|(variable, value)| (variable, value)));
    if !program.kill_group_on_exit {
        command.env(process_tree::MARK, id.to_string());
    }
    Ok(command)
}

/// Writes and removes files; returns the first failure after trying all.
pub(super) fn apply_update(update: &FileUpdate) -> Result<(), String> {
    let removed = update.removed.iter().map(|path| {
        let removed = match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        };
        removed.map_err(|error| format!("failed to remove {}: {error}", path.display()))
    });
    let written = update.files.iter().map(|file| {
        write_file(&file.path, &file.text).map_err(|error| format!("failed to write {}: {error}", file.path.display()))
    });
    removed.chain(written).fold(Ok(()), Result::and)
}

/// Writes a file atomically; replaces a link instead of following it.
fn write_file(path: &Path, text: &str) -> io::Result<()> {
    if let Some(directory) = path.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    let temporary = path.with_extension("atoll-new");
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    file.write_all(text.as_bytes())?;
    fs::rename(&temporary, path)
}

fn spawn_command(command: &mut Command, program: &ProgramSpec) -> Result<u32, String> {
    match atoll_jail::request_short_slices_for(command).spawn() {
        Ok(child) => Ok(child.id()),
        Err(error) => {
            let name = program.argv.first().map_or("", String::as_str);
            Err(format!("failed to run `{name}`: {error}"))
        }
    }
}

fn find_program(name: &str, search: &str) -> Result<PathBuf, String> {
    if name.contains('/') {
        return Ok(name.into());
    }
    let places = search.split(':').filter(|dir| !dir.is_empty()).map(|dir| Path::new(dir).join(name));
    let mut found = places.filter(|path| path.is_file());
    found
        .find(|path| access(path, Access::EXEC_OK).is_ok())
        .ok_or_else(|| format!("failed to run `{name}`: no such program in {search}"))
}

#[cfg(test)]
mod tests {
    use super::super::FileToWrite;
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn writes_private_files_atomically_and_replaces_links() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("outside"), "untouched").unwrap();
        fs::create_dir(at("home")).unwrap();
        symlink(at("outside"), at("home/link.json")).unwrap();
        fs::create_dir(at("home/directory")).unwrap();
        let file = |name: &str, text: &str| FileToWrite { path: at(name), text: text.to_owned() };
        let files = vec![
            file("home/.local/share/x/auth.json", "one"),
            file("home/directory", "two"),
            file("home/link.json", "three"),
        ];
        let error = apply_update(&FileUpdate { files, removed: vec![at("home/never")] }).unwrap_err();
        assert!(error.contains("home/directory") && !error.contains("two"), "{error}");
        assert_eq!(fs::read_to_string(at("home/.local/share/x/auth.json")).unwrap(), "one");
        assert_eq!(fs::read_to_string(at("home/link.json")).unwrap(), "three");
        assert_eq!(fs::read_to_string(at("outside")).unwrap(), "untouched");
        let mode = |name: &str| fs::symlink_metadata(at(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!((mode("home/link.json"), mode("home/.local")), (0o600, 0o700));

        fs::remove_file(at("home/link.json")).unwrap();
        symlink(at("outside"), at("home/link.json")).unwrap();
        let removed = vec![at("home/link.json"), at("home/.local/share/x/auth.json")];
        apply_update(&FileUpdate { files: Vec::new(), removed }).unwrap();
        assert!(!at("home/link.json").exists() && !at("home/.local/share/x/auth.json").exists());
        assert!(at("outside").exists());
    }

    #[test]
    fn finds_programs_on_the_given_path() {
        assert_eq!(find_program("sh", "/nowhere::/bin:/usr/bin").unwrap(), Path::new("/bin/sh"));
        assert_eq!(find_program("./sh", "").unwrap(), Path::new("./sh"));
        assert!(find_program("passwd", "/etc").unwrap_err().contains("no such program"), "a file, but none to run");
    }
}
