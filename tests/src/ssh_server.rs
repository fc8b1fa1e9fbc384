//! A real sshd on the loopback interface that runs git commands for one key.

use atoll_test_wait::wait_until;
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Gives sshd its directory and its user, in a mount namespace of its own: root needs both.
const START_AS_ROOT: &str = r#"
set -e
mount --bind "$1/passwd" /etc/passwd
mount -t tmpfs none /run
mkdir /run/sshd
shift
exec "$@"
"#;

/// Serves the repositories below a directory, as a forge does: `git-upload-pack '/octo/hello.git'`.
const SERVE_BELOW: &str = r#"
program=${SSH_ORIGINAL_COMMAND%% *}
path=${SSH_ORIGINAL_COMMAND#*\'}
case $program in
git-upload-pack | git-receive-pack) exec "$program" "$1${path%\'}" ;;
git-lfs-authenticate) exec cat "$1/large-file-access" ;;
esac
exit 1
"#;

/// A server that ends with this value.
pub struct SshServer {
    directory: tempfile::TempDir,
    port: u16,
    user: String,
    process: Child,
}

impl SshServer {
    /// Starts sshd; `None` if the machine has none (`scripts/sshd` unpacks it).
    pub fn start() -> Option<Self> {
        Self::start_with_command(r#"sh -c \"$SSH_ORIGINAL_COMMAND\""#)
    }

    /// Like `start`, with the repositories below a directory.
    pub fn start_below(root: &Path) -> Option<Self> {
        let script = root.join("serve-below");
        std::fs::write(&script, SERVE_BELOW).unwrap();
        Self::start_with_command(&format!("sh {} {}", script.display(), root.display()))
    }

    fn start_with_command(command: &str) -> Option<Self> {
        let program = find_program()?;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        for name in ["host", "key", "other"] {
            let mut generate = Command::new("ssh-keygen");
            generate.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path.join(name));
            assert!(generate.status().unwrap().success());
        }
        let is_root = rustix::process::geteuid().is_root();
        let user = if is_root { "root".to_owned() } else { std::env::var("USER").ok()? };
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let shown = path.display();
        let settings = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {shown}/host\nAuthorizedKeysFile {shown}/authorized\n\
             UsePAM no\nStrictModes no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin yes\n"
        );
        std::fs::write(path.join("config"), settings).unwrap();
        let key = std::fs::read_to_string(path.join("key.pub")).unwrap();
        std::fs::write(path.join("authorized"), format!("restrict,command=\"{command}\" {key}")).unwrap();
        let passwd = "root:*:0:0:root:/:/bin/sh\nsshd:*:101:65534::/run/sshd:/usr/sbin/nologin\n";
        std::fs::write(path.join("passwd"), passwd).unwrap();
        let host = std::fs::read_to_string(path.join("host.pub")).unwrap();
        std::fs::write(path.join("known_hosts"), format!("[127.0.0.1]:{port} {host}")).unwrap();
        std::fs::write(path.join("no_hosts"), "").unwrap();
        let mut start = if is_root {
            let mut command = Command::new("unshare");
            command.args(["--mount", "sh", "-c", START_AS_ROOT, "sh"]).arg(&path).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        start.args(["-D", "-e", "-f"]).arg(path.join("config")).stdin(Stdio::null());
        start.env("LD_LIBRARY_PATH", library_dir(&program).unwrap_or_default());
        let log = std::fs::File::create(path.join("log")).unwrap();
        let process = start.stdout(Stdio::null()).stderr(log).process_group(0).spawn().ok()?;
        wait_until("sshd listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
        Some(Self { directory, port, user, process })
    }

    /// The URL of a repository's directory.
    pub fn url(&self, repository: &Path) -> String {
        format!("ssh://{}@127.0.0.1:{}{}", self.user, self.port, repository.display())
    }

    /// The private key that the server accepts.
    pub fn key(&self) -> PathBuf {
        self.directory.path().join("key")
    }

    /// A private key that the server refuses.
    pub fn other_key(&self) -> PathBuf {
        self.directory.path().join("other")
    }

    /// A file with the server's host key.
    pub fn known_hosts(&self) -> PathBuf {
        self.directory.path().join("known_hosts")
    }

    /// A file without host keys.
    pub fn empty_known_hosts(&self) -> PathBuf {
        self.directory.path().join("no_hosts")
    }
}

impl Drop for SshServer {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_child(&self.process);
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        drop(self.process.wait());
    }
}

fn find_program() -> Option<PathBuf> {
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|dir| dir.join("target/sshd/usr/sbin/sshd"));
    std::iter::once(PathBuf::from("/usr/sbin/sshd")).chain(unpacked).find(|path| path.exists())
}

/// The libraries of an unpacked sshd.
fn library_dir(program: &Path) -> Option<PathBuf> {
    let libraries = program.parent()?.parent()?.join("lib");
    let mut entries = std::fs::read_dir(libraries).ok()?.flatten().map(|entry| entry.path());
    entries.find(|path| path.to_string_lossy().ends_with("-linux-gnu"))
}
