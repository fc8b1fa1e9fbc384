//! A real git server on the loopback interface: git's own `http-backend` behind a small HTTP server.
//!
//! It can demand a login, and it can answer like a server that fails.

use base64::Engine;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How the server answers, other than with a repository.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// A status, an optional `Location`, and a body.
    Fixed { status: u16, location: Option<String>, body: String },
    /// Accepts requests and sends nothing.
    Silence,
}

impl Answer {
    pub fn status(status: u16) -> Self {
        Self::Fixed { status, location: None, body: String::new() }
    }
}

#[derive(Debug, Default)]
struct ServerState {
    /// User name and password.
    login: Option<(String, String)>,
    answer: Option<Answer>,
    /// Requests whose target contains this text have their effect, but get no response.
    held: Option<String>,
    requests: Vec<String>,
    /// The processes of this machine at each request, with their arguments and variables; `None` if no test reads them.
    processes: Option<String>,
    /// Contents of large files, by their hash.
    large_files: BTreeMap<String, Vec<u8>>,
}

/// A git server with repositories in a temporary directory, and a thread per connection.
pub struct GitServer {
    pub address: SocketAddr,
    root: tempfile::TempDir,
    state: Arc<Mutex<ServerState>>,
}

impl GitServer {
    /// Starts a server without repositories that demands no login.
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (root, state) = (tempfile::tempdir().unwrap(), Arc::<Mutex<ServerState>>::default());
        let (directory, shared) = (root.path().to_owned(), Arc::clone(&state));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (directory, shared) = (directory.clone(), Arc::clone(&shared));
                // A client that is gone is no failure of the test.
                std::thread::spawn(move || drop(serve_connection(stream, &directory, &shared)));
            }
        });
        Self { address, root, state }
    }

    /// The directory with all repositories.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    fn state(&self) -> MutexGuard<'_, ServerState> {
        lock(&self.state)
    }

    /// Demands this user name and password from now on.
    pub fn require_login(&self, user: &str, password: &str) {
        self.state().login = Some((user.to_owned(), password.to_owned()));
    }

    /// Answers all requests in this way from now on; `None` serves the repositories again.
    pub fn answer_with(&self, answer: Option<Answer>) {
        self.state().answer = answer;
    }

    /// Holds the response of each request with this text in its method and target, after its effect. `None` closes the held
    /// connections.
    pub fn hold_responses(&self, text: Option<&str>) {
        self.state().held = text.map(str::to_owned);
    }

    /// Records the processes of this machine at each request from now on.
    pub fn record_processes(&self) {
        self.state().processes = Some(String::new());
    }

    /// Arguments and variables of the recorded processes.
    pub fn recorded_processes(&self) -> String {
        self.state().processes.clone().unwrap_or_default()
    }

    /// Each request: its method, its path with the query, and the status.
    pub fn requests(&self) -> Vec<String> {
        self.state().requests.clone()
    }

    /// The number of requests that transferred objects to a client.
    pub fn fetch_count(&self) -> usize {
        self.requests()
            .iter()
            .filter(|request| request.starts_with("POST") && request.contains("git-upload-pack"))
            .count()
    }

    pub fn url(&self, name: &str) -> String {
        format!("http://{}/{name}.git", self.address)
    }

    pub fn file_url(&self, name: &str) -> String {
        format!("file://{}", self.path(name).display())
    }

    /// The bare repository of a name.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(format!("{name}.git"))
    }

    /// Creates an empty bare repository that accepts pushes.
    pub fn create_empty(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        git(&path, ["init", "-q", "--bare", "-b", "main"]);
        git(&path, ["config", "http.receivepack", "true"]);
        git(&path, ["config", "uploadpack.allowFilter", "true"]);
        path
    }

    /// Creates a bare repository with two commits on `main`.
    pub fn create_repository(&self, name: &str) -> PathBuf {
        let path = self.create_empty(name);
        self.commit(name, "main", "README.md", "first\n");
        self.commit(name, "main", "src/code.rs", "fn main() {}\n");
        path
    }

    /// Adds a file to the large-file storage of all repositories, and returns its pointer.
    pub fn add_large_file(&self, content: &[u8]) -> String {
        let oid: String = Sha256::digest(content).iter().map(|byte| format!("{byte:02x}")).collect();
        let pointer = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {}\n", content.len());
        self.state().large_files.insert(oid, content.to_vec());
        pointer
    }

    /// Empties the large-file storage.
    pub fn remove_large_files(&self) {
        self.state().large_files.clear();
    }

    /// Adds a submodule to `main`, or moves it to a commit.
    pub fn commit_submodule(&self, name: &str, path: &str, url: &str, commit: &str) -> String {
        let modules = format!("[submodule \"{path}\"]\n\tpath = {path}\n\turl = {url}\n");
        self.commit(name, "main", ".gitmodules", &modules);
        let bare = self.path(name);
        let index = tempfile::tempdir_in(self.root.path()).unwrap();
        let run = |arguments: &[&str]| {
            let output = plain_git(&bare).env("GIT_INDEX_FILE", index.path().join("index")).args(arguments).output();
            let output = output.unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
        };
        run(&["read-tree", "main"]);
        run(&["update-index", "--add", "--cacheinfo", &format!("160000,{commit},{path}")]);
        let tree = run(&["write-tree"]);
        let head = run(&["commit-tree", "-p", "main", "-m", "submodule", &tree]);
        run(&["update-ref", "refs/heads/main", &head]);
        head
    }

    /// Commits one file to a branch, which begins at `main`, and returns the commit.
    pub fn commit(&self, name: &str, branch: &str, file: &str, text: &str) -> String {
        let bare = self.path(name);
        let work = tempfile::tempdir_in(self.root.path()).unwrap();
        git(work.path(), ["init", "-q", "-b", "work"]);
        let remote = bare.to_str().unwrap();
        for start in [branch, "main"] {
            if try_git(work.path(), ["fetch", "-q", remote, start]).0 {
                git(work.path(), ["reset", "-q", "--hard", "FETCH_HEAD"]);
                break;
            }
        }
        let path = work.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        git(work.path(), ["add", "-A"]);
        git(work.path(), ["commit", "-q", "--allow-empty", "-m", &format!("change {file}")]);
        git(work.path(), ["push", "-q", remote, &format!("HEAD:refs/heads/{branch}")]);
        git(work.path(), ["rev-parse", "HEAD"])
    }

    /// The commit of a branch in the server's repository.
    pub fn branch(&self, name: &str, branch: &str) -> Option<String> {
        let (found, text) = try_git(&self.path(name), ["rev-parse", "-q", "--verify", &format!("refs/heads/{branch}")]);
        found.then_some(text)
    }

    /// Writes an executable hook into a repository.
    pub fn write_hook(&self, name: &str, hook: &str, script: &str) {
        use std::os::unix::fs::PermissionsExt;
        let path = self.path(name).join("hooks").join(hook);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, script).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
}

