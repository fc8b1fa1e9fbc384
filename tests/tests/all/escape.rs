//! Attempts to escape from a sandbox. Each must fail inside, and succeed outside to prove that it is a real attempt.
//!
//! `local/canary.rs` covers canaries in hidden directories. The tests of the egress proxy cover host names that
//! resolve to private addresses, and wrong server names.

mod attempt_table;
mod bomb_attempts;
mod calls;
mod copied_files;
mod host_access;
mod other_processes;
mod outgoing_data;
mod shared_limits;
mod stored_secrets;

use atoll_tests::local::host_state::{find_worker_process, list_leaf_processes};
use atoll_tests::local::{LocalServer, is_root, report_skipped};
use atoll_tests::unprivileged_user::{self, SubordinateIds};
use attempt_table::AttemptTable;
use host_access::HostListeners;
use rustix::fs::{FileType, Mode};
use serde_json::json;
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use tempfile::TempDir;

/// Files, sockets and ports of the host that the attempts try to reach.
struct HostTargets {
    canary: String,
    shared: tempfile::NamedTempFile,
    socket_dir: TempDir,
    abstract_name: String,
    listeners: HostListeners,
    _open: (Vec<TcpListener>, Vec<UnixListener>, Vec<UdpEcho>),
}

/// Echoes datagrams until it is dropped.
struct UdpEcho(tokio::task::JoinHandle<()>);

