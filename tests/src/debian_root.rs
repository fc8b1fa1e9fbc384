//! Packs a small Debian root from the packages that are installed on this machine, so that no test has to download one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An apt source of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AptSource {
    pub url: String,
    pub suite: String,
}

impl AptSource {
    /// Returns the first source of the component `main` that apt uses here.
    pub fn find() -> Option<Self> {
        let format = "$(REPO_URI) $(RELEASE) $(COMPONENT)";
        let listed = run("apt-get", &["indextargets", "--format", format, "Created-By: Packages"]).ok()?;
        listed.lines().find_map(|line| match line.split(' ').collect::<Vec<_>>()[..] {
            [url, suite, "main"] => Some(Self { url: url.to_owned(), suite: suite.to_owned() }),
            _ => None,
        })
    }

    pub fn host(&self) -> &str {
        let after_scheme = self.url.split("://").nth(1).unwrap_or_default();
        after_scheme.split(['/', ':']).next().unwrap_or_default()
    }
}

/// Directories that no program needs.
const OMITTED: [&str; 5] =
    ["/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/"];

/// Packs apt, the essential packages and what they depend on as a tar file in `dir`; fails on other distributions.
pub fn build_debian_root(dir: &Path, source: &AptSource) -> Result<PathBuf, String> {
    let packages = select_packages()?;
    let archive = dir.join("debian.tar");
    let list = dir.join("files");
    fs::write(&list, list_files(&packages)?.join("\0")).map_err(|error| error.to_string())?;
    let (archive_path, list_path) = (archive.to_string_lossy(), list.to_string_lossy());
    let arguments =
        ["--create", "--file", &archive_path, "--directory", "/", "--no-recursion", "--null", "--files-from"];
    run("tar", &[&arguments[..], &[&list_path]].concat())?;
    let stage = dir.join("stage");
    write_own_files(&stage, &packages, source).map_err(|error| error.to_string())?;
    run(
        "tar",
        &["--append", "--file", &archive_path, "--owner=0", "--group=0", "--directory", &stage.to_string_lossy(), "."],
    )?;
    Ok(archive)
}

fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let output = Command::new(program).args(arguments).env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("no {program}: {error}"))?;
    let failed = || format!("{program} failed: {}", String::from_utf8_lossy(&output.stderr));
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()).ok_or_else(failed)
}

/// The names, in dpkg's form, of the packages of the root.
fn select_packages() -> Result<BTreeSet<String>, String> {
    let fields =
        r"${Package}\t${binary:Package}\t${db:Status-Abbrev}\t${Essential}\t${Provides}\t${Pre-Depends}, ${Depends}\n";
    let listed = run("dpkg-query", &["--show", "--showformat", fields])?;
    // By name, and by the virtual packages that a package provides.
    let mut installed: BTreeMap<&str, (&str, &str)> = BTreeMap::new();
    let mut wanted = vec!["apt", "debian-archive-keyring"];
    for line in listed.lines() {
        let [name, full_name, status, essential, provides, depends] = line.split('\t').collect::<Vec<_>>()[..] else {
            continue;
        };
        if status.starts_with("ii") {
            for provided in package_names(provides) {
                installed.entry(provided).or_insert((full_name, depends));
            }
            installed.insert(name, (full_name, depends));
            wanted.extend((essential == "yes").then_some(name));
        }
    }
    if !wanted.iter().all(|name| installed.contains_key(name)) {
        return Err("apt or its keyring is not installed".to_owned());
    }
    let mut selected = BTreeSet::new();
    while let Some(name) = wanted.pop() {
        let Some((full_name, depends)) = installed.get(name) else { continue };
        if selected.insert((*full_name).to_owned()) {
            wanted.extend(package_names(depends));
        }
    }
    Ok(selected)
}

/// The names in a list of relations between packages, all alternatives included.
fn package_names(relations: &str) -> impl Iterator<Item = &str> {
    let relations = relations.split([',', '|']).map(|text| text.trim().split([' ', ':', '(']).next().unwrap_or(""));
    relations.filter(|name| !name.is_empty())
}

/// The paths of the packages' files and of dpkg's records about them, relative to `/`.
fn list_files(packages: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let names: Vec<&str> = ["--listfiles"].into_iter().chain(packages.iter().map(String::as_str)).collect();
    let mut paths = BTreeSet::new();
    for path in run("dpkg-query", &names)?.lines().map(Path::new) {
        // The directories `/bin` and `/lib` of older packages are links here.
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { continue };
        let Ok(path) = parent.canonicalize().map(|parent| parent.join(name)) else { continue };
        let text = path.to_string_lossy().into_owned();
        let is_top_link = path.parent() == Some(Path::new("/")) && path.is_symlink();
        if path.symlink_metadata().is_ok() && !is_top_link && !OMITTED.iter().any(|omitted| text.starts_with(omitted)) {
            paths.insert(text);
        }
    }
    for entry in fs::read_dir("/var/lib/dpkg/info").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.rsplit_once('.').is_some_and(|(package, _)| packages.contains(package)) {
            paths.insert(format!("/var/lib/dpkg/info/{name}"));
        }
    }
    Ok(paths.into_iter().map(|path| path.trim_start_matches('/').to_owned()).collect())
}

/// Files that belong to no package: users, dpkg's and apt's state, and the links of a merged `/usr`.
fn write_own_files(stage: &Path, packages: &BTreeSet<String>, source: &AptSource) -> std::io::Result<()> {
    for dir in [
        "etc/apt/sources.list.d",
        "etc/apt/apt.conf.d",
        "var/lib/dpkg/updates",
        "var/lib/dpkg/triggers",
        "var/lib/apt/lists/partial",
        "var/cache/apt/archives/partial",
        "var/log/apt",
        "root",
        "opt",
        "tmp",
        "home",
    ] {
        fs::create_dir_all(stage.join(dir))?;
    }
    for link in ["bin", "sbin", "lib", "lib64"] {
        if Path::new("/").join(link).is_symlink() {
            symlink(Path::new("usr").join(link), stage.join(link))?;
        }
    }
    let users = "root:x:0:0:root:/root:/bin/sh\n_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\nnobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n";
    fs::write(stage.join("etc/passwd"), users)?;
    fs::write(stage.join("etc/group"), "root:x:0:\nadm:x:4:\nutmp:x:43:\nnogroup:x:65534:\n")?;
    let keyring = "/usr/share/keyrings/debian-archive-keyring.gpg";
    let AptSource { url, suite } = source;
    fs::write(stage.join("etc/apt/sources.list"), format!("deb [signed-by={keyring}] {url} {suite} main\n"))?;
    // Downloads no translations, which no test needs.
    fs::write(stage.join("etc/apt/apt.conf.d/no-languages"), "Acquire::Languages \"none\";\n")?;
    let plain_names: BTreeSet<&str> = packages.iter().map(|name| name.split(':').next().unwrap_or(name)).collect();
    let mut status = String::new();
    for paragraph in fs::read_to_string("/var/lib/dpkg/status")?.split("\n\n") {
        let name = paragraph.lines().find_map(|line| line.trim().strip_prefix("Package: "));
        if name.is_some_and(|name| plain_names.contains(name)) {
            let _ = write!(status, "{paragraph}\n\n");
        }
    }
    fs::write(stage.join("var/lib/dpkg/status"), status)?;
    fs::write(stage.join("var/lib/dpkg/available"), "")
}
