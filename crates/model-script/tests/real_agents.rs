//! The real agent programs, driven by the scripted model: outside a sandbox, each in a home of its own.
//! `scripts/agents` installs them; without them these tests are skipped, unless `ATOLL_TEST_AGENTS` is set.

use anyhow::{Context, Result, bail, ensure};
use atoll_model_script::{Listen, Outcome, Request, ScriptedModel, Scripts};
use serde_json::Value;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;

const SCRIPTS: &str = r#"
scripts:
  - name: basic
    steps:
      - think: What is there to do?
      - say: I make a file.
      - write: {file: notes/hello.txt, content: "hello\nworld\n"}
      - edit: {file: notes/hello.txt, old: hello, new: goodbye}
      - usage: {input: 1234, output: 56, cache_read: 789}
      - run: cat notes/hello.txt && echo ran > ran.txt
      - expect: {text: "goodbye", new: true}
      - say: All is done.
  - name: trouble
    steps:
      - fail: {status: 429, retry_after: 1}
      - say: I begin.
      - parallel: [{run: echo one}, {run: echo two}]
      - expect: {text: one, new: true}
      - expect: {text: two, new: true}
      - slow: {pieces: ["The ", "first ", "turn."], pause: 0.05}
      - end
      - expect: {text: and more, new: true}
      - run: echo three
      - say: The second turn.
  - name: cut
    steps:
      - cut: 4
      - say: I begin.
      - run: echo one
      - expect: {text: one, new: true}
      - say: It went on.
  - name: plan
    steps:
      - plan: [look, write]
      - say: There is a plan.
  - name: endless
    steps:
      - slow: {pieces: [and, on, and, on], pause: 60}
"#;

const LONGEST: Duration = Duration::from_secs(120);

/// An agent with a model, a home and a directory to work in.
struct Stage {
    model: ScriptedModel,
    place: tempfile::TempDir,
    program: PathBuf,
}

