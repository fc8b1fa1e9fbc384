//! The `/etc` of all sandboxes: generated at each start of a launcher, mounted read-only.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::error::Error;

/// Copied from the host's `/etc`, where world-readable.
const FROM_HOST: [&str; 13] = [
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
    // Debian's Maven and PHP link to these. Maven's settings.xml is left out: it can contain passwords.
    "maven/m2.conf",
    "maven/logging",
    "php",
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
    ("resolv.conf", "# No name server: the sandbox has no network except its loopback.\n"),
    ("profile", "umask 022\n"),
    ("shells", "/bin/sh\n/bin/bash\n"),
    (
        "fonts/fonts.conf",
        "<?xml version=\"1.0\"?>\n<fontconfig>\n  <dir>/usr/share/fonts</dir>\n  <dir>/usr/local/share/fonts</dir>\n  \
         <cachedir prefix=\"xdg\">fontconfig</cachedir>\n</fontconfig>\n",
    ),
    // Debian's Chromium needs a file in this directory to start. It cannot create its own sandbox in ours.
    ("chromium.d/sandbox", "export CHROMIUM_FLAGS=\"$CHROMIUM_FLAGS --no-sandbox\"\n"),
];

/// A loop of mounts could be endless.
const MAX_DEPTH: usize = 6;

/// Creates a template in a new directory below `templates`.
pub(crate) fn create_template(templates: &Path) -> Result<PathBuf, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let directory = templates.join(format!("{}-{}", now.as_nanos(), std::process::id()));
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(templates)
        .map_err(|error| Error::file("create the directory", templates, error))?;
    fill_template(&directory, Path::new("/etc"))
        .map_err(|error| Error::file("create the /etc template in", &directory, error))?;
    Ok(directory)
}

/// Removes templates that no running sandbox uses.
pub(crate) fn prune_templates(templates: &Path, keep: &[&Path]) {
    for entry in fs::read_dir(templates).into_iter().flatten().flatten() {
        let path = entry.path();
        if !keep.contains(&path.as_path()) {
            // The next start retries it.
            let _ = fs::remove_dir_all(path);
        }
    }
}

fn fill_template(directory: &Path, host: &Path) -> io::Result<()> {
    create_dir(directory)?;
    let shell = if Path::new("/bin/bash").exists() { "/bin/bash" } else { "/bin/sh" };
    for (name, text) in GENERATED {
        let path = directory.join(name);
        create_parents(directory, name)?;
        fs::write(&path, text.replace("{shell}", shell))?;
        fs::set_permissions(&path, Permissions::from_mode(0o644))?;
    }
    symlink("/proc/self/mounts", directory.join("mtab"))?;
    for name in FROM_HOST.map(str::to_owned).into_iter().chain(list_java_dirs(host)) {
        let name = name.as_str();
        let from = host.join(name);
        if fs::symlink_metadata(&from).is_err() {
            continue;
        }
        let to = directory.join(name);
        create_parents(directory, name)?;
        copy_readable(&from, &to, MAX_DEPTH)?;
    }
    Ok(())
}

/// The directories that Debian's Java links to, one per version: `java-17-openjdk`.
fn list_java_dirs(host: &Path) -> Vec<String> {
    let names =
        fs::read_dir(host).into_iter().flatten().flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with("java-") && name.ends_with("-openjdk")).collect()
}

fn create_parents(directory: &Path, name: &str) -> io::Result<()> {
    let above: Vec<_> = Path::new(name).ancestors().skip(1).collect();
    above.into_iter().rev().try_for_each(|above| create_dir(&directory.join(above)))
}

fn create_dir(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        outcome => outcome?,
    }
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Copies world-readable files and directories, and links as links.
fn copy_readable(from: &Path, to: &Path, depth: usize) -> io::Result<()> {
    let metadata = fs::symlink_metadata(from)?;
    let readable = metadata.mode() & 0o004 != 0;
    if metadata.is_symlink() {
        symlink(fs::read_link(from)?, to)
    } else if metadata.is_dir() && readable && depth > 0 {
        create_dir(to)?;
        fs::read_dir(from)?.try_for_each(|entry| {
            let entry = entry?;
            copy_readable(&entry.path(), &to.join(entry.file_name()), depth - 1)
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
    fn copies_certificates_and_no_secrets() {
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
        let template = base.path().join("made");
        fill_template(&template, &host).unwrap();
        assert_eq!(fs::read_to_string(template.join("ssl/certs/a.pem")).unwrap(), "certificate");
        assert_eq!(fs::read_link(template.join("ssl/certs/link.pem")).unwrap(), Path::new("a.pem"));
        for absent in ["ssl/certs/secret.key", "ssl/private", "shadow", "motd"] {
            assert!(!template.join(absent).exists(), "{absent}");
        }
        assert!(fs::read_to_string(template.join("passwd")).unwrap().contains("agent:x:1000:1000:"));
    }

    /// Debian's packages link from `/usr` to these files.
    #[test]
    fn copies_the_files_that_java_maven_and_php_need() {
        let base = tempfile::tempdir().unwrap();
        let host = base.path().join("host");
        let copied = [
            "java-17-openjdk/security/java.security",
            "java-21-openjdk/jvm-amd64.cfg",
            "maven/m2.conf",
            "maven/logging/simplelogger.properties",
            "php/8.2/cli/conf.d/10-opcache.ini",
        ];
        // Maven's settings can contain passwords of servers.
        let left_out = ["maven/settings.xml", "java-old/x", "javascript-common/x"];
        for name in copied.into_iter().chain(left_out) {
            fs::create_dir_all(host.join(name).parent().unwrap()).unwrap();
            fs::write(host.join(name), name).unwrap();
        }
        let template = base.path().join("made");
        fill_template(&template, &host).unwrap();
        for name in copied {
            assert_eq!(fs::read_to_string(template.join(name)).unwrap_or_default(), name);
        }
        for name in left_out {
            assert!(!template.join(name).exists(), "{name}");
        }
    }

    #[test]
    fn each_start_creates_a_template_and_prunes_old_ones() {
        let base = tempfile::tempdir().unwrap();
        let [one, two] = [create_template(base.path()).unwrap(), create_template(base.path()).unwrap()];
        assert_ne!(one, two);
        prune_templates(base.path(), &[&one]);
        assert!(one.join("passwd").exists() && !two.exists());
    }
}
