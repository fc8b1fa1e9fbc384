//! Makes a root fit for a sandbox: its user, its names, and a place for the worker.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::place::AGENT;
use crate::remove;

/// Longer than any list of users.
const LONGEST: u64 = 4 << 20;

const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const RESOLVER: &str = "# No name server: the sandbox has no network but its loopback.\n";

/// Works below the root of this process, which is confined to it.
pub(super) fn finish() -> Result<(), String> {
    within(Path::new("/")).map_err(|error| format!("it can't be made a sandbox's root: {error}"))
}

fn within(root: &Path) -> io::Result<()> {
    let at = |path: &str| root.join(path);
    for path in ["etc", "opt", "opt/atoll", "root", "var", "usr"] {
        directory(&at(path))?;
    }
    let shell = if at("bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let user = format!("agent:x:{AGENT}:{AGENT}:agent:/home/agent:{shell}");
    let passwd = text(&at("etc/passwd")).unwrap_or_else(|| "root:x:0:0:root:/root:/bin/sh\n".to_owned());
    file(&at("etc/passwd"), &with(&passwd, &user))?;
    let group = text(&at("etc/group")).unwrap_or_else(|| "root:x:0:\n".to_owned());
    file(&at("etc/group"), &with(&group, &format!("agent:x:{AGENT}:")))?;
    file(&at("etc/hosts"), HOSTS)?;
    file(&at("etc/hostname"), "atoll\n")?;
    file(&at("etc/resolv.conf"), RESOLVER)?;
    file(&at("opt/atoll/worker"), "")
}

/// A list of users or groups in which `line` stands for its name and its id, and nobody else does.
fn with(list: &str, line: &str) -> String {
    let fields = |line: &str| -> (String, String) {
        let mut fields = line.split(':');
        (fields.next().unwrap_or_default().to_owned(), fields.nth(1).unwrap_or_default().to_owned())
    };
    let (name, id) = fields(line);
    let others = list.lines().filter(|other| {
        let (other_name, other_id) = fields(other);
        other_name != name && other_id != id
    });
    others.chain([line]).map(|line| format!("{line}\n")).collect()
}

fn directory(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// A file of ours in the place of whatever is there.
fn file(path: &Path, text: &str) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => remove::tree(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?.write_all(text.as_bytes())
}

/// What is in a file, if it is one: a pipe would have no end.
fn text(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let bytes = (found.is_file() && found.len() <= LONGEST).then(|| fs::read(path).ok()).flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn agent_takes_its_id_from_whoever_has_it() {
        let list = "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\nagent:x:7:7::/:/bin/sh\n";
        let line = "agent:x:1000:1000:agent:/home/agent:/bin/sh";
        assert_eq!(with(list, line), format!("root:x:0:0:root:/root:/bin/sh\n{line}\n"));
        assert_eq!(with("root:x:0:\n", "agent:x:1000:"), "root:x:0:\nagent:x:1000:\n");
    }

    #[test]
    fn links_make_room_for_what_must_be_plain() {
        let base = tempfile::tempdir().unwrap();
        let (outside, root) = (base.path().join("outside"), base.path().join("root"));
        fs::create_dir_all(&outside).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(outside.join("passwd"), "kept").unwrap();
        symlink(&outside, root.join("opt")).unwrap();
        symlink("../run/resolv.conf", root.join("etc/resolv.conf")).unwrap();
        fs::create_dir_all(root.join("etc/hostname")).unwrap();
        within(&root).unwrap();
        assert!(root.join("opt/atoll/worker").symlink_metadata().unwrap().is_file());
        assert!(!outside.join("atoll").exists());
        assert_eq!(fs::read_to_string(root.join("etc/resolv.conf")).unwrap(), RESOLVER);
        assert!(fs::read_to_string(root.join("etc/passwd")).unwrap().contains("agent:x:1000:1000:"));
    }
}
