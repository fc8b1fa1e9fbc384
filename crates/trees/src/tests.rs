//! Round trips of trees, and malicious tars.

use crate::{Error, SymlinkPolicy, UnpackSummary, pack_tree, unpack_tree};
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use tar::{EntryType, Header};
use tempfile::TempDir;

fn open_directory(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn pack_to_bytes(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack_tree(&open_directory(path), &mut bytes, |_, _| {}, |_| {}).unwrap();
    bytes
}

fn unpack_bytes(bytes: &[u8], path: &Path, links: SymlinkPolicy) -> Result<UnpackSummary, Error> {
    unpack_tree(bytes, open_directory(path), links, |_| {})
}

/// A raw entry that no tar program would write.
fn raw_entry(kind: EntryType, path: &[u8], target: &[u8], data: &[u8]) -> Vec<u8> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(data.len() as u64);
    header.set_mode(0o6755);
    header.set_mtime(1);
    header.as_old_mut().name[..path.len()].copy_from_slice(path);
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    bytes.extend_from_slice(data);
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn tar_archive(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

fn file_entry(path: &str, data: &str) -> Vec<u8> {
    raw_entry(EntryType::Regular, path.as_bytes(), b"", data.as_bytes())
}

fn symlink_entry(path: &str, target: &str) -> Vec<u8> {
    raw_entry(EntryType::Symlink, path.as_bytes(), target.as_bytes(), b"")
}

fn hard_link_entry(path: &str, target: &str) -> Vec<u8> {
    raw_entry(EntryType::Link, path.as_bytes(), target.as_bytes(), b"")
}

/// A destination with a sibling that must not change.
struct UnpackTarget {
    dir: TempDir,
}

impl UnpackTarget {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        fs::write(dir.path().join("out/secret"), "unchanged").unwrap();
        Self { dir }
    }

    fn inner_path(&self) -> std::path::PathBuf {
        self.dir.path().join("in")
    }

    #[track_caller]
    fn assert_outside_unchanged(&self) {
        assert_eq!(fs::read_to_string(self.dir.path().join("out/secret")).unwrap(), "unchanged");
        assert_eq!(fs::read_dir(self.dir.path().join("out")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(self.dir.path()).unwrap().count(), 2);
    }
}

fn create_tree(path: &Path) {
    fs::create_dir_all(path.join("deep").join("d".repeat(120)).join("e".repeat(200))).unwrap();
    fs::write(path.join("deep").join("d".repeat(120)).join("long"), vec![7; 700_000]).unwrap();
    fs::write(path.join("empty"), "").unwrap();
    fs::write(path.join("run"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(path.join("run"), fs::Permissions::from_mode(0o4755)).unwrap();
    symlink("../elsewhere".repeat(20), path.join("deep/far")).unwrap();
    symlink("run", path.join("near")).unwrap();
    fs::hard_link(path.join("run"), path.join("also-run")).unwrap();
    fs::create_dir(path.join("closed")).unwrap();
    fs::write(path.join("closed/file"), "x").unwrap();
    fs::set_permissions(path.join("closed"), fs::Permissions::from_mode(0o500)).unwrap();
}

#[test]
fn a_packed_tree_unpacks_unchanged() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    create_tree(from.path());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let summary = unpack_bytes(&pack_to_bytes(from.path()), to.path(), SymlinkPolicy::Any).unwrap();
    assert_eq!((summary.skipped, summary.left_out), (0, 1), "the fifo is omitted: {summary:?}");
    let list_entries = |path: &Path| {
        let script = "find . ! -name pipe -printf '%P %y %m %l %s\\n' | sed 's/ 4755 / 755 /' | grep -v '^ d' | grep -v ' d .* [0-9]*$' | sort; \
                      find . -type f -exec sha256sum {} + | sort; find . -type d -printf '%P %m\\n' | grep . | sort";
        let done = Command::new("sh").args(["-c", script]).current_dir(path).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(list_entries(to.path()), list_entries(from.path()));
    let inode = |name: &str| fs::metadata(to.path().join(name)).unwrap().ino();
    assert_eq!(inode("run"), inode("also-run"), "the hard link became a separate file");
    let modified = |root: &Path| fs::metadata(root.join("run")).unwrap().mtime();
    assert_eq!(modified(to.path()), modified(from.path()));
    // Unpack again over the existing files.
    let again = unpack_bytes(&pack_to_bytes(from.path()), to.path(), SymlinkPolicy::Any).unwrap();
    assert_eq!(again.entries, summary.entries);
    assert_eq!(list_entries(to.path()), list_entries(from.path()));
}

#[test]
fn is_compatible_with_the_system_tar() {
    let (from, to, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    create_tree(from.path());
    let archive = to.path().join("archive");
    for format in ["gnu", "pax", "ustar"] {
        let names: &[&str] = if format == "ustar" { &["run", "near", "also-run", "closed"] } else { &["."] };
        let mut command = Command::new("tar");
        command.arg("-cf").arg(&archive).arg(format!("--format={format}")).arg("-C").arg(from.path());
        let archived = command.args(names).output().unwrap();
        assert!(archived.status.success(), "{format}: {}", String::from_utf8_lossy(&archived.stderr));
        let into = back.path().join(format);
        fs::create_dir(&into).unwrap();
        let summary = unpack_bytes(&fs::read(&archive).unwrap(), &into, SymlinkPolicy::Any).unwrap();
        assert_eq!(summary.skipped, 0, "{format}: {summary:?}");
        assert_eq!(fs::read_to_string(into.join("run")).unwrap(), "#!/bin/sh\n");
        assert_eq!(fs::metadata(into.join("closed")).unwrap().mode() & 0o777, 0o500);
    }
    fs::write(&archive, pack_to_bytes(from.path())).unwrap();
    let into = back.path().join("theirs");
    fs::create_dir(&into).unwrap();
    let done = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&into).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(fs::read(into.join("deep").join("d".repeat(120)).join("long")).unwrap().len(), 700_000);
}

/// The entries of a malicious tar.
type Attempt = Box<dyn Fn(&UnpackTarget) -> Vec<Vec<u8>>>;

#[test]
fn malicious_entries_stay_inside_the_destination() {
    let out = |target: &UnpackTarget| target.dir.path().join("out").to_str().unwrap().to_owned();
    let absolute = move |target: &UnpackTarget| format!("{}/secret", out(target));
    let attempts: Vec<(&str, Attempt)> = vec![
        ("an absolute path", Box::new(move |target| vec![file_entry(&absolute(target), "evil")])),
        ("going up", Box::new(|_| vec![file_entry("../out/secret", "evil"), file_entry("a/../../out/secret", "evil")])),
        (
            "a link to a directory, and a file in it",
            Box::new(move |target| {
                vec![
                    symlink_entry("door", &out(target)),
                    file_entry("door/secret", "evil"),
                    file_entry("door/new", "evil"),
                ]
            }),
        ),
        ("a link that goes up", Box::new(|_| vec![symlink_entry("door", "../out"), file_entry("door/secret", "evil")])),
        (
            "a link to a file, and a file of its name",
            Box::new(|_| vec![symlink_entry("a", "../out/secret"), file_entry("a", "evil")]),
        ),
        (
            "a hard link",
            Box::new(move |target| {
                vec![
                    hard_link_entry("a", &format!("{}/secret", out(target))),
                    hard_link_entry("b", "../out/secret"),
                    file_entry("a", "evil"),
                ]
            }),
        ),
        (
            "a hard link through a link",
            Box::new(|_| {
                vec![symlink_entry("door", "../out"), hard_link_entry("a", "door/secret"), file_entry("a", "evil")]
            }),
        ),
        (
            "a hard link of a link",
            Box::new(|_| {
                vec![
                    raw_entry(EntryType::Directory, b"d/", b"", b""),
                    symlink_entry("d/up", "../d"),
                    hard_link_entry("up", "d/up"),
                    file_entry("up/x", "evil"),
                ]
            }),
        ),
        (
            "a chain of links",
            Box::new(|_| {
                vec![symlink_entry("s", "."), symlink_entry("door", "s/s/../../out"), file_entry("door/secret", "evil")]
            }),
        ),
        (
            "a link in a directory's place",
            Box::new(|_| vec![file_entry("d/x", "1"), symlink_entry("d", "../out"), file_entry("d/secret", "evil")]),
        ),
        (
            "devices",
            Box::new(|_| {
                vec![
                    raw_entry(EntryType::Char, b"null", b"", b""),
                    raw_entry(EntryType::Block, b"disk", b"", b""),
                    raw_entry(EntryType::Fifo, b"fifo", b"", b""),
                ]
            }),
        ),
    ];
    for (what, entries) in attempts {
        for links in [SymlinkPolicy::Any, SymlinkPolicy::Inside] {
            let target = UnpackTarget::new();
            let summary = unpack_bytes(&tar_archive(&entries(&target)), &target.inner_path(), links).unwrap();
            target.assert_outside_unchanged();
            let replaced = what == "a link to a file, and a file of its name";
            assert!(summary.skipped > 0 || (replaced && links == SymlinkPolicy::Any), "{what}: {summary:?}");
            assert!(summary.named.iter().all(|skipped| !skipped.reason.is_empty()), "{what}: {summary:?}");
            if links == SymlinkPolicy::Inside {
                let door = fs::symlink_metadata(target.inner_path().join("door"));
                assert!(!door.is_ok_and(|door| door.is_symlink()), "{what}: a door was made");
            }
        }
    }
}

/// Proves that the previous test is meaningful: a plain write follows these links.
#[test]
fn plain_file_operations_would_follow_the_links() {
    let target = UnpackTarget::new();
    symlink(target.dir.path().join("out"), target.inner_path().join("door")).unwrap();
    fs::write(target.inner_path().join("door/secret"), "evil").unwrap();
    assert_eq!(fs::read_to_string(target.dir.path().join("out/secret")).unwrap(), "evil");
}

#[test]
fn existing_links_are_not_followed() {
    let target = UnpackTarget::new();
    symlink("../out", target.inner_path().join("door")).unwrap();
    symlink("../out/secret", target.inner_path().join("name")).unwrap();
    let summary = unpack_bytes(
        &tar_archive(&[file_entry("door/secret", "evil"), file_entry("name", "mine")]),
        &target.inner_path(),
        SymlinkPolicy::Any,
    )
    .unwrap();
    target.assert_outside_unchanged();
    assert_eq!((summary.skipped, summary.entries), (1, 1));
    assert_eq!(fs::read_to_string(target.inner_path().join("name")).unwrap(), "mine");
    assert!(!fs::symlink_metadata(target.inner_path().join("name")).unwrap().is_symlink(), "the link was not replaced");
}

#[test]
fn drops_special_mode_bits() {
    let target = UnpackTarget::new();
    unpack_bytes(
        &tar_archive(&[file_entry("tool", "x"), raw_entry(EntryType::Directory, b"d", b"", b"")]),
        &target.inner_path(),
        SymlinkPolicy::Any,
    )
    .unwrap();
    for name in ["tool", "d"] {
        assert_eq!(fs::metadata(target.inner_path().join(name)).unwrap().mode() & 0o7000, 0, "{name}");
    }
}

#[test]
fn rejects_truncated_and_invalid_tars() {
    let target = UnpackTarget::new();
    let whole = tar_archive(&[file_entry("a", &"x".repeat(2000)), file_entry("b", "y")]);
    for cut in [0, 100, 512, 1000, 2560, 3000, whole.len() - 1024] {
        let broken = unpack_bytes(&whole[..cut], &target.inner_path(), SymlinkPolicy::Any);
        assert!(matches!(broken, Err(Error::Malformed(_))), "{cut}: {broken:?}");
    }
    let mut wrong = whole.clone();
    wrong[3] ^= 1;
    assert!(matches!(unpack_bytes(&wrong, &target.inner_path(), SymlinkPolicy::Any), Err(Error::Malformed(_))));
    // A name that would take all memory.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let endless = std::io::BufReader::new(std::io::Read::chain(&header.as_bytes()[..], std::io::repeat(b'a')));
    assert!(matches!(
        unpack_tree(endless, open_directory(&target.inner_path()), SymlinkPolicy::Any, |_| {}),
        Err(Error::Malformed(_))
    ));
}

#[test]
fn a_file_that_shrinks_is_padded() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("a"), vec![1; 3_000_000]).unwrap();
    fs::write(from.path().join("b"), "after").unwrap();
    let mut bytes = Vec::new();
    let cut = from.path().join("a");
    let shrink = move |_| drop(fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(1000));
    pack_tree(&open_directory(from.path()), &mut bytes, |_, _| {}, shrink).unwrap();
    unpack_bytes(&bytes, to.path(), SymlinkPolicy::Any).unwrap();
    assert_eq!(fs::metadata(to.path().join("a")).unwrap().len(), 3_000_000);
    assert_eq!(fs::read_to_string(to.path().join("b")).unwrap(), "after");
}

fn path_part() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just(".."), Just("."), Just(""), Just("door")].prop_map(str::to_owned)
}

