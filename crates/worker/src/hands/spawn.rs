//! Starting one program, by the short way: `posix_spawn` instead of a copy of this process. The standard library takes
//! it when neither a search along another `PATH` nor code of ours has to run in between, so the search is done here.

use super::Program;
use rustix::fs::{Access, access};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Gives the process id, or a sentence why it was not started.
pub(super) fn spawn(program: &Program, input: Option<OwnedFd>, outputs: [OwnedFd; 2]) -> Result<u32, String> {
    let Some((name, arguments)) = program.argv.split_first() else { return Err("there is nothing to run".to_owned()) };
    if !program.cwd.is_dir() {
        return Err(format!("failed to run `{name}`: its working directory {} is not there", program.cwd.display()));
    }
    let search = program.env.iter().find(|(variable, _)| variable == "PATH").map_or("", |(_, value)| value);
    let path = find(name, search)?;
    let [stdout, stderr] = outputs;
    let mut command = Command::new(path);
    command.arg0(name).args(arguments).current_dir(&program.cwd).env_clear().process_group(0);
    command.envs(program.env.iter().map(|(variable, value)| (variable, value)));
    command.stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(stdout).stderr(stderr);
    match command.spawn() {
        Ok(child) => Ok(child.id()),
        Err(error) => Err(format!("failed to run `{name}`: {error}")),
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
    use super::*;

    #[test]
    fn programs_are_found_along_the_path_that_they_get() {
        assert_eq!(find("sh", "/nowhere::/bin:/usr/bin").unwrap(), Path::new("/bin/sh"));
        assert_eq!(find("./sh", "").unwrap(), Path::new("./sh"));
        assert!(find("passwd", "/etc").unwrap_err().contains("no such program"), "a file, but none to run");
    }
}
