//! Attempts to get out of a sandbox, or at what is not its own: each must fail inside and is shown to work elsewhere.
//!
//! Canaries in every hidden place are in `local/canary.rs`; names that resolve to private addresses and wrong server
//! names are with the tests of the proxy.

mod bombs;
mod calls;
mod copies;
mod others;
mod reach;
mod stored;
mod table;
mod traces;

use atoll_tests::local::traces::{leaf, worker};
use atoll_tests::local::{Ground, is_root, skipped};
use atoll_tests::ordinary::{self, Ids};
use reach::Listening;
use rustix::fs::{FileType, Mode};
use serde_json::json;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use table::Table;
use tempfile::TempDir;

/// What is there for a sandbox to reach for.
struct Bait {
    canary: String,
    shared: tempfile::NamedTempFile,
    sockets: TempDir,
    abstract_name: String,
    listening: Listening,
    _held: (Vec<TcpListener>, Vec<UnixListener>, Vec<Answering>),
}

/// Answers datagrams until it is dropped.
struct Answering(tokio::task::JoinHandle<()>);

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn answering(host: &str) -> Option<(u16, Answering)> {
    let socket = UdpSocket::bind((host, 0)).ok()?;
    let port = socket.local_addr().unwrap().port();
    socket.set_nonblocking(true).unwrap();
    let socket = tokio::net::UdpSocket::from_std(socket).unwrap();
    let task = tokio::spawn(async move {
        let mut space = [0; 16];
        while let Ok((length, from)) = socket.recv_from(&mut space).await {
            drop(socket.send_to(&space[..length], from).await);
        }
    });
    Some((port, Answering(task)))
}

/// The host's own address in its network, if it is in one.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

