//! Trees there and back, and tars that mean harm.

use crate::{Error, Links, Tally, pack, unpack};
use proptest::prelude::*;
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use tar::{EntryType, Header};
use tempfile::TempDir;

fn open(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn packed(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    pack(&open(path), &mut bytes, |_, _| {}, |_| {}).unwrap();
    bytes
}

fn put(bytes: &[u8], path: &Path, links: Links) -> Result<Tally, Error> {
    unpack(bytes, open(path), links, |_| {})
}

/// An entry as nobody's tar would write it.
fn raw(kind: EntryType, path: &[u8], target: &[u8], data: &[u8]) -> Vec<u8> {
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

fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

fn file(path: &str, data: &str) -> Vec<u8> {
    raw(EntryType::Regular, path.as_bytes(), b"", data.as_bytes())
}

fn link(path: &str, target: &str) -> Vec<u8> {
    raw(EntryType::Symlink, path.as_bytes(), target.as_bytes(), b"")
}

fn hard(path: &str, target: &str) -> Vec<u8> {
    raw(EntryType::Link, path.as_bytes(), target.as_bytes(), b"")
}

/// A destination with something beside it that must stay as it is.
struct Ground {
    dir: TempDir,
}

impl Ground {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("in")).unwrap();
        fs::create_dir(dir.path().join("out")).unwrap();
        fs::write(dir.path().join("out/secret"), "as it was").unwrap();
        Self { dir }
    }

    fn inside(&self) -> std::path::PathBuf {
        self.dir.path().join("in")
    }

    #[track_caller]
    fn assert_nothing_left(&self) {
        assert_eq!(fs::read_to_string(self.dir.path().join("out/secret")).unwrap(), "as it was");
        assert_eq!(fs::read_dir(self.dir.path().join("out")).unwrap().count(), 1);
        assert_eq!(fs::read_dir(self.dir.path()).unwrap().count(), 2);
    }
}

