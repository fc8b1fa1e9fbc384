//! The table of escape attempts. Each attempt runs twice: in the sandbox, where it must fail with the expected error, and
//! where it can succeed, which proves that the attempt itself works.

use atoll_tests::local::{LocalServer, create_temp_dir, is_root};
use serde_json::json;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// A uid of the host without any privilege.
pub const UNPRIVILEGED_UID: u32 = 61_237;

/// Path of the `calls` program in the sandbox.
pub const CALLS_PATH_IN_SANDBOX: &str = "/tmp/calls";

/// `try COMMAND…` prints the outcome as one line; `calls …` makes an attempt of `calls.c`.
const SHELL_FUNCTIONS: &str = r#"
try() { if output=$("$@" 2>&1); then echo "DONE $output"; else echo "REFUSED $output"; fi; }
calls() { "$CALLS" "$@"; }
"#;

/// The place where the same attempt succeeds.
#[derive(Debug, Clone)]
pub enum SuccessProof {
    Host,
    /// On the host, as an unprivileged user.
    AsUnprivilegedUser,
    /// On the host in new namespaces: the flags for unshare(1), and a script to run first.
    InNamespaces(&'static str, &'static str),
    /// On the host in a new network namespace, with a server at this address.
    InNetwork(&'static str, u16),
    /// On the host, where the call succeeds or the kernel returns one of these errors.
    KernelAnswers(&'static [&'static str]),
    /// In the sandbox with this id.
    InSandbox(String),
}

impl SuccessProof {
    fn describe(&self) -> String {
        match self {
            Self::Host => "on the host".into(),
            Self::AsUnprivilegedUser => "on the host, as an unprivileged user".into(),
            Self::InNamespaces(flags, _) => format!("on the host, in new namespaces ({flags})"),
            Self::InNetwork(host, port) => format!("on the host, in a network with a server at {host} port {port}"),
            Self::KernelAnswers(_) => "on the host (the call reaches the kernel)".into(),
            Self::InSandbox(_) => "in another sandbox".into(),
        }
    }
}

/// An attempt, the errors that refuse it, and the proof that it can succeed.
#[derive(Debug, Clone)]
pub struct EscapeAttempt {
    pub name: String,
    /// A shell script that prints DONE or REFUSED.
    pub script: String,
    /// In the sandbox the attempt must fail with one of these errors.
    pub expected_errors: &'static [&'static str],
    pub proof: SuccessProof,
    /// The script for the proof, if it differs from `script`.
    pub proof_script: Option<String>,
    /// Errors of the proof which mean that this machine lacks the feature; the attempt then counts as skipped.
    pub unsupported_errors: &'static [&'static str],
}

pub fn new_attempt(
    name: impl Into<String>,
    script: impl Into<String>,
    refused: &'static [&'static str],
    proof: SuccessProof,
) -> EscapeAttempt {
    EscapeAttempt {
        name: name.into(),
        script: script.into(),
        expected_errors: refused,
        proof,
        proof_script: None,
        unsupported_errors: &[],
    }
}

impl EscapeAttempt {
    pub fn with_proof_script(self, script: impl Into<String>) -> Self {
        Self { proof_script: Some(script.into()), ..self }
    }

    pub fn with_unsupported_errors(self, words: &'static [&'static str]) -> Self {
        Self { unsupported_errors: words, ..self }
    }
}

#[derive(Debug)]
enum AttemptVerdict {
    Refused,
    Skipped(String),
    /// The attempt succeeded, failed with an unexpected error, or has no working proof.
    Broken(String),
}

#[derive(Debug)]
struct AttemptRecord {
    group: &'static str,
    name: String,
    inside: String,
    proof: String,
    outcome: AttemptVerdict,
}

pub struct AttemptTable {
    title: &'static str,
    lines: Vec<AttemptRecord>,
    /// The `calls` program on the host.
    calls: PathBuf,
    dir: TempDir,
}

/// Compiles `calls.c`, or says why it cannot.
fn compile_calls(dir: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/escape/calls.c");
    let calls = dir.join("calls");
    let mut command = Command::new("cc");
    command.args(["-O1", "-o"]).arg(&calls).arg(source).args(["-lutil", "-lrt"]);
    let output = command.output().map_err(|error| format!("no C compiler: {error}"))?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(calls) } else { Err(format!("calls.c does not compile: {stderr}")) }
}

