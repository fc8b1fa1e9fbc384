//! Images: all archive formats, hostile archives, and sandboxes that use them.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::OnceLock;

use atoll_jail::{CatalogKind, Error, Exit, HostProgram, Image, SandboxSpec};
use flate2::write::GzEncoder;
use serde_json::json;
use tar::{Builder, EntryType, Header};

use crate::harness::{Harness, exec_shell, require_root, skip_test, spec};
use crate::{lifecycle, unprivileged};

const WORKER: &str = "#!/bin/sh\nexec sleep 1000000\n";

/// An archive to write.
#[derive(Default, Clone)]
pub struct Tar(Vec<Item>);

#[derive(Clone)]
struct Item {
    path: String,
    kind: EntryType,
    content: Vec<u8>,
    link: String,
    mode: u32,
    owner: u64,
}

impl Tar {
    fn item(mut self, path: &str, kind: EntryType, content: &[u8], link: &str, mode: u32, owner: u64) -> Self {
        let (path, link) = (path.to_owned(), link.to_owned());
        self.0.push(Item { path, kind, content: content.to_vec(), link, mode, owner });
        self
    }

    pub fn file(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.item(path, EntryType::Regular, content.as_ref(), "", 0o644, 0)
    }

    pub fn executable(self, path: &str, content: impl AsRef<[u8]>) -> Self {
        self.item(path, EntryType::Regular, content.as_ref(), "", 0o755, 0)
    }

    pub fn directory(self, path: &str) -> Self {
        self.item(path, EntryType::Directory, b"", "", 0o755, 0)
    }

