//! Completes an imported root for sandboxes: accounts, host names, mount points.

use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use crate::sandbox::AGENT_UID;
use crate::tree_removal;

/// Larger than any account list.
const MAX_LIST_BYTES: u64 = 4 << 20;

const HOSTS: &str = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const RESOLVER: &str = "# No name server: the sandbox has no network except its loopback.\n";

/// Works below this process's root directory, to which it is confined.
pub(super) fn finish_root() -> Result<(), String> {
    finish_root_at(Path::new("/")).map_err(|error| format!("it cannot be used as a sandbox's root: {error}"))
}

fn finish_root_at(root: &Path) -> io::Result<()> {
    let at = |path: &str| root.join(path);
    for path in ["etc", "opt", "opt/atoll", "root", "var", "usr"] {
        ensure_dir(&at(path))?;
    }
    let shell = if at("bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    let user = format!("agent:x:{AGENT_UID}:{AGENT_UID}:agent:/home/agent:{shell}");
    let passwd = read_small_file(&at("etc/passwd")).unwrap_or_else(|| "root:x:0:0:root:/root:/bin/sh\n".to_owned());
    replace_file(&at("etc/passwd"), &replace_account(&passwd, &user))?;
    let group = read_small_file(&at("etc/group")).unwrap_or_else(|| "root:x:0:\n".to_owned());
    replace_file(&at("etc/group"), &replace_account(&group, &format!("agent:x:{AGENT_UID}:")))?;
    replace_file(&at("etc/hosts"), HOSTS)?;
    replace_file(&at("etc/hostname"), "atoll\n")?;
    replace_file(&at("etc/resolv.conf"), RESOLVER)?;
    replace_file(&at("opt/atoll/worker"), "")
}

/// Adds an account line and removes others with its name or id.
fn replace_account(list: &str, line: &str) -> String {
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

fn ensure_dir(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => return Ok(()),
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    fs::create_dir(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Replaces a path by a file.
fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if metadata.is_dir() => tree_removal::remove_tree(path)?,
        Ok(_) => fs::remove_file(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    OpenOptions::new().write(true).create_new(true).mode(0o644).open(path)?.write_all(text.as_bytes())
}

/// Reads a small regular file: a FIFO would block.
fn read_small_file(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    let bytes = (found.is_file() && found.len() <= MAX_LIST_BYTES).then(|| fs::read(path).ok()).flatten()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn agent_replaces_accounts_with_its_id() {
        let list = "root:x:0:0:root:/root:/bin/sh\nnode:x:1000:1000::/home/node:/bin/sh\nagent:x:7:7::/:/bin/sh\n";
        let line = "agent:x:1000:1000:agent:/home/agent:/bin/sh";
        assert_eq!(replace_account(list, line), format!("root:x:0:0:root:/root:/bin/sh\n{line}\n"));
        assert_eq!(replace_account("root:x:0:\n", "agent:x:1000:"), "root:x:0:\nagent:x:1000:\n");
    }

    #[test]
    fn replaces_links_by_plain_files() {
        let base = tempfile::tempdir().unwrap();
        let (outside, root) = (base.path().join("outside"), base.path().join("root"));
        fs::create_dir_all(&outside).unwrap();
        fs::create_dir_all(root.join("etc")).unwrap();
        fs::write(outside.join("passwd"), "kept").unwrap();
        symlink(&outside, root.join("opt")).unwrap();
        symlink("../run/resolv.conf", root.join("etc/resolv.conf")).unwrap();
        fs::create_dir_all(root.join("etc/hostname")).unwrap();
        finish_root_at(&root).unwrap();
        assert!(root.join("opt/atoll/worker").symlink_metadata().unwrap().is_file());
        assert!(!outside.join("atoll").exists());
        assert_eq!(fs::read_to_string(root.join("etc/resolv.conf")).unwrap(), RESOLVER);
        assert!(fs::read_to_string(root.join("etc/passwd")).unwrap().contains("agent:x:1000:1000:"));
    }
}