impl Bait {
    fn lay(ground: &Ground, table: &Table) -> Self {
        let canary = table.dir().join("canary");
        std::fs::write(&canary, format!("canary{}", uuid::Uuid::new_v4().simple())).unwrap();
        std::fs::set_permissions(&canary, PermissionsExt::from_mode(0o644)).unwrap();
        let shared = tempfile::Builder::new().prefix("atoll-canary-").tempfile_in("/dev/shm").unwrap();
        std::fs::write(shared.path(), "canary").unwrap();
        std::fs::set_permissions(shared.path(), PermissionsExt::from_mode(0o644)).unwrap();
        let run = if is_root() { Path::new("/run") } else { Path::new("/tmp") };
        let sockets = tempfile::Builder::new().prefix("atoll-test-").tempdir_in(run).unwrap();
        std::fs::set_permissions(sockets.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let named = UnixListener::bind(sockets.path().join("docker.sock")).unwrap();
        let abstract_name = format!("atoll-host-{}", uuid::Uuid::new_v4().simple());
        let address = SocketAddr::from_abstract_name(abstract_name.as_bytes()).unwrap();
        let hidden = UnixListener::bind_addr(&address).unwrap();
        let (datagrams, echo) = answering("127.0.0.1").unwrap();
        let (mut streams, mut echoes) = (Vec::new(), vec![echo]);
        let mut listen = |host: &str| {
            let listener = TcpListener::bind((host, 0)).ok()?;
            let port = listener.local_addr().unwrap().port();
            streams.push(listener);
            Some(port)
        };
        let (loopback, loopback_six) = (listen("127.0.0.1").unwrap(), listen("::1"));
        let address = own_address().and_then(|host| {
            let (stream, (datagram, echo)) = (listen(&host)?, answering(&host)?);
            echoes.push(echo);
            Some((host, stream, datagram))
        });
        let server = ground.server.address.port();
        let listening = Listening { loopback, loopback_six, address, server, datagrams };
        let canary = canary.to_str().unwrap().to_owned();
        let held = (streams, vec![named, hidden], echoes);
        Self { canary, shared, sockets, abstract_name, listening, _held: held }
    }
}

/// A device and a set-uid program of the sandbox's own root, put where the agent can reach them.
fn plant(table: &Table, tmp: &Path, root_inside: Option<u32>) {
    for dir in [table.dir(), tmp] {
        let program = dir.join("planted-calls");
        std::fs::copy(table.calls(), &program).unwrap();
        if let (true, Some(id)) = (dir == tmp, root_inside) {
            chown(&program, Some(id), Some(id)).unwrap();
        }
        std::fs::set_permissions(&program, PermissionsExt::from_mode(0o4755)).unwrap();
        let node = dir.join("planted-zero");
        let zero = rustix::fs::makedev(1, 5);
        rustix::fs::mknodat(rustix::fs::CWD, &node, FileType::CharacterDevice, Mode::from_raw_mode(0o666), zero)
            .unwrap();
        std::fs::set_permissions(&node, PermissionsExt::from_mode(0o666)).unwrap();
    }
}

/// Everything, in sandboxes of a server that runs as root or as somebody without any privilege. What is to succeed
/// elsewhere is tried by root.
async fn whole_table(user: Option<(u32, Ids)>, least: usize) {
    let whose = match user {
        None => "attempts to get out",
        Some((_, Ids::Own)) => "attempts to get out, of an ordinary user's sandboxes",
        Some((_, Ids::Range)) => "attempts to get out, of sandboxes of a user with a range of ids",
    };
    if !is_root() {
        return skipped(whose, "only root can show that they succeed elsewhere");
    }
    if let Some(why) = user.and_then(|(user, ids)| ordinary::missing(user, ids)) {
        return skipped(whose, why);
    }
    let mut table = match Table::new(whose) {
        Ok(table) => table,
        Err(why) => return skipped(whose, &why),
    };
    let secret = format!("secret{}", uuid::Uuid::new_v4().simple());
    let environment = [("MODEL_KEY".to_owned(), secret.clone())];
    let ground = Ground::start_wholly("", &["--log-level", "trace"], &environment, user);
    let (id, other) = (ground.kept(json!({})).await, ground.kept(json!({})).await);
    for sandbox in [&id, &other] {
        table.equip(&ground, sandbox).await;
    }
    let bait = Bait::lay(&ground, &table);
    let worker = worker(&id);
    let root_inside = worker.as_ref().and_then(|worker| worker.status("Uid")?.split_whitespace().next()?.parse().ok());
    plant(&table, &ground.home_of(&id).join("tmp"), root_inside);
    others::settle(&ground, &other).await;

    let shared = bait.shared.path().to_str().unwrap();
    table.attempts(&ground, &id, "files of the host", reach::files(&bait.canary, shared)).await;
    table.attempts(&ground, &id, "/proc, /sys and /dev", reach::proc()).await;
    table.attempts(&ground, &id, "mounts", calls::mounts()).await;
    table.attempts(&ground, &id, "namespaces", calls::namespaces()).await;
    table.attempts(&ground, &id, "other processes", calls::processes()).await;
    table.attempts(&ground, &id, "the kernel", calls::kernel()).await;
    let dir = table.dir().to_str().unwrap().to_owned();
    table.attempts(&ground, &id, "terminals, devices, privilege", calls::privilege(&dir)).await;
    let socket = bait.sockets.path().join("docker.sock");
    let sockets = reach::sockets(socket.to_str().unwrap(), &bait.abstract_name);
    table.attempts(&ground, &id, "sockets", sockets).await;
    table.attempts(&ground, &id, "the network", reach::network(&bait.listening)).await;

    let hands = ground.shell(&id, crate::local::worker::HANDS).await.well();
    table.attempts(&ground, &id, "the worker", others::worker("the worker", "1")).await;
    table.attempts(&ground, &id, "the worker", others::worker("its hands", hands.trim())).await;
    let home = ground.home_of(&id);
    table.attempts(&ground, &id, "the worker", others::held_by_the_worker(home.to_str().unwrap())).await;
    if user.is_some_and(|(_, ids)| ids == Ids::Own) {
        others::deaf(&ground, &mut table, &id).await;
    } else {
        table.attempts(&ground, &id, "the worker", others::signals()).await;
    }
    assert!(worker.is_none_or(|worker| worker.is_alive()), "the worker lives");

    let neighbours = leaf(&other, "agent");
    let neighbour = neighbours.iter().find(|process| process.file("cmdline").contains("atoll-neighbour"));
    if neighbour.is_none() {
        let why = "without cgroups it is not known which it is";
        table.skipped("processes of the host", "signal a process of another sandbox", why);
    }
    let pids = others::pids(ground.server.pid(), neighbour.map(|process| process.pid));
    table.attempts(&ground, &id, "processes of the host", pids).await;
    let home = ground.home_of(&other);
    let rows = others::neighbour(&other, home.to_str().unwrap());
    table.attempts(&ground, &id, "another sandbox", rows).await;
    traces::secrets(&ground, &mut table, &id, &secret).await;
    stored::attempts(&ground, &mut table).await;
    bombs::attempts(&ground, &mut table).await;
    copies::streams(&mut table, &id);
    copies::trees(&ground, &mut table, &id).await;
    traces::swaps(&ground, &mut table, Path::new(&bait.canary), user.map(|(user, _)| user)).await;
    traces::orphans(&ground, &mut table).await;
    table.close(least);
    ground.leave().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_gets_out() {
    whole_table(None, 180).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_gets_out_of_an_ordinary_user_s_sandboxes() {
    whole_table(Some((61_243, Ids::Own)), 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_gets_out_of_sandboxes_with_a_range_of_ids() {
    whole_table(Some((61_244, Ids::Range)), 150).await;
}