impl Drop for UdpEcho {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn start_udp_echo(host: &str) -> Option<(u16, UdpEcho)> {
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
    Some((port, UdpEcho(task)))
}

/// Finds the host's address in its network, if it has one.
fn find_host_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("198.51.100.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip().to_string())
}

impl HostTargets {
    fn create(server: &LocalServer, table: &AttemptTable) -> Self {
        let canary = table.dir().join("canary");
        std::fs::write(&canary, format!("canary{}", uuid::Uuid::new_v4().simple())).unwrap();
        std::fs::set_permissions(&canary, PermissionsExt::from_mode(0o644)).unwrap();
        let shared = tempfile::Builder::new().prefix("atoll-canary-").tempfile_in("/dev/shm").unwrap();
        std::fs::write(shared.path(), "canary").unwrap();
        std::fs::set_permissions(shared.path(), PermissionsExt::from_mode(0o644)).unwrap();
        let run = if is_root() { Path::new("/run") } else { Path::new("/tmp") };
        let socket_dir = tempfile::Builder::new().prefix("atoll-test-").tempdir_in(run).unwrap();
        std::fs::set_permissions(socket_dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let named = UnixListener::bind(socket_dir.path().join("docker.sock")).unwrap();
        let abstract_name = format!("atoll-host-{}", uuid::Uuid::new_v4().simple());
        let address = SocketAddr::from_abstract_name(abstract_name.as_bytes()).unwrap();
        let hidden = UnixListener::bind_addr(&address).unwrap();
        let (datagrams, echo) = start_udp_echo("127.0.0.1").unwrap();
        let (mut streams, mut echoes) = (Vec::new(), vec![echo]);
        let mut listen = |host: &str| {
            let listener = TcpListener::bind((host, 0)).ok()?;
            let port = listener.local_addr().unwrap().port();
            streams.push(listener);
            Some(port)
        };
        let (loopback, loopback_six) = (listen("127.0.0.1").unwrap(), listen("::1"));
        let address = find_host_address().and_then(|host| {
            let (stream, (datagram, echo)) = (listen(&host)?, start_udp_echo(&host)?);
            echoes.push(echo);
            Some((host, stream, datagram))
        });
        let server = server.process.address.port();
        let listeners = HostListeners { loopback, loopback_six, address, server, datagrams };
        let canary = canary.to_str().unwrap().to_owned();
        let open = (streams, vec![named, hidden], echoes);
        Self { canary, shared, socket_dir, abstract_name, listeners, _open: open }
    }
}

/// Places a device node and a set-uid program of the sandbox's own root where the agent can reach them.
fn plant_files(table: &AttemptTable, tmp: &Path, root_inside: Option<u32>) {
    for dir in [table.dir(), tmp] {
        let program = dir.join("planted-calls");
        std::fs::copy(table.calls_path(), &program).unwrap();
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

/// Runs all attempts in sandboxes of a server that runs as root or as an unprivileged user. Root runs them outside.
async fn run_all_attempts(user: Option<(u32, SubordinateIds)>, min_attempts: usize) {
    let title = match user {
        None => "escape attempts",
        Some((_, SubordinateIds::Unassigned)) => "escape attempts from an unprivileged user's sandboxes",
        Some((_, SubordinateIds::Range)) => "escape attempts from sandboxes of a user with subordinate ids",
    };
    if !is_root() {
        return report_skipped(title, "only root can prove that they succeed outside");
    }
    if let Some(why) = user.and_then(|(user, ids)| unprivileged_user::missing_requirement(user, ids)) {
        return report_skipped(title, why);
    }
    let mut table = match AttemptTable::new(title) {
        Ok(table) => table,
        Err(why) => return report_skipped(title, &why),
    };
    let secret = format!("secret{}", uuid::Uuid::new_v4().simple());
    let environment = [("MODEL_KEY".to_owned(), secret.clone())];
    let server = LocalServer::start_with_options("", &["--log-level", "trace"], &environment, user);
    let (id, other) = (server.create_idle_sandbox(json!({})).await, server.create_idle_sandbox(json!({})).await);
    for sandbox in [&id, &other] {
        table.install_calls(&server, sandbox).await;
    }
    let targets = HostTargets::create(&server, &table);
    let worker = find_worker_process(&id);
    let root_inside =
        worker.as_ref().and_then(|worker| worker.status_field("Uid")?.split_whitespace().next()?.parse().ok());
    plant_files(&table, &server.sandbox_dir(&id).join("tmp"), root_inside);
    other_processes::start_neighbour(&server, &other).await;

    let shared = targets.shared.path().to_str().unwrap();
    table.run_attempts(&server, &id, "files of the host", host_access::file_attempts(&targets.canary, shared)).await;
    table.run_attempts(&server, &id, "/proc, /sys and /dev", host_access::proc_attempts()).await;
    table.run_attempts(&server, &id, "mounts", calls::mount_attempts()).await;
    table.run_attempts(&server, &id, "namespaces", calls::namespace_attempts()).await;
    table.run_attempts(&server, &id, "other processes", calls::process_attempts()).await;
    table.run_attempts(&server, &id, "the kernel", calls::kernel_attempts()).await;
    let dir = table.dir().to_str().unwrap().to_owned();
    table.run_attempts(&server, &id, "terminals, devices, privilege", calls::privilege_attempts(&dir)).await;
    let socket = targets.socket_dir.path().join("docker.sock");
    let sockets = host_access::socket_attempts(socket.to_str().unwrap(), &targets.abstract_name);
    table.run_attempts(&server, &id, "sockets", sockets).await;
    table.run_attempts(&server, &id, "the network", host_access::network_attempts(&targets.listeners)).await;

    let spawner = server.run_shell(&id, crate::local::worker_isolation::FIND_SPAWNER_SCRIPT).await.expect_success();
    table.run_attempts(&server, &id, "the worker", other_processes::worker_attempts("the worker", "1")).await;
    table
        .run_attempts(&server, &id, "the worker", other_processes::worker_attempts("its spawner", spawner.trim()))
        .await;
    let home = server.sandbox_dir(&id);
    table.run_attempts(&server, &id, "the worker", other_processes::worker_file_attempts(home.to_str().unwrap())).await;
    if user.is_some_and(|(_, ids)| ids == SubordinateIds::Unassigned) {
        other_processes::check_ignored_signals(&server, &mut table, &id).await;
    } else {
        table.run_attempts(&server, &id, "the worker", other_processes::signal_attempts()).await;
    }
    assert!(worker.is_none_or(|worker| worker.is_alive()), "the worker died");

    let neighbours = list_leaf_processes(&other, "agent");
    let neighbour = neighbours.iter().find(|process| process.read_proc_file("cmdline").contains("atoll-neighbour"));
    if neighbour.is_none() {
        let why = "without cgroups the process cannot be identified";
        table.record_skipped("processes of the host", "signal a process of another sandbox", why);
    }
    let pids = other_processes::host_pid_attempts(server.process.pid(), neighbour.map(|process| process.pid));
    table.run_attempts(&server, &id, "processes of the host", pids).await;
    let home = server.sandbox_dir(&other);
    let rows = other_processes::neighbour_attempts(&other, home.to_str().unwrap());
    table.run_attempts(&server, &id, "another sandbox", rows).await;
    outgoing_data::run_secret_attempts(&server, &mut table, &id, &secret).await;
    stored_secrets::run_stored_secret_attempts(&server, &mut table).await;
    bomb_attempts::run_bomb_attempts(&server, &mut table).await;
    shared_limits::run_shared_limit_attempts(&server, &mut table).await;
    copied_files::run_stream_attempts(&mut table, &id);
    copied_files::run_tree_attempts(&server, &mut table, &id).await;
    outgoing_data::run_swap_attempts(&server, &mut table, Path::new(&targets.canary), user.map(|(user, _)| user)).await;
    outgoing_data::check_orphans(&server, &mut table).await;
    table.print_and_check(min_attempts);
    server.stop_and_check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_escapes_a_sandbox() {
    run_all_attempts(None, 180).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_escapes_an_unprivileged_users_sandbox() {
    run_all_attempts(Some((61_243, SubordinateIds::Unassigned)), 150).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_attempt_escapes_a_sandbox_with_subordinate_ids() {
    run_all_attempts(Some((61_244, SubordinateIds::Range)), 150).await;
}