/// The first line of a script's output that states its outcome.
fn find_outcome_line(text: &str) -> String {
    let known = ["DONE", "REFUSED", "UNTRIED"];
    let found = text.lines().find(|line| known.iter().any(|word| line.starts_with(word)));
    found.map_or_else(|| format!("UNTRIED {text:?}"), |line| line.trim().to_owned())
}

fn contains_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

impl AttemptTable {
    pub fn new(title: &'static str) -> Result<Self, String> {
        let dir = create_temp_dir("atoll-escape-");
        // The unprivileged user must be able to enter it.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Ok(Self { title, lines: Vec::new(), calls: compile_calls(dir.path())?, dir })
    }

    /// A directory of the host that no sandbox sees.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn calls_path(&self) -> &Path {
        &self.calls
    }

    /// Copies the `calls` program into a sandbox through stdin.
    pub async fn install_calls(&self, server: &LocalServer, id: &str) {
        let text: String = std::fs::read(&self.calls).unwrap().iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
        let unpack =
            format!("perl -ne 'print pack(\"H*\", $_)' > {CALLS_PATH_IN_SANDBOX} && chmod 755 {CALLS_PATH_IN_SANDBOX}");
        server.run_exec(id, json!({ "shell": unpack, "stdin": text })).await.expect_success();
    }

    async fn run_in_sandbox(server: &LocalServer, id: &str, script: &str) -> String {
        let body = json!({ "shell": format!("{SHELL_FUNCTIONS}\ncd /tmp\n{script}"), "env": { "CALLS": CALLS_PATH_IN_SANDBOX },
            "timeout_s": 120 });
        let ran = server.run_exec(id, body).await;
        if ran.stdout.is_empty() && ran.exit == json!({ "kind": "signalled", "signal": 9 }) {
            return "REFUSED SIGKILL of the whole command".to_owned();
        }
        find_outcome_line(&format!("{}\n{}{}", ran.stdout, ran.stderr, ran.exit))
    }

    fn run_on_host(&self, proof: &SuccessProof, script: &str) -> String {
        let dir = tempfile::Builder::new().prefix("try-").tempdir_in(self.dir.path()).unwrap();
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let mut command = match proof {
            SuccessProof::InNamespaces(flags, _) => {
                let mut command = Command::new("unshare");
                command.args(flags.split(' ')).arg("sh");
                command
            }
            SuccessProof::InNetwork(host, port) => {
                let mut command = Command::new(&self.calls);
                command.args(["with-address", host, &port.to_string(), "sh"]);
                command
            }
            _ => Command::new("sh"),
        };
        let before = if let SuccessProof::InNamespaces(_, before) = proof { before } else { "" };
        command.arg("-c").arg(format!("{SHELL_FUNCTIONS}\n{before}\n{script}")).env("CALLS", &self.calls);
        if let (SuccessProof::AsUnprivilegedUser, true) = (proof, is_root()) {
            command.uid(UNPRIVILEGED_UID).gid(UNPRIVILEGED_UID);
        }
        let output = command.current_dir(dir.path()).stdin(Stdio::null()).output().unwrap();
        find_outcome_line(&format!(
            "{}\n{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        ))
    }

    /// Runs one attempt in the sandbox and its proof, and records the verdict.
    pub async fn run_attempt(&mut self, server: &LocalServer, id: &str, group: &'static str, row: EscapeAttempt) {
        let inside = Self::run_in_sandbox(server, id, &row.script).await;
        let script = row.proof_script.as_ref().unwrap_or(&row.script);
        let proof_result = match &row.proof {
            SuccessProof::InSandbox(other) => Self::run_in_sandbox(server, other, script).await,
            proof => self.run_on_host(proof, script),
        };
        let proven = match &row.proof {
            SuccessProof::KernelAnswers(words) => {
                proof_result.starts_with("DONE") || contains_any(&proof_result, words)
            }
            _ => proof_result.starts_with("DONE"),
        };
        let refused = inside.starts_with("REFUSED") && contains_any(&inside, row.expected_errors);
        let verdict = if !refused {
            AttemptVerdict::Broken(format!("not refused with {:?}", row.expected_errors))
        } else if proven {
            AttemptVerdict::Refused
        } else if contains_any(&proof_result, row.unsupported_errors) || !is_root() {
            AttemptVerdict::Skipped(format!("the proof fails too: {proof_result}"))
        } else {
            AttemptVerdict::Broken(format!("no proof {}: {proof_result}", row.proof.describe()))
        };
        let proof = row.proof.describe();
        self.lines.push(AttemptRecord { group, name: row.name, inside, proof, outcome: verdict });
    }

    pub async fn run_attempts(
        &mut self,
        server: &LocalServer,
        id: &str,
        group: &'static str,
        rows: Vec<EscapeAttempt>,
    ) {
        for row in rows {
            self.run_attempt(server, id, group, row).await;
        }
    }

    /// Records an attempt that the test ran itself.
    pub fn record_refused(&mut self, group: &'static str, name: &str, inside: String, proof: &str) {
        let (name, proof) = (name.to_owned(), proof.to_owned());
        self.lines.push(AttemptRecord { group, name, inside, proof, outcome: AttemptVerdict::Refused });
    }

    /// Records a bomb that the test ran beside a neighbour; it is broken if the neighbour did not keep working.
    pub fn record_bomb(&mut self, group: &'static str, name: &str, inside: String, proof: &str, neighbour_works: bool) {
        let (name, proof) = (name.to_owned(), proof.to_owned());
        let outcome = if neighbour_works { AttemptVerdict::Refused } else { AttemptVerdict::Broken(proof.clone()) };
        self.lines.push(AttemptRecord { group, name, inside, proof, outcome });
    }

    /// Runs `calls` on the host and returns its outcome.
    pub fn run_calls_on_host(&self, arguments: &[&str]) -> String {
        let dir = tempfile::Builder::new().prefix("try-").tempdir_in(self.dir.path()).unwrap();
        let output = Command::new(&self.calls).args(arguments).current_dir(dir.path()).output().unwrap();
        find_outcome_line(&String::from_utf8_lossy(&output.stdout))
    }

    pub fn record_skipped(&mut self, group: &'static str, name: &str, why: &str) {
        let name = name.to_owned();
        let verdict = AttemptVerdict::Skipped(why.to_owned());
        self.lines.push(AttemptRecord { group, name, inside: String::new(), proof: String::new(), outcome: verdict });
    }

    /// Prints the table; panics if an attempt is broken or fewer than `least` were refused.
    pub fn print_and_check(self, least: usize) {
        let count =
            |matches: fn(&AttemptVerdict) -> bool| self.lines.iter().filter(|line| matches(&line.outcome)).count();
        let refused = count(|verdict| matches!(verdict, AttemptVerdict::Refused));
        let skipped = count(|verdict| matches!(verdict, AttemptVerdict::Skipped(_)));
        let broken = count(|verdict| matches!(verdict, AttemptVerdict::Broken(_)));
        let mut text = format!("{}\n", self.title);
        let mut group = "";
        for line in &self.lines {
            if line.group != group {
                group = line.group;
                writeln!(text, "{group}").unwrap();
            }
            let (name, inside): (&str, String) = (&line.name, line.inside.chars().take(60).collect());
            match &line.outcome {
                AttemptVerdict::Refused => writeln!(text, "  ok       {name}: {inside}; succeeds {}", line.proof),
                AttemptVerdict::Skipped(why) => writeln!(text, "  skipped: {name}: {why}"),
                AttemptVerdict::Broken(why) => writeln!(text, "  BROKEN   {name}: {}: {why}", line.inside),
            }
            .unwrap();
        }
        writeln!(text, "{refused} attempts refused, {skipped} skipped, {broken} broken").unwrap();
        drop(std::io::Write::write_all(&mut std::io::stderr().lock(), text.as_bytes()));
        assert_eq!(broken, 0, "{text}");
        assert!(refused >= least || !is_root(), "fewer than {least} attempts were refused: {text}");
    }
}
