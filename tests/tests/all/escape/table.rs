//! The table of attempts: each is made inside, where it must be refused for the reason that is named, and where it is
//! known to succeed, so that no line holds for the wrong reason.

use atoll_tests::local::{Ground, directory, is_root};
use serde_json::json;
use std::fmt::Write as _;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Somebody without any privilege.
pub const NOBODY: u32 = 61_237;

/// Where the program of the attempts stands inside.
pub const CALLS_INSIDE: &str = "/tmp/calls";

/// `try COMMAND…` says in one line how it went; `calls …` makes an attempt of `calls.c`.
const WORDS: &str = r#"
try() { if said=$("$@" 2>&1); then echo "DONE $said"; else echo "REFUSED $said"; fi; }
calls() { "$CALLS" "$@"; }
"#;

/// How it is known that an attempt can succeed.
#[derive(Debug, Clone)]
pub enum Proof {
    /// The same on the host.
    Host,
    /// The same on the host, for an ordinary user.
    Ordinary,
    /// The same on the host in namespaces of its own, by these flags of unshare, after this script.
    Apart(&'static str, &'static str),
    /// The same on the host in a network of its own, in which this address is served.
    Served(&'static str, u16),
    /// On the host the kernel itself answers, with one of these words or by doing it.
    Asked(&'static [&'static str]),
    /// The same in another sandbox.
    In(String),
}

impl Proof {
    fn named(&self) -> String {
        match self {
            Self::Host => "on the host".into(),
            Self::Ordinary => "on the host, for an ordinary user".into(),
            Self::Apart(flags, _) => format!("on the host, apart ({flags})"),
            Self::Served(host, port) => format!("on the host, in a network with {host} port {port}"),
            Self::Asked(_) => "on the host the kernel answers".into(),
            Self::In(_) => "in another sandbox".into(),
        }
    }
}

/// One line: an attempt, its refusal, and its proof.
#[derive(Debug, Clone)]
pub struct Row {
    pub what: String,
    /// A shell script that says DONE or REFUSED.
    pub script: String,
    /// Inside it is refused with one of these words.
    pub refused: &'static [&'static str],
    pub proof: Proof,
    /// What is tried for the proof, where it must have other words for the same thing.
    pub elsewhere: Option<String>,
    /// Not every machine has it: these words where it should succeed mean that there is nothing to be refused.
    pub lacking: &'static [&'static str],
}

pub fn row(what: impl Into<String>, script: impl Into<String>, refused: &'static [&'static str], proof: Proof) -> Row {
    Row { what: what.into(), script: script.into(), refused, proof, elsewhere: None, lacking: &[] }
}

impl Row {
    pub fn elsewhere(self, script: impl Into<String>) -> Self {
        Self { elsewhere: Some(script.into()), ..self }
    }

    pub fn lacking(self, words: &'static [&'static str]) -> Self {
        Self { lacking: words, ..self }
    }
}

#[derive(Debug)]
enum Verdict {
    Refused,
    Skipped(String),
    /// It got through, or was refused for another reason, or could never have succeeded.
    Broken(String),
}

#[derive(Debug)]
struct Line {
    group: &'static str,
    what: String,
    inside: String,
    proof: String,
    verdict: Verdict,
}

pub struct Table {
    whose: &'static str,
    lines: Vec<Line>,
    /// The program of the attempts, on the host.
    calls: PathBuf,
    dir: TempDir,
}