impl Stage {
    /// Nothing where the agent is not installed: the test is skipped, by name.
    async fn set(agent: &str, test: &str) -> Result<Option<Self>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("the workspace")?;
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let program = root.join(target).join("agents/bin").join(agent);
        if !program.exists() {
            let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
            ensure!(!required, "{} is missing: run scripts/agents", program.display());
            let line = format!("skipped: {test}: {} is missing; scripts/agents installs it\n", program.display());
            // Not by `eprint!`, which the test runner keeps back when a test passes.
            drop(std::io::stderr().write_all(line.as_bytes()));
            return Ok(None);
        }
        let place = tempfile::tempdir()?;
        std::fs::create_dir_all(place.path().join("home"))?;
        std::fs::create_dir_all(place.path().join("work"))?;
        let listen = Listen {
            tcp: Some(([127, 0, 0, 1], 0).into()),
            unix: Some(place.path().join("model.sock")),
            ..Listen::default()
        };
        let model = ScriptedModel::start_on(Scripts::parse(SCRIPTS)?, listen).await?;
        Ok(Some(Self { model, place, program: program.canonicalize()? }))
    }

    fn home(&self) -> PathBuf {
        self.place.path().join("home")
    }

    fn read(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.place.path().join("work").join(file)).with_context(|| format!("{file} is missing"))
    }

    fn write_home(&self, file: &str, content: &str) -> Result<()> {
        let path = self.home().join(file);
        std::fs::create_dir_all(path.parent().context("a file in the home")?)?;
        Ok(std::fs::write(path, content)?)
    }

    /// The program with nothing of this process's environment, so that no key and no setting of the machine's gets in.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("HOME", self.home()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.current_dir(self.place.path().join("work"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    fn claude(&self) -> Command {
        let mut command = self.command();
        command.env("CLAUDE_CONFIG_DIR", self.home().join(".claude"));
        command.env("ANTHROPIC_BASE_URL", self.model.base_url()).env("ANTHROPIC_API_KEY", "sk-ant-scripted");
        for quiet in [
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "DISABLE_TELEMETRY",
            "DISABLE_ERROR_REPORTING",
            "DISABLE_AUTOUPDATER",
            "DISABLE_UPDATES",
        ] {
            command.env(quiet, "1");
        }
        command.args(["--output-format", "stream-json", "--verbose", "--model", "claude-sonnet-4-5"]);
        command.args(["--permission-mode", "acceptEdits", "--allowedTools", "Bash"]);
        command
    }

    fn codex(&self) -> Result<Command> {
        // A known name of a model: others are not offered the tool for patches.
        let settings = format!(
            "model = \"gpt-5.5\"\nmodel_provider = \"scripted\"\napproval_policy = \"never\"\n\
             sandbox_mode = \"danger-full-access\"\ncheck_for_update_on_startup = false\n\
             [features]\nplugins = false\n[analytics]\nenabled = false\n\
             [model_providers.scripted]\nname = \"scripted\"\nbase_url = \"{}/v1\"\nenv_key = \"SCRIPTED_KEY\"\n\
             wire_api = \"responses\"\nrequest_max_retries = 2\nstream_max_retries = 2\n",
            self.model.base_url()
        );
        self.write_home(".codex/config.toml", &settings)?;
        let mut command = self.command();
        command.env("CODEX_HOME", self.home().join(".codex")).env("SCRIPTED_KEY", "sk-scripted");
        command.args(["exec", "--json", "--skip-git-repo-check"]);
        Ok(command)
    }

    /// All requests that a script answered.
    fn played(&self) -> Vec<Arc<Request>> {
        self.model.requests().into_iter().filter(|request| request.script.is_some()).collect()
    }

    /// What every agent must have done with the script `basic`, request by request.
    fn check_basic(&self, done: &Output) -> Result<()> {
        let shown = String::from_utf8_lossy(&done.stdout);
        ensure!(self.read("notes/hello.txt")? == "goodbye\nworld\n", "the edit is not there: {shown}");
        ensure!(self.read("ran.txt")? == "ran\n");
        ensure!(shown.contains("All is done."), "{shown}");
        let played = self.played();
        let positions: Vec<_> = played.iter().map(|request| request.position).collect();
        ensure!(positions == [0, 1, 2, 3], "{positions:?}");
        for request in played {
            ensure!(request.problem.is_none() && request.outcome == Outcome::Answered, "{:?}", request.problem);
        }
        Ok(())
    }

    fn check_no_problem(&self) -> Result<()> {
        match self.played().iter().find_map(|request| request.problem.clone()) {
            Some(problem) => bail!("{problem}"),
            None => Ok(()),
        }
    }
}

async fn run(mut command: Command) -> Result<Output> {
    let done = tokio::time::timeout(LONGEST, command.output()).await.context("it takes too long")??;
    let (output, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "it ended with {}: {output}\n{errors}", done.status);
    Ok(done)
}

#[tokio::test]
async fn claude_writes_edits_runs_and_finishes() -> Result<()> {
    let Some(stage) = Stage::set("claude", "claude_writes_edits_runs_and_finishes").await? else { return Ok(()) };
    let mut command = stage.claude();
    command.args(["-p", "please #script:basic"]);
    let done = run(command).await?;
    stage.check_basic(&done)?;
    let first = &stage.played()[0];
    assert_eq!(first.headers["x-api-key"], "sk-ant-scripted");
    assert!(!first.session.is_empty());
    let last = String::from_utf8_lossy(&done.stdout).lines().last().unwrap_or_default().to_owned();
    let result: Value = serde_json::from_str(&last)?;
    assert_eq!((&result["type"], &result["is_error"]), (&"result".into(), &false.into()));
    assert_eq!(result["usage"]["cache_read_input_tokens"], 789);
    Ok(())
}