fn a_tree(path: &Path) {
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
fn a_tree_comes_back_as_it_went() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    a_tree(from.path());
    rustix::fs::mknodat(
        rustix::fs::CWD,
        from.path().join("pipe"),
        rustix::fs::FileType::Fifo,
        Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let tally = put(&packed(from.path()), to.path(), Links::Any).unwrap();
    assert_eq!((tally.skipped, tally.left_out), (0, 1), "the fifo is left out, and that is said: {tally:?}");
    let shown = |path: &Path| {
        let script = "find . ! -name pipe -printf '%P %y %m %l %s\\n' | sed 's/ 4755 / 755 /' | grep -v '^ d' | grep -v ' d .* [0-9]*$' | sort; \
                      find . -type f -exec sha256sum {} + | sort; find . -type d -printf '%P %m\\n' | grep . | sort";
        let done = Command::new("sh").args(["-c", script]).current_dir(path).output().unwrap();
        String::from_utf8(done.stdout).unwrap()
    };
    assert_eq!(shown(to.path()), shown(from.path()));
    let inode = |name: &str| fs::metadata(to.path().join(name)).unwrap().ino();
    assert_eq!(inode("run"), inode("also-run"), "two names, one file");
    let modified = |root: &Path| fs::metadata(root.join("run")).unwrap().mtime();
    assert_eq!(modified(to.path()), modified(from.path()));
    // A second time over what is there.
    let again = put(&packed(from.path()), to.path(), Links::Any).unwrap();
    assert_eq!(again.entries, tally.entries);
    assert_eq!(shown(to.path()), shown(from.path()));
}

#[test]
fn the_system_s_tar_and_this_one_understand_each_other() {
    let (from, to, back) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    a_tree(from.path());
    let archive = to.path().join("archive");
    for format in ["gnu", "pax", "ustar"] {
        let names: &[&str] = if format == "ustar" { &["run", "near", "also-run", "closed"] } else { &["."] };
        let mut command = Command::new("tar");
        command.arg("-cf").arg(&archive).arg(format!("--format={format}")).arg("-C").arg(from.path());
        let made = command.args(names).output().unwrap();
        assert!(made.status.success(), "{format}: {}", String::from_utf8_lossy(&made.stderr));
        let into = back.path().join(format);
        fs::create_dir(&into).unwrap();
        let tally = put(&fs::read(&archive).unwrap(), &into, Links::Any).unwrap();
        assert_eq!(tally.skipped, 0, "{format}: {tally:?}");
        assert_eq!(fs::read_to_string(into.join("run")).unwrap(), "#!/bin/sh\n");
        assert_eq!(fs::metadata(into.join("closed")).unwrap().mode() & 0o777, 0o500);
    }
    fs::write(&archive, packed(from.path())).unwrap();
    let into = back.path().join("theirs");
    fs::create_dir(&into).unwrap();
    let done = Command::new("tar").arg("-xf").arg(&archive).arg("-C").arg(&into).output().unwrap();
    assert!(done.status.success() && done.stderr.is_empty(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(fs::read(into.join("deep").join("d".repeat(120)).join("long")).unwrap().len(), 700_000);
}

/// The entries of a tar that means harm.
type Attempt = Box<dyn Fn(&Ground) -> Vec<Vec<u8>>>;

#[test]
fn nothing_leaves_the_destination() {
    let out = |ground: &Ground| ground.dir.path().join("out").to_str().unwrap().to_owned();
    let absolute = move |ground: &Ground| format!("{}/secret", out(ground));
    let attempts: Vec<(&str, Attempt)> = vec![
        ("an absolute path", Box::new(move |ground| vec![file(&absolute(ground), "evil")])),
        ("going up", Box::new(|_| vec![file("../out/secret", "evil"), file("a/../../out/secret", "evil")])),
        (
            "a link to a directory, and a file in it",
            Box::new(move |ground| {
                vec![link("door", &out(ground)), file("door/secret", "evil"), file("door/new", "evil")]
            }),
        ),
        ("a link that goes up", Box::new(|_| vec![link("door", "../out"), file("door/secret", "evil")])),
        ("a link to a file, and a file of its name", Box::new(|_| vec![link("a", "../out/secret"), file("a", "evil")])),
        (
            "a hard link",
            Box::new(move |ground| {
                vec![hard("a", &format!("{}/secret", out(ground))), hard("b", "../out/secret"), file("a", "evil")]
            }),
        ),
        (
            "a hard link through a link",
            Box::new(|_| vec![link("door", "../out"), hard("a", "door/secret"), file("a", "evil")]),
        ),
        (
            "a hard link of a link",
            Box::new(|_| {
                vec![
                    raw(EntryType::Directory, b"d/", b"", b""),
                    link("d/up", "../d"),
                    hard("up", "d/up"),
                    file("up/x", "evil"),
                ]
            }),
        ),
        (
            "a chain of links",
            Box::new(|_| vec![link("s", "."), link("door", "s/s/../../out"), file("door/secret", "evil")]),
        ),
        (
            "a link in a directory's place",
            Box::new(|_| vec![file("d/x", "1"), link("d", "../out"), file("d/secret", "evil")]),
        ),
        (
            "devices",
            Box::new(|_| {
                vec![
                    raw(EntryType::Char, b"null", b"", b""),
                    raw(EntryType::Block, b"disk", b"", b""),
                    raw(EntryType::Fifo, b"fifo", b"", b""),
                ]
            }),
        ),
    ];
    for (what, entries) in attempts {
        for links in [Links::Any, Links::Inside] {
            let ground = Ground::new();
            let tally = put(&tar(&entries(&ground)), &ground.inside(), links).unwrap();
            ground.assert_nothing_left();
            let replaced = what == "a link to a file, and a file of its name";
            assert!(tally.skipped > 0 || (replaced && links == Links::Any), "{what}: {tally:?}");
            assert!(tally.named.iter().all(|skipped| !skipped.why.is_empty()), "{what}: {tally:?}");
            if links == Links::Inside {
                let door = fs::symlink_metadata(ground.inside().join("door"));
                assert!(!door.is_ok_and(|door| door.is_symlink()), "{what}: a door was made");
            }
        }
    }
}

/// The same links work where they are followed, so that the test above means something.
#[test]
fn the_system_would_have_followed_those_links() {
    let ground = Ground::new();
    symlink(ground.dir.path().join("out"), ground.inside().join("door")).unwrap();
    fs::write(ground.inside().join("door/secret"), "evil").unwrap();
    assert_eq!(fs::read_to_string(ground.dir.path().join("out/secret")).unwrap(), "evil");
}

#[test]
fn links_that_were_there_before_are_not_followed() {
    let ground = Ground::new();
    symlink("../out", ground.inside().join("door")).unwrap();
    symlink("../out/secret", ground.inside().join("name")).unwrap();
    let tally = put(&tar(&[file("door/secret", "evil"), file("name", "mine")]), &ground.inside(), Links::Any).unwrap();
    ground.assert_nothing_left();
    assert_eq!((tally.skipped, tally.entries), (1, 1));
    assert_eq!(fs::read_to_string(ground.inside().join("name")).unwrap(), "mine");
    assert!(!fs::symlink_metadata(ground.inside().join("name")).unwrap().is_symlink(), "it took the link's place");
}

#[test]
fn a_mode_gives_nobody_rights() {
    let ground = Ground::new();
    put(&tar(&[file("tool", "x"), raw(EntryType::Directory, b"d", b"", b"")]), &ground.inside(), Links::Any).unwrap();
    for name in ["tool", "d"] {
        assert_eq!(fs::metadata(ground.inside().join(name)).unwrap().mode() & 0o7000, 0, "{name}");
    }
}

#[test]
fn half_a_tar_and_nonsense_are_errors() {
    let ground = Ground::new();
    let whole = tar(&[file("a", &"x".repeat(2000)), file("b", "y")]);
    for cut in [0, 100, 512, 1000, 2560, 3000, whole.len() - 1024] {
        let broken = put(&whole[..cut], &ground.inside(), Links::Any);
        assert!(matches!(broken, Err(Error::Malformed(_))), "{cut}: {broken:?}");
    }
    let mut wrong = whole.clone();
    wrong[3] ^= 1;
    assert!(matches!(put(&wrong, &ground.inside(), Links::Any), Err(Error::Malformed(_))));
    // A name that would take all memory.
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::GNULongName);
    header.set_size(1 << 40);
    header.set_cksum();
    let endless = std::io::BufReader::new(std::io::Read::chain(&header.as_bytes()[..], std::io::repeat(b'a')));
    assert!(matches!(unpack(endless, open(&ground.inside()), Links::Any, |_| {}), Err(Error::Malformed(_))));
}

#[test]
fn a_file_that_shrinks_leaves_a_whole_tar() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::write(from.path().join("a"), vec![1; 3_000_000]).unwrap();
    fs::write(from.path().join("b"), "after").unwrap();
    let mut bytes = Vec::new();
    let cut = from.path().join("a");
    let shrink = move |_| drop(fs::OpenOptions::new().write(true).open(&cut).unwrap().set_len(1000));
    pack(&open(from.path()), &mut bytes, |_, _| {}, shrink).unwrap();
    put(&bytes, to.path(), Links::Any).unwrap();
    assert_eq!(fs::metadata(to.path().join("a")).unwrap().len(), 3_000_000);
    assert_eq!(fs::read_to_string(to.path().join("b")).unwrap(), "after");
}

fn part() -> impl Strategy<Value = String> {
    prop_oneof![Just("a"), Just("b"), Just(".."), Just("."), Just(""), Just("door")].prop_map(str::to_owned)
}

fn path() -> impl Strategy<Value = String> {
    proptest::collection::vec(part(), 1..5).prop_map(|parts| parts.join("/"))
}

fn entry() -> impl Strategy<Value = Vec<u8>> {
    let kinds = prop_oneof![
        Just(EntryType::Regular),
        Just(EntryType::Symlink),
        Just(EntryType::Link),
        Just(EntryType::Directory),
        Just(EntryType::Fifo)
    ];
    (kinds, path(), path()).prop_map(|(kind, path, target)| {
        let data: &[u8] = if kind == EntryType::Regular { b"evil" } else { b"" };
        raw(kind, path.as_bytes(), target.as_bytes(), data)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Whatever entries there are, in whatever order: nothing beside the destination changes, and no link leads out.
    #[test]
    fn no_tar_reaches_outside(entries in proptest::collection::vec(entry(), 1..12), inside in any::<bool>()) {
        let ground = Ground::new();
        let links = if inside { Links::Inside } else { Links::Any };
        put(&tar(&entries), &ground.inside(), links).unwrap();
        ground.assert_nothing_left();
        if inside {
            let root = ground.inside().canonicalize().unwrap();
            let found = Command::new("find").arg(&root).args(["-type", "l"]).output().unwrap();
            for link in String::from_utf8(found.stdout).unwrap().lines() {
                if let Ok(target) = fs::canonicalize(link) {
                    prop_assert!(target.starts_with(&root), "{link} leads to {}", target.display());
                }
            }
        }
    }

    #[test]
    fn no_bytes_make_it_fall(bytes in proptest::collection::vec(any::<u8>(), 0..3000), sound in any::<bool>()) {
        let ground = Ground::new();
        let mut bytes = bytes;
        if sound && bytes.len() >= 512 {
            let mut header = Header::new_old();
            header.as_mut_bytes().copy_from_slice(&bytes[..512]);
            header.set_cksum();
            bytes[..512].copy_from_slice(header.as_bytes());
        }
        drop(put(&bytes, &ground.inside(), Links::Inside));
        ground.assert_nothing_left();
    }
}