fn lock(state: &Mutex<ServerState>) -> MutexGuard<'_, ServerState> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

fn plain_git(directory: &Path) -> Command {
    let mut command = Command::new("git");
    command.current_dir(directory).env_clear().env("PATH", std::env::var_os("PATH").unwrap());
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("HOME", "/nonexistent")]);
    command.envs([("GIT_AUTHOR_NAME", "Ann"), ("GIT_AUTHOR_EMAIL", "ann@example.org")]);
    command.envs([("GIT_COMMITTER_NAME", "Ann"), ("GIT_COMMITTER_EMAIL", "ann@example.org")]);
    command.envs([("GIT_CONFIG_COUNT", "1"), ("GIT_CONFIG_KEY_0", "safe.directory"), ("GIT_CONFIG_VALUE_0", "*")]);
    command
}

/// Runs plain git, and returns its success and its output.
pub fn try_git<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> (bool, String) {
    let output = plain_git(directory).args(arguments).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

/// Runs plain git, which must succeed.
pub fn git<S: AsRef<OsStr>>(directory: &Path, arguments: impl IntoIterator<Item = S>) -> String {
    let output = plain_git(directory).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

struct HttpRequest {
    method: String,
    target: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

/// Answers one request, and closes the connection.
fn serve_connection(mut stream: TcpStream, root: &Path, state: &Mutex<ServerState>) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let Some(request) = read_request(&mut reader)? else { return Ok(()) };
    let (login, answer) = {
        let state = lock(state);
        (state.login.clone(), state.answer.clone())
    };
    if lock(state).processes.is_some() {
        // The client waits for the response, so its processes are alive.
        let found = describe_processes();
        lock(state).processes.get_or_insert_default().push_str(&found);
    }
    let is_allowed = login.as_ref().is_none_or(|(user, password)| {
        let expected = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        request.headers.get("authorization") == Some(&format!("Basic {expected}"))
    });
    let response = match answer {
        Some(Answer::Silence) => {
            record(state, &request, 0);
            // Until the client gives up.
            stream.set_read_timeout(Some(Duration::from_secs(120)))?;
            drop(reader.read_to_end(&mut Vec::new()));
            return Ok(());
        }
        Some(Answer::Fixed { status, location, body }) => {
            let location = location.map(|to| format!("Location: {to}\r\n")).unwrap_or_default();
            (status, format!("Content-Type: text/html\r\n{location}"), body.into_bytes())
        }
        None if !is_allowed => (401, "WWW-Authenticate: Basic realm=\"git\"\r\n".to_owned(), Vec::new()),
        None if request.target.contains("/info/lfs/") => list_large_files(&request, state),
        None if request.target.starts_with(LARGE_FILES) => send_large_file(&request, state),
        None => run_backend(&request, root, login.as_ref().map(|(user, _)| user.as_str()))?,
    };
    let (status, headers, body) = response;
    record(state, &request, status);
    let line = format!("{} {}", request.method, request.target);
    if lock(state).held.as_ref().is_some_and(|text| line.contains(text)) {
        stream.set_read_timeout(Some(Duration::from_millis(50)))?;
        while lock(state).held.is_some() && !matches!(reader.read(&mut [0]), Ok(0)) {}
        return Ok(());
    }
    write!(stream, "HTTP/1.1 {status} x\r\n{headers}Content-Length: {}\r\nConnection: close\r\n\r\n", body.len())?;
    stream.write_all(&body)?;
    stream.flush()
}

fn record(state: &Mutex<ServerState>, request: &HttpRequest, status: u16) {
    lock(state).requests.push(format!("{} {} {status}", request.method, request.target));
}

/// Arguments of all processes, and variables of all but Atoll's server and the program that starts it, whose variables have
/// the configuration.
fn describe_processes() -> String {
    let mut text = String::new();
    for process in std::fs::read_dir("/proc").unwrap().flatten() {
        let read = |name: &str| std::fs::read(process.path().join(name)).unwrap_or_default();
        let mut shown = read("cmdline");
        if !shown.split(|byte| *byte == 0).any(|word| word.ends_with(b"/atoll")) {
            shown.extend(read("environ"));
        }
        text.push_str(&String::from_utf8_lossy(&shown).replace('\0', " "));
        text.push('\n');
    }
    text
}

fn read_request(reader: &mut impl BufRead) -> std::io::Result<Option<HttpRequest>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default().to_owned());
    let mut headers = BTreeMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let body = if headers.get("transfer-encoding").is_some_and(|encoding| encoding == "chunked") {
        read_chunks(reader)?
    } else {
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        body
    };
    Ok(Some(HttpRequest { method, target, headers, body }))
}

