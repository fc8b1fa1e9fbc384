//! What comes out of a sandbox by `atoll sandbox cp`, from trees that mean harm and from a server that does. Nothing may
//! appear or change outside of where it is copied to; a careless copy of the same does.

use super::table::Table;
use atoll_tests::local::{Ground, directory};
use atoll_tests::process;
use serde_json::json;
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const GROUP: &str = "what comes out";
const CARELESS: &str = "on the host, for tar without care";

/// A place for a copy, and beside it something that must stay as it is.
struct Beside {
    dir: TempDir,
}

impl Beside {
    fn new() -> Self {
        let dir = directory("atoll-copies-");
        for name in ["got", "outside"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("outside/secret"), "as it was").unwrap();
        Self { dir }
    }

    fn got(&self) -> PathBuf {
        self.dir.path().join("got")
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    /// What has got out, or become what no copy may be.
    fn reached(&self) -> Option<String> {
        let mut beside: Vec<_> = std::fs::read_dir(self.dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        beside.sort();
        let outside = std::fs::read_dir(self.outside()).unwrap().count();
        let secret = self.outside().join("secret");
        let (text, links) = (std::fs::read_to_string(&secret).unwrap(), std::fs::metadata(&secret).unwrap().nlink());
        if beside != ["got", "outside"] || outside != 1 || text != "as it was" || links != 1 {
            return Some(format!("{beside:?}, {outside} files outside, {links} links to {text:?}"));
        }
        let mut open = vec![self.got()];
        while let Some(dir) = open.pop() {
            for entry in std::fs::read_dir(&dir).unwrap().flatten() {
                let found = std::fs::symlink_metadata(entry.path()).unwrap();
                let kind = found.file_type();
                if kind.is_dir() {
                    open.push(entry.path());
                } else if kind.is_char_device()
                    || kind.is_block_device()
                    || found.mode() & 0o6000 != 0 && kind.is_file()
                {
                    return Some(format!("{:?} {:o}", entry.path(), found.mode()));
                }
            }
        }
        None
    }
}

fn cp(server: &str, token: &str, from: &str, to: &Path) -> Output {
    let mut command = process::command("atoll");
    command.args(["sandbox", "cp", "--server", server, from]).arg(to).env("ATOLL_TOKEN", token);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    process::spawn(command).wait_with_output().unwrap()
}

/// Unpacks as nobody should.
fn carelessly(tar: &[u8], into: &Path) {
    let mut command = Command::new("tar");
    command.args(["-xPpf", "-", "--overwrite", "--same-owner", "-C"]).arg(into).stderr(Stdio::null());
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    drop(child.stdin.take().unwrap().write_all(tar));
    child.wait().unwrap();
}

/// One entry of a tar, as an honest program would not write it.
fn entry(kind: u8, name: &str, target: &str, data: &str) -> Vec<u8> {
    let mut head = [0_u8; 512];
    let mut put = |at: usize, text: &str| head[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0006777\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{:011o}\0", data.len()));
    put(136, "00000000001\0");
    put(148, "        ");
    put(157, target);
    put(257, "ustar\x0000");
    // Of /dev/zero, for devices.
    put(329, "0000001\0");
    put(337, "0000005\0");
    head[156] = kind;
    let sum: u32 = head.iter().map(|byte| u32::from(*byte)).sum();
    head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut bytes = head.to_vec();
    bytes.extend_from_slice(data.as_bytes());
    bytes.resize(bytes.len().next_multiple_of(512), 0);
    bytes
}

fn tar(entries: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = entries.concat();
    bytes.extend_from_slice(&[0; 1024]);
    bytes
}

/// A longer name for the next entry, by the extended header.
fn renamed(name: &str) -> Vec<u8> {
    let mut record = String::new();
    let length = (1..).find(|length: &usize| {
        record.clear();
        writeln!(record, "{length} path={name}").unwrap();
        record.len() == *length
    });
    assert!(length.is_some());
    entry(b'x', "header", "", &record)
}

/// Each with what it is; `outside` is where it wants to.
fn hostile(outside: &Path) -> Vec<(&'static str, Vec<u8>)> {
    let at = |name: &str| outside.join(name).to_str().unwrap().to_owned();
    let dir = outside.to_str().unwrap();
    vec![
        ("an absolute name", tar(&[entry(b'0', &at("evil"), "", "evil")])),
        ("a name that climbs", tar(&[entry(b'0', "../outside/evil", "", "evil")])),
        (
            "a name that climbs from within",
            tar(&[entry(b'5', "d", "", ""), entry(b'0', "d/../../outside/evil", "", "evil")]),
        ),
        ("an extended name that climbs", tar(&[renamed("../outside/evil"), entry(b'0', "plain", "", "evil")])),
        (
            "a GNU name that is absolute",
            tar(&[entry(b'L', "././@LongLink", "", &format!("{}\0", at("evil"))), entry(b'0', "plain", "", "evil")]),
        ),
        ("a link, and a file through it", tar(&[entry(b'2', "out", dir, ""), entry(b'0', "out/evil", "", "evil")])),
        (
            "a relative link, and a file through it",
            tar(&[entry(b'2', "out", "../outside", ""), entry(b'0', "out/evil", "", "evil")]),
        ),
        (
            "links in a chain",
            tar(&[entry(b'2', "a", "..", ""), entry(b'2', "b", "a/outside", ""), entry(b'0', "b/evil", "", "evil")]),
        ),
        (
            "a directory that becomes a link",
            tar(&[entry(b'2', "d", dir, ""), entry(b'5', "d", "", ""), entry(b'0', "d/evil", "", "evil")]),
        ),
        ("a link to a file, overwritten", tar(&[entry(b'2', "f", &at("secret"), ""), entry(b'0', "f", "", "evil")])),
        ("a hard link out", tar(&[entry(b'1', "hard", &at("secret"), "")])),
        ("a hard link out that climbs", tar(&[entry(b'1', "hard", "../outside/secret", "")])),
        ("a hard link out through a link", tar(&[entry(b'2', "out", dir, ""), entry(b'1', "hard", "out/secret", "")])),
        ("a character device", tar(&[entry(b'3', "zero", "", "")])),
        ("a block device", tar(&[entry(b'4', "disk", "", "")])),
        ("a set-uid program", tar(&[entry(b'0', "root", "", "#!/bin/sh")])),
    ]
}

/// Answers every request for a tree with this one.
fn serve(listener: TcpListener, answers: Vec<Vec<u8>>) {
    for tar in answers {
        for _ in 0..2 {
            let Ok((mut stream, _)) = listener.accept() else { return };
            let mut asked = Vec::new();
            let mut space = [0; 4096];
            while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
                match stream.read(&mut space) {
                    Ok(0) | Err(_) => break,
                    Ok(count) => asked.extend_from_slice(&space[..count]),
                }
            }
            let is_tree = String::from_utf8_lossy(&asked).lines().next().unwrap_or_default().contains("/files/tar");
            let stat = json!({ "name": "evil", "kind": "directory", "size": 0, "mode": "0755", "modified_at": "" });
            let (kind, body) = if is_tree {
                ("application/x-tar", tar.clone())
            } else {
                ("application/json", stat.to_string().into_bytes())
            };
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
                body.len()
            );
            drop(stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&body)));
        }
    }
}