#[tokio::test]
async fn claude_goes_by_a_socket_file() -> Result<()> {
    let Some(stage) = Stage::set("claude", "claude_goes_by_a_socket_file").await? else { return Ok(()) };
    let mut command = stage.claude();
    let socket = stage.model.unix().context("a socket file")?;
    command.env("ANTHROPIC_UNIX_SOCKET", socket).env("ANTHROPIC_BASE_URL", "http://model.invalid");
    command.args(["-p", "please #script:basic"]);
    stage.check_basic(&run(command).await?)
}

#[tokio::test]
async fn claude_comes_through_trouble_and_goes_on() -> Result<()> {
    let Some(stage) = Stage::set("claude", "claude_comes_through_trouble_and_goes_on").await? else { return Ok(()) };
    let session = "5d4b1f5e-9a34-4c53-8f0b-0d9c36a1b001";
    let mut command = stage.claude();
    command.args(["--session-id", session, "-p", "please #script:trouble"]);
    let first = run(command).await?;
    assert!(String::from_utf8_lossy(&first.stdout).contains("The first turn."));
    let mut command = stage.claude();
    command.args(["--resume", session, "-p", "and more"]);
    let second = run(command).await?;
    assert!(String::from_utf8_lossy(&second.stdout).contains("The second turn."));
    stage.check_no_problem()?;
    let played = stage.played();
    let seen: Vec<_> = played.iter().map(|request| (request.position, request.outcome)).collect();
    use Outcome::{Answered, Refused};
    assert_eq!(seen, [(0, Refused), (0, Answered), (1, Answered), (2, Answered), (3, Answered)]);
    assert!(played.iter().all(|request| request.session == session));
    Ok(())
}

#[tokio::test]
async fn claude_asks_again_after_a_cut_and_makes_a_plan() -> Result<()> {
    let Some(stage) = Stage::set("claude", "claude_asks_again_after_a_cut_and_makes_a_plan").await? else {
        return Ok(());
    };
    for (script, end) in [("cut", "It went on."), ("plan", "There is a plan.")] {
        let mut command = stage.claude();
        command.args(["-p", &format!("please #script:{script}")]);
        let done = run(command).await?;
        assert!(String::from_utf8_lossy(&done.stdout).contains(end), "{script}");
    }
    stage.check_no_problem()?;
    assert_eq!(stage.played()[0].outcome, Outcome::Cut);
    assert!(stage.played().iter().any(|request| request.mentions("Task #2 created successfully: write")));
    Ok(())
}

#[tokio::test]
async fn an_agent_that_is_ended_is_seen_to_leave() -> Result<()> {
    let Some(stage) = Stage::set("claude", "an_agent_that_is_ended_is_seen_to_leave").await? else { return Ok(()) };
    let mut command = stage.claude();
    command.args(["-p", "please #script:endless"]);
    let mut child = command.spawn()?;
    let asked = stage.model.wait_for(|request| request.script.as_deref() == Some("endless"), LONGEST).await;
    assert_eq!(asked.context("it never asked")?.outcome, Outcome::Answering);
    child.kill().await?;
    let left = stage.model.wait_for(|request| request.outcome == Outcome::Disconnected, LONGEST).await;
    assert!(left.context("nobody noticed")?.ended_at.is_some());
    Ok(())
}

#[tokio::test]
async fn codex_writes_edits_runs_and_finishes() -> Result<()> {
    let Some(stage) = Stage::set("codex", "codex_writes_edits_runs_and_finishes").await? else { return Ok(()) };
    let mut command = stage.codex()?;
    command.arg("please #script:basic");
    let done = run(command).await?;
    stage.check_basic(&done)?;
    assert_eq!(stage.played()[0].headers["authorization"], "Bearer sk-scripted");
    // The patches are patches to it, not commands.
    assert!(String::from_utf8_lossy(&done.stdout).contains("\"type\":\"file_change\""));
    Ok(())
}

