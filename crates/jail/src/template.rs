//! The `/etc` of all sandboxes: generated once at each start of a launcher, shown read-only.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;

/// What is taken from the host's `/etc`, as far as everybody may read it there.
const FROM_HOST: [&str; 10] = [
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
    "ssl/certs",
    "ssl/openssl.cnf",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "crypto-policies",
];

const GENERATED: [(&str, &str); 9] = [
    (
        "passwd",
        "root:x:0:0:root:/root:/bin/sh\nagent:x:1000:1000:agent:/home/agent:{shell}\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
    ),
    ("group", "root:x:0:\ntty:x:5:\nagent:x:1000:\nnogroup:x:65534:\n"),
    ("hosts", "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"),
    (
        "nsswitch.conf",
        "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n",
    ),
    ("resolv.conf", "# No name server: the sandbox has no network but its loopback.\n"),
    ("profile", "umask 022\n"),
    ("shells", "/bin/sh\n/bin/bash\n"),
    (
        "fonts/fonts.conf",
        "<?xml version=\"1.0\"?>\n<fontconfig>\n  <dir>/usr/share/fonts</dir>\n  <dir>/usr/local/share/fonts</dir>\n  \
         <cachedir prefix=\"xdg\">fontconfig</cachedir>\n</fontconfig>\n",
    ),
    // Debian's Chromium does not start without a file in this directory. A jail in the jail it can't have.
    ("chromium.d/sandbox", "export CHROMIUM_FLAGS=\"$CHROMIUM_FLAGS --no-sandbox\"\n"),
];

/// Directories can be deep, but a loop of mounts can be endless.
const MAX_DEPTH: usize = 6;

/// Makes a template in a directory of its own below `templates`.
pub(crate) fn make(templates: &Path) -> Result<PathBuf, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let directory = templates.join(format!("{}-{}", now.as_nanos(), std::process::id()));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(templates)
        .map_err(|error| Error::file("make the directory", templates, error))?;
    fill(&directory, Path::new("/etc"))
        .map_err(|error| Error::file("make the /etc of sandboxes in", &directory, error))?;
    Ok(directory)
}

/// Removes the templates that no living sandbox shows.
pub(crate) fn prune(templates: &Path, keep: &[&Path]) {
    for entry in fs::read_dir(templates).into_iter().flatten().flatten() {
        let path = entry.path();
        if !keep.contains(&path.as_path()) {
            // Left for the next start if it can't go now.
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn fill(directory: &Path, host: &Path) -> io::Result<()> {
    make_directory(directory)?;
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    for (name, text) in GENERATED {
        let path = directory.join(name);
        make_directories_above(directory, name)?;
        fs::write(&path, text.replace("{shell}", shell))?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
    }
    symlink("/proc/self/mounts", directory.join("mtab"))?;
    for name in FROM_HOST {
        let from = host.join(name);
        if fs::symlink_metadata(&from).is_err() {
            continue;
        }
        let to = directory.join(name);
        make_directories_above(directory, name)?;
        copy(&from, &to, MAX_DEPTH)?;
    }
    Ok(())
}

fn make_directories_above(directory: &Path, name: &str) -> io::Result<()> {
    let above: Vec<_> = Path::new(name).ancestors().skip(1).collect();
    above.into_iter().rev().try_for_each(|above| make_directory(&directory.join(above)))
}

fn make_directory(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        outcome => outcome?,
    }
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Copies what everybody may read, and links as links; anything else is left out.
fn copy(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    let readable = metadata.mode() & 0o004 != 0;
    if metadata.is_symlink() {
        symlink(fs::read_link(from)?, to)
    } else if metadata.is_dir() && readable && depth > 0 {
        make_directory(to)?;
        fs::read_dir(from)?.try_for_each(|entry| {
            let entry = entry?;
            copy(&entry.path(), &to.join(entry.file_name()), depth - 1)
        })
    } else if metadata.is_file() && readable {
        fs::copy(from, to)?;
        fs::set_permissions(to, Permissions::from_mode(0o644))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_certificates_and_leaves_secrets() {
        let base = tempfile::tempdir().unwrap();
        let host = base.path().join("host");
        fs::create_dir_all(host.join("ssl/certs")).unwrap();
        fs::create_dir_all(host.join("ssl/private")).unwrap();
        fs::write(host.join("ssl/certs/a.pem"), "certificate").unwrap();
        fs::write(host.join("ssl/certs/secret.key"), "key").unwrap();
        fs::set_permissions(host.join("ssl/certs/secret.key"), Permissions::from_mode(0o640)).unwrap();
        fs::write(host.join("ssl/private/b.key"), "key").unwrap();
        fs::write(host.join("shadow"), "hash").unwrap();
        fs::write(host.join("motd"), "hello").unwrap();
        symlink("a.pem", host.join("ssl/certs/link.pem")).unwrap();
        let made = base.path().join("made");
        fill(&made, &host).unwrap();
        assert_eq!(fs::read_to_string(made.join("ssl/certs/a.pem")).unwrap(), "certificate");
        assert_eq!(fs::read_link(made.join("ssl/certs/link.pem")).unwrap(), Path::new("a.pem"));
        for absent in ["ssl/certs/secret.key", "ssl/private", "shadow", "motd"] {
            assert!(!made.join(absent).exists(), "{absent}");
        }
        assert!(fs::read_to_string(made.join("passwd")).unwrap().contains("agent:x:1000:1000:"));
    }

    #[test]
    fn each_start_has_its_own_and_old_ones_go() {
        let base = tempfile::tempdir().unwrap();
        let [one, two] = [make(base.path()).unwrap(), make(base.path()).unwrap()];
        assert_ne!(one, two);
        prune(base.path(), &[&one]);
        assert!(one.join("passwd").exists() && !two.exists());
    }
}