/// The command line against a server that answers with what it likes.
pub fn streams(table: &mut Table, id: &str) {
    let (listener, kinds) = (TcpListener::bind("127.0.0.1:0").unwrap(), hostile(Path::new("/")).len());
    let url = format!("http://{}", listener.local_addr().unwrap());
    for number in 0..kinds {
        let (here, there) = (Beside::new(), Beside::new());
        let (what, tar) = hostile(&here.outside()).swap_remove(number);
        let serving = listener.try_clone().unwrap();
        let serving = std::thread::spawn(move || serve(serving, vec![tar]));
        let copied = cp(&url, "token", &format!("{id}:evil"), &here.got());
        assert!(serving.is_finished() || copied.status.success(), "it asks for the tree: {copied:?}");
        serving.join().unwrap();
        assert_eq!(here.reached(), None, "{what}: {copied:?}");
        let (_, tar) = hostile(&there.outside()).swap_remove(number);
        carelessly(&tar, &there.got());
        if there.reached().is_none() {
            table.skipped(GROUP, &format!("a tar with {what}"), "tar does not do it here either");
            continue;
        }
        let said = String::from_utf8_lossy(&copied.stderr);
        let said = said.lines().find(|line| line.contains("not copied") || line.contains("can't")).unwrap_or("no harm");
        table.held(GROUP, &format!("a tar with {what}"), said.trim().to_owned(), CARELESS);
    }
}