#[tokio::test]
async fn codex_comes_through_trouble_and_goes_on() -> Result<()> {
    let Some(stage) = Stage::set("codex", "codex_comes_through_trouble_and_goes_on").await? else { return Ok(()) };
    let mut command = stage.codex()?;
    command.arg("please #script:trouble");
    let first = run(command).await?;
    let first = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(first.contains("The first turn."), "{first}");
    let started: Value = serde_json::from_str(first.lines().next().context("no line")?)?;
    let mut command = stage.codex()?;
    command.args(["resume", started["thread_id"].as_str().context("no thread")?, "and more"]);
    let second = run(command).await?;
    assert!(String::from_utf8_lossy(&second.stdout).contains("The second turn."));
    let mut command = stage.codex()?;
    command.arg("please #script:cut");
    let third = run(command).await?;
    assert!(String::from_utf8_lossy(&third.stdout).contains("It went on."));
    stage.check_no_problem()
}

#[tokio::test]
async fn opencode_writes_edits_runs_and_finishes() -> Result<()> {
    let Some(stage) = Stage::set("opencode", "opencode_writes_edits_runs_and_finishes").await? else { return Ok(()) };
    let provider = serde_json::json!({
        "npm": "@ai-sdk/openai-compatible",
        "options": { "baseURL": format!("{}/v1", stage.model.base_url()), "apiKey": "sk-scripted" },
        "models": { "one": { "limit": { "context": 200_000, "output": 8_000 }, "cost": { "input": 3, "output": 15 } } },
    });
    let settings = serde_json::json!({
        "model": "scripted/one", "small_model": "scripted/one", "autoupdate": false, "share": "disabled",
        "snapshot": false, "lsp": false, "formatter": false, "enabled_providers": ["scripted"],
        "provider": { "scripted": provider }, "permission": { "edit": "allow", "bash": "allow", "webfetch": "deny" },
    });
    let mut command = stage.command();
    command.env("OPENCODE_CONFIG_CONTENT", settings.to_string());
    for directory in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
        command.env(directory, stage.home().join(directory));
    }
    for quiet in ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "EXTERNAL_SKILLS"] {
        command.env(format!("OPENCODE_DISABLE_{quiet}"), "1");
    }
    command.env("OPENCODE_DISABLE_CLAUDE_CODE", "1");
    command.args(["run", "--format", "json", "please #script:basic"]);
    let done = run(command).await?;
    stage.check_basic(&done)?;
    // Its side question for a title has no tools and no script.
    assert!(stage.model.requests().iter().any(|request| request.script.is_none()));
    assert!(String::from_utf8_lossy(&done.stdout).contains("\"cache\":{\"write\":0,\"read\":789}"));
    Ok(())
}

#[tokio::test]
async fn gemini_writes_edits_runs_and_finishes() -> Result<()> {
    let Some(stage) = Stage::set("gemini", "gemini_writes_edits_runs_and_finishes").await? else { return Ok(()) };
    let settings = serde_json::json!({
        "security": { "auth": { "selectedType": "gemini-api-key" } },
        "general": { "disableAutoUpdate": true, "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false }, "telemetry": { "enabled": false },
    });
    stage.write_home(".gemini/settings.json", &settings.to_string())?;
    let mut command = stage.command();
    command.env("GEMINI_API_KEY", "sk-scripted").env("GOOGLE_GEMINI_BASE_URL", stage.model.base_url());
    command.env("GEMINI_CLI_TRUST_WORKSPACE", "true");
    command.args([
        "-m",
        "gemini-2.5-pro",
        "-o",
        "stream-json",
        "--approval-mode",
        "yolo",
        "-p",
        "please #script:basic",
    ]);
    stage.check_basic(&run(command).await?)?;
    assert_eq!(stage.played()[0].headers["x-goog-api-key"], "sk-scripted");
    Ok(())
}