fn read_chunks(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).unwrap_or(0);
        let mut chunk = vec![0; size + 2];
        reader.read_exact(&mut chunk)?;
        if size == 0 {
            return Ok(body);
        }
        body.extend_from_slice(&chunk[..size]);
    }
}

/// Path of the contents of large files.
const LARGE_FILES: &str = "/large-files/";

/// Answers a batch request: the server itself has the contents.
fn list_large_files(request: &HttpRequest, state: &Mutex<ServerState>) -> (u16, String, Vec<u8>) {
    let wanted: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let host = request.headers.get("host").cloned().unwrap_or_default();
    let objects = wanted["objects"].as_array().into_iter().flatten().map(|object| {
        let (oid, size) = (object["oid"].as_str().unwrap_or_default(), &object["size"]);
        match lock(state).large_files.contains_key(oid) {
            true => {
                let href = format!("http://{host}{LARGE_FILES}{oid}");
                json!({ "oid": oid, "size": size, "actions": { "download": { "href": href } } })
            }
            false => json!({ "oid": oid, "size": size, "error": { "code": 404, "message": "no such object" } }),
        }
    });
    let body = json!({ "transfer": "basic", "objects": objects.collect::<Vec<_>>() });
    (200, "Content-Type: application/vnd.git-lfs+json\r\n".to_owned(), body.to_string().into_bytes())
}

fn send_large_file(request: &HttpRequest, state: &Mutex<ServerState>) -> (u16, String, Vec<u8>) {
    let content = lock(state).large_files.get(&request.target[LARGE_FILES.len()..]).cloned();
    content.map_or_else(|| (404, String::new(), Vec::new()), |content| (200, String::new(), content))
}

/// Runs `git http-backend` as a CGI program; returns the status, the headers and the body.
fn run_backend(request: &HttpRequest, root: &Path, user: Option<&str>) -> std::io::Result<(u16, String, Vec<u8>)> {
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let header = |name: &str| request.headers.get(name).cloned().unwrap_or_default();
    let mut command = plain_git(root);
    command.arg("http-backend").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    command.env("GIT_PROJECT_ROOT", root).env("GIT_HTTP_EXPORT_ALL", "1");
    command.env("PATH_INFO", path).env("QUERY_STRING", query).env("REQUEST_METHOD", &request.method);
    command.env("CONTENT_TYPE", header("content-type")).env("CONTENT_LENGTH", request.body.len().to_string());
    command.env("HTTP_CONTENT_ENCODING", header("content-encoding")).env("GIT_PROTOCOL", header("git-protocol"));
    command.env("REMOTE_USER", user.unwrap_or("ann")).env("REMOTE_ADDR", "127.0.0.1");
    let mut child = command.spawn()?;
    let (mut stdin, body) = (child.stdin.take().unwrap(), request.body.clone());
    let writer = std::thread::spawn(move || drop(stdin.write_all(&body)));
    let output = child.wait_with_output()?;
    drop(writer.join());
    let end = output.stdout.windows(4).position(|window| window == b"\r\n\r\n").unwrap_or(0);
    let head = String::from_utf8_lossy(&output.stdout[..end]).into_owned();
    let mut status = 200;
    let mut headers = String::new();
    for line in head.lines() {
        match line.strip_prefix("Status: ") {
            Some(text) => status = text.split(' ').next().and_then(|code| code.parse().ok()).unwrap_or(500),
            None => headers.push_str(&format!("{line}\r\n")),
        }
    }
    Ok((status, headers, output.stdout.get(end + 4..).unwrap_or_default().to_vec()))
}