/// Swaps a directory for a link to `$1` and back, as fast as it can.
const SWAP: &str = "while :; do mv -T dir was; ln -s $1 dir; rm -f dir; mv -T was dir; done";

/// Trees that a sandbox has made itself. `planted` has a device and a set-uid program in its `/tmp`.
pub async fn trees(ground: &Ground, table: &mut Table, planted: &str) {
    let token = ground.server.token();
    let copy = |from: String, to: &Path| cp(&ground.server.url, &token, &from, to);
    let id = ground.kept(json!({})).await;

    let beside = Beside::new();
    let names = "mkdir -p names; cd names; for n in -rf '..\\evil' 'C:\\evil' '...' ' ' 'a\nb' '\x1b[2J' '~' '$(id)'; do \
                 echo x > \"./$n\"; done; printf x > \"$(printf '\\377\\376')\"; ls | wc -l; ls -A | wc -l";
    ground.shell(&id, names).await.well();
    let copied = copy(format!("{id}:names"), &beside.got());
    assert!(copied.status.success(), "{copied:?}");
    assert_eq!(beside.reached(), None, "{copied:?}");
    let count = std::fs::read_dir(beside.got().join("names")).unwrap().count();
    assert_eq!(count, 10, "each of them is there");
    table.held(
        GROUP,
        "names that mean something elsewhere",
        format!("{count} files, all below"),
        "they are just names",
    );

    // A link that an earlier copy could have left, and now a directory in its place.
    let beside = Beside::new();
    std::fs::create_dir(beside.got().join("tree")).unwrap();
    symlink(beside.outside(), beside.got().join("tree/out")).unwrap();
    ground.shell(&id, "mkdir -p tree/out; echo evil > tree/out/evil").await.well();
    let copied = copy(format!("{id}:tree"), &beside.got());
    assert_eq!(beside.reached(), None, "{copied:?}");
    std::fs::write(beside.got().join("tree/out/evil"), "x").unwrap_or_default();
    let careless = Beside::new();
    symlink(careless.outside(), careless.got().join("out")).unwrap();
    carelessly(&tar(&[entry(b'0', "out/evil", "", "evil")]), &careless.got());
    assert!(careless.reached().is_some(), "tar follows it");
    table.held(GROUP, "a link in the place of a directory", "not followed".into(), CARELESS);

    let beside = Beside::new();
    ground.shell(&id, "mkdir -p hard; echo x > hard/a; ln hard/a hard/b; ln /etc/hostname hard/c; true").await.well();
    let copied = copy(format!("{id}:hard"), &beside.got());
    assert_eq!(beside.reached(), None, "{copied:?}");
    assert!(!beside.got().join("hard/c").exists(), "there was nothing of the host to link to");
    table.held(GROUP, "hard links made inside", "two files".into(), "on the host, for ln");

    let beside = Beside::new();
    let copied = copy(format!("{planted}:/tmp"), &beside.got());
    assert_eq!(beside.reached(), None, "{copied:?}");
    assert!(beside.got().join("tmp/planted-calls").exists(), "the program comes without its bits: {copied:?}");
    assert!(!beside.got().join("tmp/planted-zero").exists());
    table.held(GROUP, "a device and a set-uid program", "without device, without bits".into(), CARELESS);

    let beside = Beside::new();
    let outside = beside.outside();
    let swap = "mkdir -p swapped/dir; for i in 1 2 3 4 5 6 7 8; do echo mine > swapped/dir/evil$i; done; cd swapped;";
    let swap = format!("{swap} nohup sh -c '{SWAP}' swap {} >/dev/null 2>&1 & sleep 0.1", outside.display());
    ground.shell(&id, &swap).await.well();
    let mut whole = 0;
    for _ in 0..20 {
        // Into the same place, so that what one copy leaves the next one meets.
        let copied = copy(format!("{id}:swapped"), &beside.got());
        assert_eq!(beside.reached(), None, "{copied:?}");
        whole += usize::from(copied.status.success());
    }
    let said = format!("20 copies, {whole} of them whole");
    table.held(GROUP, "links swapped under a copy", said, CARELESS);
}