fn relative_path() -> impl Strategy<Value = String> {
    proptest::collection::vec(path_part(), 1..5).prop_map(|parts| parts.join("/"))
}

fn any_entry() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![
        Just(EntryType::Regular),
        Just(EntryType::Symlink),
        Just(EntryType::Link),
        Just(EntryType::Directory),
        Just(EntryType::Fifo)
    ];
    (kinds, relative_path(), relative_path()).prop_map(|(kind, path, target)| {
        let data: &[u8] = if kind == EntryType::Regular { b"evil" } else { b"" };
        raw_entry(kind, path.as_bytes(), target.as_bytes(), data)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Entries in any order change nothing outside the destination, and no link leads out.
    #[test]
    fn random_tars_stay_inside_the_destination(entries in proptest::collection::vec(any_entry(), 1..12), inside in any::<bool>()) {
        let target = UnpackTarget::new();
        let links = if inside { SymlinkPolicy::Inside } else { SymlinkPolicy::Any };
        unpack_bytes(&tar_archive(&entries), &target.inner_path(), links).unwrap();
        target.assert_outside_unchanged();
        if inside {
            let root = target.inner_path().canonicalize().unwrap();
            let found = Command::new("find").arg(&root).args(["-type", "l"]).output().unwrap();
            for link in String::from_utf8(found.stdout).unwrap().lines() {
                if let Ok(target) = fs::canonicalize(link) {
                    prop_assert!(target.starts_with(&root), "{link} leads to {}", target.display());
                }
            }
        }
    }

    #[test]
    fn random_bytes_cause_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..3000), sound in any::<bool>()) {
        let target = UnpackTarget::new();
        let mut bytes = bytes;
        if sound && bytes.len() >= 512 {
            let mut header = Header::new_old();
            header.as_mut_bytes().copy_from_slice(&bytes[..512]);
            header.set_cksum();
            bytes[..512].copy_from_slice(header.as_bytes());
        }
        drop(unpack_bytes(&bytes, &target.inner_path(), SymlinkPolicy::Inside));
        target.assert_outside_unchanged();
    }
}