    fn link(self, path: &str, target: &str) -> Self {
        self.item(path, EntryType::Symlink, b"", target, 0o777, 0)
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut builder = Builder::new(Vec::new());
        for Item { path, kind, content, link, mode, owner } in &self.0 {
            let mut header = Header::new_gnu();
            header.set_entry_type(*kind);
            header.set_mode(*mode);
            header.set_uid(*owner);
            header.set_gid(*owner);
            header.set_mtime(1_000_000_000);
            header.set_size(content.len() as u64);
            // Written directly: the crate refuses hostile names.
            header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
            header.as_old_mut().linkname[..link.len()].copy_from_slice(link.as_bytes());
            header.set_cksum();
            builder.append(&header, content.as_slice()).unwrap();
        }
        builder.into_inner().unwrap()
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

pub fn archive_fd(bytes: &[u8]) -> OwnedFd {
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.rewind().unwrap();
    file.into()
}

/// True if a 64-bit ELF program has a program header that names its loader. A static one may contain the name too.
fn has_loader(program: &[u8]) -> bool {
    const INTERPRETER_HEADER: u32 = 3;
    let read = |at: usize, length: usize| {
        let bytes = program.get(at..at + length).unwrap_or_default();
        bytes.iter().rev().fold(0_usize, |value, byte| (value << 8) | usize::from(*byte))
    };
    let (first, size, count) = (read(32, 8), read(54, 2), read(56, 2));
    (0..count).any(|index| u32::try_from(read(first + index * size, 4)) == Ok(INTERPRETER_HEADER))
}

/// A root with one static busybox under many names.
pub fn busybox_root() -> Option<&'static Tar> {
    static ROOT: OnceLock<Option<Tar>> = OnceLock::new();
    let root = ROOT.get_or_init(|| {
        let program = ["/bin/busybox", "/usr/bin/busybox"].into_iter().find(|path| Path::new(path).exists())?;
        let program = fs::read(program).unwrap();
        // A dynamic binary would find no loader.
        if has_loader(&program) {
            return None;
        }
        let mut root = Tar::default();
        for path in ["./", "usr/", "usr/bin/", "etc/", "var/", "root/", "tmp/", "opt/", "home/"] {
            root = root.directory(path);
        }
        root = root.link("bin", "usr/bin").executable("usr/bin/busybox", &program);
        for name in ["sh", "cat", "ls", "id", "stat", "chown", "chmod", "mkdir", "rm", "sleep", "echo", "touch", "test", "grep", "ln", "mv", "printf"] {
            root = root.link(&format!("usr/bin/{name}"), "busybox");
        }
        root = root
            .file("etc/passwd", "root:x:0:0:root:/root:/bin/sh\nsomebody:x:1000:1000::/home/somebody:/bin/sh\ndaemon:x:33:33::/:/bin/sh\n")
            .file("etc/group", "root:x:0:\n")
            .link("etc/resolv.conf", "../run/resolv.conf")
            .file("etc/marker", "image\n")
            .item("var/owned", EntryType::Regular, b"x", "", 0o640, 33)
            .item("usr/hard", EntryType::Link, b"", "etc/marker", 0o644, 0)
            .item("null", EntryType::Char, b"", "", 0o666, 0);
        Some(root)
    });
    if root.is_none() {
        skip_test("needs a static busybox");
    }
    root.as_ref()
}

fn from_image(image: &str, name: &str) -> SandboxSpec {
    SandboxSpec { image: Some(image.to_owned()), ..spec(name) }
}

fn import_bytes(harness: &Harness, name: &str, bytes: &[u8]) -> Result<Image, Error> {
    harness.launcher.import_image(name, archive_fd(bytes))
}

impl Harness {
    fn exec_as(&self, name: &str, as_root: bool, script: &str) -> String {
        let output = exec_shell(&self.launcher, name, as_root, script).unwrap();
        assert_eq!(output.exit, Exit::Exited(0), "{script}: {output:?}");
        output.stdout.trim().to_owned()
    }
}

/// The whole lifecycle, for any user of the launcher.
fn check_imported_root(harness: &Harness) {
    let Some(root) = busybox_root() else { return };
    let before = lifecycle::list_mounts();
    let image = import_bytes(harness, "tiny", &gzip(&root.bytes())).unwrap();
    assert_eq!((image.layers, image.skipped), (1, 1));
    assert!(image.bytes > 100_000);
    // With a program of the host, too.
    let programs = vec![HostProgram { from: harness.options.worker_binary.clone(), at: "x/bin/x".into() }];
    harness.launcher.prepare_sandbox(&SandboxSpec { programs, ..from_image("tiny", "a") }).unwrap();
    let sandbox = harness.launcher.start_worker("a").unwrap();
    assert_eq!(sandbox.image.as_deref(), Some("tiny"));
    let script =
        "head -c 9 /opt/atoll/agents/x/bin/x; echo; ls /opt/atoll/agents/x; touch /opt/atoll/agents/y || echo no";
    let expected = "#!/bin/sh\nbin\nno";
    assert_eq!(harness.exec_as("a", true, script), expected);
    // Only the image is visible, nothing of the host.
    assert_eq!(
        harness.exec_as(
            "a",
            false,
            "id -u; id -un; cat /etc/marker /usr/hard; ls /usr/bin/git /usr/lib 2>/dev/null; ls /"
        ),
        "1000\nagent\nimage\nimage\nbin\ndev\netc\nhome\nopt\nproc\nroot\nrun\ntmp\nusr\nvar\nworkspace"
    );
    assert_eq!(
        harness.exec_as(
            "a",
            false,
            "stat -c '%u %a' /var/owned /etc/marker; ls -d /home/*; grep -c name /etc/resolv.conf"
        ),
        "33 640\n0 644\n/home/agent\n1"
    );
    assert_ne!(
        exec_shell(&harness.launcher, "a", false, "echo x >/etc/marker || mkdir /usr/x || touch /x").unwrap().exit,
        Exit::Exited(0)
    );
    // Root can change the system, but only there.
    harness.exec_as("a", true, "echo changed >/etc/marker; mkdir -p /usr/lib/new; touch /usr/lib/new/f; chown 33:33 /usr/lib/new/f; chmod 4755 /usr/lib/new/f; rm /var/owned; echo r >/root/f");
    assert_eq!(
        harness.exec_as(
            "a",
            true,
            "id -u; stat -c %u /usr/lib/new/f; touch /proc/sys/kernel/x /x 2>/dev/null || echo no"
        ),
        "0\n33\nno"
    );
    let status = harness.exec_as("a", true, "grep -E 'NoNewPrivs|Seccomp:|CapBnd' /proc/self/status");
    assert!(
        status.contains("NoNewPrivs:\t1") && status.contains("Seccomp:\t2") && !status.contains("CapBnd:\t000001ff"),
        "{status}"
    );
    assert_ne!(
        exec_shell(&harness.launcher, "a", true, "mount -t tmpfs x /tmp || chroot / true").unwrap().exit,
        Exit::Exited(0)
    );
    assert_eq!(harness.exec_as("a", false, "cat /etc/marker; echo w >/workspace/f"), "changed");
    // One-shot runs have the host's tools, not the image's.
    assert_eq!(
        harness.shell_output("a", "cat f; ls /usr/bin/env; ls /etc/marker 2>/dev/null || true"),
        "w\n/usr/bin/env"
    );
    // Forks and snapshots include the system.
    harness.launcher.fork_sandbox("a", &spec("b")).unwrap();
    harness.exec_as("a", true, "echo again >/etc/marker; rm -r /usr/lib/new");
    harness.launcher.start_worker("b").unwrap();
    assert_eq!(
        harness.exec_as("b", false, "cat /etc/marker f; ls /usr/lib/new; test ! -e /var/owned"),
        "changed\nw\nf"
    );
    assert_eq!(harness.exec_as("a", false, "cat /etc/marker f; ls /opt/atoll"), "again\nw\nagents\nworker");
    assert_eq!(harness.exec_as("a", true, script), expected, "differs after the layer swap");
    harness.launcher.create_snapshot("b", "with-system").unwrap();
    harness.exec_as("b", true, "echo later >/etc/marker");
    harness.launcher.kill_sandbox("b").unwrap();
    harness.launcher.start_worker("b").unwrap();
    assert_eq!(harness.exec_as("b", false, "cat /etc/marker"), "later");
    harness.launcher.prepare_sandbox(&SandboxSpec { snapshot: Some("with-system".into()), ..spec("c") }).unwrap();
    assert_eq!(harness.launcher.start_worker("c").unwrap().image.as_deref(), Some("tiny"));
    assert_eq!(harness.exec_as("c", false, "cat /etc/marker f"), "changed\nw");
    // Root can break its own sandbox, and no other.
    harness.exec_as("c", true, "rm -rf /opt; ln -s /proc/1/root/tmp /opt; mv /etc /usr/etc 2>/dev/null; true");
    harness.launcher.kill_sandbox("c").unwrap();
    let spoiled = harness.launcher.start_worker("c");
    assert!(spoiled.is_err() || spoiled.is_ok_and(|sandbox| sandbox.is_alive));
    // An image in use cannot be deleted.
    let used = |by: &str| Err(Error::InUse { kind: CatalogKind::Image, name: "tiny".into(), by: by.into() });
    assert_eq!(harness.launcher.forget_image("tiny"), used("sandbox a"));
    for name in ["a", "b", "c"] {
        harness.launcher.destroy_sandbox(name).unwrap();
    }
    assert_eq!(harness.launcher.forget_image("tiny"), used("snapshot with-system"));
    harness.launcher.forget_snapshot("with-system").unwrap();
    harness.launcher.forget_image("tiny").unwrap();
    assert_eq!(harness.launcher.list_images().unwrap(), []);
    assert_eq!(harness.list_layers(), Vec::<String>::new());
    assert_eq!(lifecycle::list_mounts(), before);
}

#[test]
fn a_sandbox_can_use_an_image() {
    let Some(harness) = Harness::new() else { return };
    check_imported_root(&harness);
}

#[test]
fn a_sandbox_of_a_user_with_sub_ids_can_use_an_image() {
    let Some(harness) = unprivileged::with_sub_ids(WORKER) else { return };
    check_imported_root(&harness);
}

#[test]
fn with_a_single_id_there_is_no_root_user() {
    let Some(harness) = unprivileged::with_one_id(WORKER) else { return };
    let Some(root) = busybox_root() else { return };
    import_bytes(&harness, "tiny", &root.bytes()).unwrap();
    harness.launcher.prepare_sandbox(&from_image("tiny", "a")).unwrap();
    harness.launcher.start_worker("a").unwrap();
    assert_eq!(harness.exec_as("a", false, "id -u; cat /etc/marker"), "1000\nimage");
    assert!(matches!(exec_shell(&harness.launcher, "a", true, "true"), Err(Error::NoRootUser { .. })));
}

#[test]
fn exec_needs_a_worker_and_root_needs_an_image() {
    let Some(harness) = Harness::new() else { return };
    harness.prepare_sandbox("a");
    assert_eq!(exec_shell(&harness.launcher, "a", false, "true").unwrap_err(), Error::NotRunning { name: "a".into() });
    harness.launcher.start_worker("a").unwrap();
    let refused = exec_shell(&harness.launcher, "a", true, "true").unwrap_err();
    assert!(refused.to_string().contains("imported root"), "{refused}");
    // The test worker starts as a shell.
    let look = "until grep -qx sleep /proc/1/comm; do sleep 0.02; done; \
                id -u; pwd; cat /proc/1/comm; grep CapBnd /proc/self/status; exit 7";
    let output = exec_shell(&harness.launcher, "a", false, look).unwrap();
    assert_eq!(output.exit, Exit::Exited(7));
    assert_eq!(output.stdout, "1000\n/workspace\nsleep\nCapBnd:\t0000000000000000\n");
    assert_eq!(exec_shell(&harness.launcher, "a", false, "kill -9 $$").unwrap().exit, Exit::Signalled(9));
    let missing = SandboxSpec { image: Some("none".into()), ..spec("b") };
    assert!(matches!(
        harness.launcher.prepare_sandbox(&missing),
        Err(Error::NotFound { kind: CatalogKind::Image, .. })
    ));
}

/// Layers of `docker save`: whiteouts hide entries of earlier layers, not of their own.
fn image_layers() -> Option<[Vec<u8>; 3]> {
    let base = busybox_root()?.bytes();
    let second = Tar::default()
        .directory("data")
        .file("data/one", "1")
        .file("data/two", "2")
        .directory("other")
        .file("other/old", "x")
        .file("etc/marker", "second\n");
    let third = Tar::default()
        .file("data/.wh.one", "")
        .file("data/three", "3")
        .file("other/new", "y")
        .file("other/.wh..wh..opq", "")
        .file("data/.wh.missing", "");
    Some([base, second.bytes(), gzip(&third.bytes())])
}

fn check_layers(harness: &Harness, image: &str) {
    let name = image.replace('-', "_");
    harness.launcher.prepare_sandbox(&from_image(image, &name)).unwrap();
    harness.launcher.start_worker(&name).unwrap();
    assert_eq!(
        harness.exec_as(&name, false, "cat /etc/marker; cd /; ls data other"),
        "second\ndata:\nthree\ntwo\n\nother:\nnew"
    );
}

#[test]
fn imports_docker_and_oci_archives() {
    let Some(harness) = Harness::new() else { return };
    let Some([one, two, three]) = image_layers() else { return };
    let manifest =
        json!([{ "Config": "c.json", "RepoTags": ["x:1"], "Layers": ["a/layer.tar", "b/layer.tar", "c/layer.tar"] }]);
    let saved = Tar::default()
        .directory("a")
        .file("a/layer.tar", &one)
        .file("real/layer.tar", &two)
        .link("b/layer.tar", "../real/layer.tar")
        .file("c/layer.tar", &three)
        .file("manifest.json", manifest.to_string());
    let image = import_bytes(&harness, "docker-save", &saved.bytes()).unwrap();
    assert_eq!(image.layers, 3);
    check_layers(&harness, "docker-save");

    let layer = |digest: &str| json!({ "mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": format!("sha256:{digest}") });
    let manifest = json!({ "schemaVersion": 2, "layers": [layer("aa"), layer("bb"), layer("cc")] });
    let nested = json!({ "manifests": [
        { "digest": "sha256:99", "platform": { "architecture": "sparc" } },
        { "digest": "sha256:11", "platform": { "architecture": if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" } } },
    ] });
    let index = json!({ "schemaVersion": 2, "manifests": [{ "digest": "sha256:22" }] });
    let oci = Tar::default()
        .file("oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#)
        .file("index.json", index.to_string())
        .file("blobs/sha256/22", nested.to_string())
        .file("blobs/sha256/11", manifest.to_string())
        .file("blobs/sha256/aa", gzip(&one))
        .file("blobs/sha256/bb", &two)
        .file("blobs/sha256/cc", &three);
    import_bytes(&harness, "oci", &gzip(&oci.bytes())).unwrap();
    check_layers(&harness, "oci");
    assert_eq!(harness.launcher.list_images().unwrap().len(), 2);
    assert!(matches!(import_bytes(&harness, "oci", b""), Err(Error::AlreadyExists { kind: CatalogKind::Image, .. })));
    // A pipe cannot be read twice.
    let (read, mut write) = std::io::pipe().unwrap();
    let bytes = oci.bytes();
    let writer = std::thread::spawn(move || write.write_all(&bytes));
    harness.launcher.import_image("piped", read.into()).unwrap();
    writer.join().unwrap().unwrap();
    check_layers(&harness, "piped");
}

/// The sandbox's root can make a layer swap fail midway.
#[test]
fn keeps_files_written_after_a_failed_layer_swap() {
    let (Some(harness), Some(root)) = (Harness::new(), busybox_root()) else { return };
    if !require_root() {
        return;
    }
    import_bytes(&harness, "tiny", &root.bytes()).unwrap();
    harness.launcher.prepare_sandbox(&from_image("tiny", "a")).unwrap();
    harness.launcher.start_worker("a").unwrap();
    harness.exec_as("a", false, "echo one >before");
    harness.exec_as("a", true, "mv /opt/atoll /opt/moved; ln -s /tmp /opt/atoll");
    let failed = harness.launcher.fork_sandbox("a", &spec("b"));
    assert!(failed.is_err(), "{failed:?}");
    harness.exec_as("a", false, "cat before; echo two >after");
    harness.launcher.kill_sandbox("a").unwrap();
    assert_eq!(harness.shell_output("a", "cat before after"), "one\ntwo");
    harness.launcher.destroy_sandbox("a").unwrap();
    harness.launcher.forget_image("tiny").unwrap();
    assert_eq!(harness.list_layers(), Vec::<String>::new());
}

#[test]
fn an_endless_name_is_stopped_by_the_memory_limit() {
    let Some(harness) = Harness::new() else { return };
    for kind in [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader] {
        let file = tempfile::tempfile_in("/var/tmp").unwrap();
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(6 << 30);
        header.set_cksum();
        Write::write_all(&mut &file, header.as_bytes()).unwrap();
        // A sparse file of zeroes.
        file.set_len((6 << 30) + 1024).unwrap();
        Seek::rewind(&mut &file).unwrap();
        let error = harness.launcher.import_image("large", file.into()).unwrap_err();
        assert!(error.to_string().contains("memory"), "{kind:?}: {error}");
    }
    assert_eq!(harness.launcher.list_images().unwrap(), []);
    assert_eq!(harness.list_layers(), Vec::<String>::new());
}

#[test]
fn hostile_archives_cannot_write_outside() {
    let Some(harness) = Harness::new() else { return };
    let outside = tempfile::Builder::new().prefix("atoll-outside-").tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(outside.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    fs::write(outside.path().join("kept"), "kept").unwrap();
    let path = outside.path().to_str().unwrap();
    let up = "../".repeat(12);
    let kind = |path: &str, kind, link: &str| Tar::default().item(path, kind, b"", link, 0o777, 0);
    let layered = |layer: Tar| {
        let manifest = json!([{ "Layers": ["l.tar"] }]);
        Tar::default().file("manifest.json", manifest.to_string()).file("l.tar", layer.bytes())
    };
    let table: Vec<(&str, Vec<u8>, bool)> = vec![
        ("a path with ..", Tar::default().file(&format!("{up}var/tmp/x"), "x").bytes(), false),
        ("a path with .. below a directory", Tar::default().file(&format!("a/{up}x"), "x").bytes(), false),
        ("an absolute path", Tar::default().file(&format!("{path}/planted"), "x").bytes(), true),
        ("a file through an absolute link", Tar::default().link("l", path).file("l/planted", "x").bytes(), false),
        (
            "a file through a link with ..",
            Tar::default().link("l", &format!("{up}{path}")).file("l/planted", "x").bytes(),
            false,
        ),
        (
            "a file through a link that stays inside",
            Tar::default().directory("in").link("l", "/../../in").file("l/planted", "x").bytes(),
            true,
        ),
        ("a file over a link", Tar::default().link("l", &format!("{path}/kept")).file("l", "x").bytes(), true),
        ("a hard link to an absolute path", kind("h", EntryType::Link, &format!("{path}/kept")).bytes(), false),
        ("a hard link with ..", kind("h", EntryType::Link, &format!("{up}{path}/kept")).bytes(), false),
        (
            "a hard link through a link",
            Tar::default().link("l", path).item("h", EntryType::Link, b"", "l/kept", 0o777, 0).bytes(),
            false,
        ),
        ("a device", kind("d", EntryType::Block, "").bytes(), true),
        ("links in a circle", Tar::default().link("a", "b").link("b", "a").file("a/x", "x").bytes(), false),
        ("a whiteout with ..", layered(Tar::default().file(".wh...", "")).bytes(), false),
        ("a whiteout through a link", layered(Tar::default().link("l", path).file("l/.wh.kept", "")).bytes(), true),
        (
            "an opaque whiteout through a link",
            layered(Tar::default().link("l", path).file("l/.wh..wh..opq", "")).bytes(),
            true,
        ),
        (
            "a layer outside the archive",
            Tar::default().file("manifest.json", r#"[{"Layers":["../../../etc/shadow"]}]"#).bytes(),
            false,
        ),
        ("a missing layer", Tar::default().file("manifest.json", r#"[{"Layers":["x"]}]"#).bytes(), false),
        (
            "a layer that is a link",
            Tar::default().file("manifest.json", r#"[{"Layers":["x"]}]"#).link("x", "x").bytes(),
            false,
        ),
        (
            "a passwd file that is a fifo",
            Tar::default().item("etc/passwd", EntryType::Fifo, b"", "", 0o666, 0).bytes(),
            true,
        ),
        ("a uid out of range", Tar::default().item("u", EntryType::Regular, b"x", "", 0o4777, 2_000_000).bytes(), true),
        ("zstd", vec![0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0, 0], false),
        ("noise", vec![7; 4096], false),
        ("nothing", Vec::new(), false),
        ("half an archive", Tar::default().file("f", vec![1; 5000]).bytes()[..2000].to_vec(), false),
    ];
    for (number, (what, bytes, fits)) in table.into_iter().enumerate() {
        let name = format!("hostile{number}");
        let outcome = import_bytes(&harness, &name, &bytes);
        assert_eq!(outcome.is_ok(), fits, "{what}: {outcome:?}");
        if let Err(error) = outcome {
            assert!(matches!(&error, Error::InvalidArchive { reason, .. } if !reason.is_empty()), "{what}: {error}");
        }
        let left: Vec<_> = fs::read_dir(outside.path()).unwrap().flatten().map(|entry| entry.file_name()).collect();
        assert_eq!(left, ["kept"], "{what}");
        assert_eq!(fs::read_to_string(outside.path().join("kept")).unwrap(), "kept", "{what}");
        assert!(!Path::new("/var/tmp/x").exists(), "{what}");
    }
    let images = harness.launcher.list_images().unwrap();
    assert_eq!(harness.list_layers().len(), images.len(), "a failed import left a layer");
}