/// Builds the program of the attempts; why not, where there is no compiler.
fn build(dir: &Path) -> Result<PathBuf, String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/escape/calls.c");
    let calls = dir.join("calls");
    let mut command = Command::new("cc");
    command.args(["-O1", "-o"]).arg(&calls).arg(source).arg("-lutil");
    let output = command.output().map_err(|error| format!("there is no C compiler: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(calls) } else { Err(format!("the attempts do not compile here: {said}")) }
}

/// The line in which a script says how it went.
fn outcome(text: &str) -> String {
    let known = ["DONE", "REFUSED", "UNTRIED"];
    let found = text.lines().find(|line| known.iter().any(|word| line.starts_with(word)));
    found.map_or_else(|| format!("UNTRIED {text:?}"), |line| line.trim().to_owned())
}

fn has_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

impl Table {
    pub fn new(whose: &'static str) -> Result<Self, String> {
        let dir = directory("atoll-escape-");
        // Whoever tries must be able to come here.
        std::fs::set_permissions(dir.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Ok(Self { whose, lines: Vec::new(), calls: build(dir.path())?, dir })
    }

    /// A directory of the host that nobody shows to a sandbox.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn calls(&self) -> &Path {
        &self.calls
    }

    /// Puts the program of the attempts into a sandbox, by its input.
    pub async fn equip(&self, ground: &Ground, id: &str) {
        let text: String = std::fs::read(&self.calls).unwrap().iter().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").unwrap();
            text
        });
        let unpack = format!("perl -ne 'print pack(\"H*\", $_)' > {CALLS_INSIDE} && chmod 755 {CALLS_INSIDE}");
        ground.exec(id, json!({ "shell": unpack, "stdin": text })).await.well();
    }

    async fn inside(ground: &Ground, id: &str, script: &str) -> String {
        let body = json!({ "shell": format!("{WORDS}\ncd /tmp\n{script}"), "env": { "CALLS": CALLS_INSIDE },
            "timeout_s": 120 });
        let ran = ground.exec(id, body).await;
        if ran.stdout.is_empty() && ran.exit == json!({ "kind": "signalled", "signal": 9 }) {
            return "REFUSED SIGKILL, and all around it".to_owned();
        }
        outcome(&format!("{}\n{}{}", ran.stdout, ran.stderr, ran.exit))
    }

    fn outside(&self, proof: &Proof, script: &str) -> String {
        let place = tempfile::Builder::new().prefix("try-").tempdir_in(self.dir.path()).unwrap();
        std::fs::set_permissions(place.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let mut command = match proof {
            Proof::Apart(flags, _) => {
                let mut command = Command::new("unshare");
                command.args(flags.split(' ')).arg("sh");
                command
            }
            Proof::Served(host, port) => {
                let mut command = Command::new(&self.calls);
                command.args(["with-address", host, &port.to_string(), "sh"]);
                command
            }
            _ => Command::new("sh"),
        };
        let before = if let Proof::Apart(_, before) = proof { before } else { "" };
        command.arg("-c").arg(format!("{WORDS}\n{before}\n{script}")).env("CALLS", &self.calls);
        if let (Proof::Ordinary, true) = (proof, is_root()) {
            command.uid(NOBODY).gid(NOBODY);
        }
        let output = command.current_dir(place.path()).stdin(Stdio::null()).output().unwrap();
        outcome(&format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr)))
    }

    /// Tries one of them, here and there.
    pub async fn attempt(&mut self, ground: &Ground, id: &str, group: &'static str, row: Row) {
        let inside = Self::inside(ground, id, &row.script).await;
        let script = row.elsewhere.as_ref().unwrap_or(&row.script);
        let elsewhere = match &row.proof {
            Proof::In(other) => Self::inside(ground, other, script).await,
            proof => self.outside(proof, script),
        };
        let proven = match &row.proof {
            Proof::Asked(words) => elsewhere.starts_with("DONE") || has_any(&elsewhere, words),
            _ => elsewhere.starts_with("DONE"),
        };
        let refused = inside.starts_with("REFUSED") && has_any(&inside, row.refused);
        let verdict = if !refused {
            Verdict::Broken(format!("not refused with {:?}", row.refused))
        } else if proven {
            Verdict::Refused
        } else if has_any(&elsewhere, row.lacking) || !is_root() {
            Verdict::Skipped(format!("nor does it work elsewhere: {elsewhere}"))
        } else {
            Verdict::Broken(format!("it should work {}: {elsewhere}", row.proof.named()))
        };
        let proof = row.proof.named();
        self.lines.push(Line { group, what: row.what, inside, proof, verdict });
    }

    pub async fn attempts(&mut self, ground: &Ground, id: &str, group: &'static str, rows: Vec<Row>) {
        for row in rows {
            self.attempt(ground, id, group, row).await;
        }
    }

    /// A line that the test has tried by itself.
    pub fn held(&mut self, group: &'static str, what: &str, inside: String, proof: &str) {
        let (what, proof) = (what.to_owned(), proof.to_owned());
        self.lines.push(Line { group, what, inside, proof, verdict: Verdict::Refused });
    }

    pub fn skipped(&mut self, group: &'static str, what: &str, why: &str) {
        let what = what.to_owned();
        let verdict = Verdict::Skipped(why.to_owned());
        self.lines.push(Line { group, what, inside: String::new(), proof: String::new(), verdict });
    }

    /// Shows all of it, and fails if anything got through.
    pub fn close(self, least: usize) {
        let count = |wanted: fn(&Verdict) -> bool| self.lines.iter().filter(|line| wanted(&line.verdict)).count();
        let refused = count(|verdict| matches!(verdict, Verdict::Refused));
        let skipped = count(|verdict| matches!(verdict, Verdict::Skipped(_)));
        let broken = count(|verdict| matches!(verdict, Verdict::Broken(_)));
        let mut text = format!("{}\n", self.whose);
        let mut group = "";
        for line in &self.lines {
            if line.group != group {
                group = line.group;
                writeln!(text, "{group}").unwrap();
            }
            let (what, inside): (&str, String) = (&line.what, line.inside.chars().take(60).collect());
            match &line.verdict {
                Verdict::Refused => writeln!(text, "  ok       {what}: {inside}; works {}", line.proof),
                Verdict::Skipped(why) => writeln!(text, "  skipped: {what}: {why}"),
                Verdict::Broken(why) => writeln!(text, "  BROKEN   {what}: {}: {why}", line.inside),
            }
            .unwrap();
        }
        writeln!(text, "{refused} attempts refused, {skipped} skipped, {broken} broken").unwrap();
        drop(std::io::Write::write_all(&mut std::io::stderr().lock(), text.as_bytes()));
        assert_eq!(broken, 0, "{text}");
        assert!(refused >= least || !is_root(), "fewer than {least} were proven: {text}");
    }
}
