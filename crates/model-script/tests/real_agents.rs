//! Drives the real agent programs with the scripted model, outside a sandbox and each in its own home. `scripts/agents`
//! installs them. Tests of missing agents are skipped unless `ATOLL_TEST_AGENTS` is set.

use anyhow::{Context, Result, bail, ensure};
use atoll_model_script::{ListenOptions, RecordedRequest, RequestOutcome, ScriptedModel, Scripts};
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

const AGENT_TIMEOUT: Duration = Duration::from_secs(120);

/// An agent with a scripted model, a home and a working directory.
struct AgentFixture {
    model: ScriptedModel,
    directory: tempfile::TempDir,
    program: PathBuf,
}

impl AgentFixture {
    /// Returns `None` and reports the skip if the agent is not installed.
    async fn start(agent: &str, test: &str) -> Result<Option<Self>> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).context("the workspace")?;
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let program = root.join(target).join("agents/bin").join(agent);
        if !program.exists() {
            let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
            ensure!(!required, "{} is missing: run scripts/agents", program.display());
            let line = format!("skipped: {test}: {} is missing; scripts/agents installs it\n", program.display());
            // Not `eprint!`, which the test runner captures for passing tests.
            drop(std::io::stderr().write_all(line.as_bytes()));
            return Ok(None);
        }
        let directory = tempfile::tempdir()?;
        std::fs::create_dir_all(directory.path().join("home"))?;
        std::fs::create_dir_all(directory.path().join("work"))?;
        let listen = ListenOptions {
            tcp: Some(([127, 0, 0, 1], 0).into()),
            unix_socket: Some(directory.path().join("model.sock")),
            ..ListenOptions::default()
        };
        let model = ScriptedModel::start_with(Scripts::parse(SCRIPTS)?, listen).await?;
        Ok(Some(Self { model, directory, program: program.canonicalize()? }))
    }

    fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    fn read_file(&self, file: &str) -> Result<String> {
        std::fs::read_to_string(self.directory.path().join("work").join(file))
            .with_context(|| format!("{file} is missing"))
    }

    fn write_home(&self, file: &str, content: &str) -> Result<()> {
        let path = self.home().join(file);
        std::fs::create_dir_all(path.parent().context("a file in the home")?)?;
        Ok(std::fs::write(path, content)?)
    }

    /// The agent's command with an empty environment, so that no key or setting of the host leaks in.
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env_clear().env("HOME", self.home()).env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.current_dir(self.directory.path().join("work"));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    fn claude(&self) -> Command {
        let mut command = self.command();
        command.env("CLAUDE_CONFIG_DIR", self.home().join(".claude"));
        command.env("ANTHROPIC_BASE_URL", self.model.base_url()).env("ANTHROPIC_API_KEY", "sk-ant-scripted");
        for variable in [
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC",
            "DISABLE_TELEMETRY",
            "DISABLE_ERROR_REPORTING",
            "DISABLE_AUTOUPDATER",
            "DISABLE_UPDATES",
        ] {
            command.env(variable, "1");
        }
        command.args(["--output-format", "stream-json", "--verbose", "--model", "claude-sonnet-4-5"]);
        command.args(["--permission-mode", "acceptEdits", "--allowedTools", "Bash"]);
        command
    }

    fn codex(&self) -> Result<Command> {
        self.codex_with_model("gpt-5.5")
    }

    /// Codex chooses the tools by the model's name; unknown models do not get the patch tool.
    fn codex_with_model(&self, model: &str) -> Result<Command> {
        let settings = format!(
            "model = \"{model}\"\nmodel_provider = \"scripted\"\napproval_policy = \"never\"\n\
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

    /// All requests with a scripted answer.
    fn scripted_requests(&self) -> Vec<Arc<RecordedRequest>> {
        self.model.requests().into_iter().filter(|request| request.script.is_some()).collect()
    }

    /// Checks each request of the script `basic`.
    fn check_basic(&self, done: &Output) -> Result<()> {
        let stdout = String::from_utf8_lossy(&done.stdout);
        ensure!(self.read_file("notes/hello.txt")? == "goodbye\nworld\n", "the edit is missing: {stdout}");
        ensure!(self.read_file("ran.txt")? == "ran\n");
        ensure!(stdout.contains("All is done."), "{stdout}");
        let requests = self.scripted_requests();
        let positions: Vec<_> = requests.iter().map(|request| request.position).collect();
        ensure!(positions == [0, 1, 2, 3], "{positions:?}");
        for request in requests {
            ensure!(request.problem.is_none() && request.outcome == RequestOutcome::Answered, "{:?}", request.problem);
        }
        Ok(())
    }

    fn check_no_problem(&self) -> Result<()> {
        match self.scripted_requests().iter().find_map(|request| request.problem.clone()) {
            Some(problem) => bail!("{problem}"),
            None => Ok(()),
        }
    }
}

async fn run_agent(mut command: Command) -> Result<Output> {
    let done = tokio::time::timeout(AGENT_TIMEOUT, command.output()).await.context("the agent timed out")??;
    let (output, errors) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    ensure!(done.status.success(), "the agent exited with {}: {output}\n{errors}", done.status);
    Ok(done)
}

#[tokio::test]
async fn claude_completes_the_basic_script() -> Result<()> {
    let Some(fixture) = AgentFixture::start("claude", "claude_completes_the_basic_script").await? else {
        return Ok(());
    };
    let mut command = fixture.claude();
    command.args(["-p", "please #script:basic"]);
    let done = run_agent(command).await?;
    fixture.check_basic(&done)?;
    let first = &fixture.scripted_requests()[0];
    assert_eq!(first.headers["x-api-key"], "sk-ant-scripted");
    assert!(!first.session.is_empty());
    let last = String::from_utf8_lossy(&done.stdout).lines().last().unwrap_or_default().to_owned();
    let result: Value = serde_json::from_str(&last)?;
    assert_eq!((&result["type"], &result["is_error"]), (&"result".into(), &false.into()));
    assert_eq!(result["usage"]["cache_read_input_tokens"], 789);
    Ok(())
}

#[tokio::test]
async fn claude_connects_through_a_unix_socket() -> Result<()> {
    let Some(fixture) = AgentFixture::start("claude", "claude_connects_through_a_unix_socket").await? else {
        return Ok(());
    };
    let mut command = fixture.claude();
    let socket = fixture.model.unix_socket().context("a socket file")?;
    command.env("ANTHROPIC_UNIX_SOCKET", socket).env("ANTHROPIC_BASE_URL", "http://model.invalid");
    command.args(["-p", "please #script:basic"]);
    fixture.check_basic(&run_agent(command).await?)
}

#[tokio::test]
async fn claude_retries_after_a_failure_and_resumes() -> Result<()> {
    let Some(fixture) = AgentFixture::start("claude", "claude_retries_after_a_failure_and_resumes").await? else {
        return Ok(());
    };
    let session = "5d4b1f5e-9a34-4c53-8f0b-0d9c36a1b001";
    let mut command = fixture.claude();
    command.args(["--session-id", session, "-p", "please #script:trouble"]);
    let first = run_agent(command).await?;
    assert!(String::from_utf8_lossy(&first.stdout).contains("The first turn."));
    let mut command = fixture.claude();
    command.args(["--resume", session, "-p", "and more"]);
    let second = run_agent(command).await?;
    assert!(String::from_utf8_lossy(&second.stdout).contains("The second turn."));
    fixture.check_no_problem()?;
    let requests = fixture.scripted_requests();
    let outcomes: Vec<_> = requests.iter().map(|request| (request.position, request.outcome)).collect();
    use RequestOutcome::{Answered, Refused};
    assert_eq!(outcomes, [(0, Refused), (0, Answered), (1, Answered), (2, Answered), (3, Answered)]);
    assert!(requests.iter().all(|request| request.session == session));
    Ok(())
}

#[tokio::test]
async fn claude_retries_a_cut_stream_and_makes_a_plan() -> Result<()> {
    let Some(fixture) = AgentFixture::start("claude", "claude_retries_a_cut_stream_and_makes_a_plan").await? else {
        return Ok(());
    };
    for (script, end) in [("cut", "It went on."), ("plan", "There is a plan.")] {
        let mut command = fixture.claude();
        command.args(["-p", &format!("please #script:{script}")]);
        let done = run_agent(command).await?;
        assert!(String::from_utf8_lossy(&done.stdout).contains(end), "{script}");
    }
    fixture.check_no_problem()?;
    assert_eq!(fixture.scripted_requests()[0].outcome, RequestOutcome::Cut);
    assert!(
        fixture.scripted_requests().iter().any(|request| request.body_contains("Task #2 created successfully: write"))
    );
    Ok(())
}

#[tokio::test]
async fn records_the_disconnect_of_a_killed_agent() -> Result<()> {
    let Some(fixture) = AgentFixture::start("claude", "records_the_disconnect_of_a_killed_agent").await? else {
        return Ok(());
    };
    let mut command = fixture.claude();
    command.args(["-p", "please #script:endless"]);
    let mut child = command.spawn()?;
    let request =
        fixture.model.wait_for_request(|request| request.script.as_deref() == Some("endless"), AGENT_TIMEOUT).await;
    assert_eq!(request.context("the agent sent no request")?.outcome, RequestOutcome::Answering);
    child.kill().await?;
    let request =
        fixture.model.wait_for_request(|request| request.outcome == RequestOutcome::Disconnected, AGENT_TIMEOUT).await;
    assert!(request.context("the disconnect was not recorded")?.ended_at.is_some());
    Ok(())
}

#[tokio::test]
async fn codex_completes_the_basic_script() -> Result<()> {
    let Some(fixture) = AgentFixture::start("codex", "codex_completes_the_basic_script").await? else {
        return Ok(());
    };
    let mut command = fixture.codex()?;
    command.arg("please #script:basic");
    let done = run_agent(command).await?;
    fixture.check_basic(&done)?;
    assert_eq!(fixture.scripted_requests()[0].headers["authorization"], "Bearer sk-scripted");
    // Codex applies the patches itself, not by commands.
    assert!(String::from_utf8_lossy(&done.stdout).contains("\"type\":\"file_change\""));
    Ok(())
}

/// The newest models get one tool that runs JavaScript, which calls the other tools.
#[tokio::test]
async fn codex_completes_the_basic_script_in_code_mode() -> Result<()> {
    let Some(fixture) = AgentFixture::start("codex", "codex_completes_the_basic_script_in_code_mode").await? else {
        return Ok(());
    };
    let mut command = fixture.codex_with_model("gpt-6.1-sol")?;
    command.arg("please #script:basic");
    let done = run_agent(command).await?;
    fixture.check_basic(&done)?;
    let stdout = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(stdout.contains("\"type\":\"file_change\"") && stdout.contains("\"type\":\"command_execution\""));
    let requests = fixture.scripted_requests();
    assert!(requests.iter().any(|request| request.body_contains("await tools.exec_command(")), "{stdout}");
    Ok(())
}

#[tokio::test]
async fn codex_retries_after_failures_and_resumes() -> Result<()> {
    let Some(fixture) = AgentFixture::start("codex", "codex_retries_after_failures_and_resumes").await? else {
        return Ok(());
    };
    let mut command = fixture.codex()?;
    command.arg("please #script:trouble");
    let first = run_agent(command).await?;
    let first = String::from_utf8_lossy(&first.stdout).into_owned();
    assert!(first.contains("The first turn."), "{first}");
    let started: Value = serde_json::from_str(first.lines().next().context("no line")?)?;
    let mut command = fixture.codex()?;
    command.args(["resume", started["thread_id"].as_str().context("no thread")?, "and more"]);
    let second = run_agent(command).await?;
    assert!(String::from_utf8_lossy(&second.stdout).contains("The second turn."));
    let mut command = fixture.codex()?;
    command.arg("please #script:cut");
    let third = run_agent(command).await?;
    assert!(String::from_utf8_lossy(&third.stdout).contains("It went on."));
    fixture.check_no_problem()
}

#[tokio::test]
async fn opencode_completes_the_basic_script() -> Result<()> {
    let Some(fixture) = AgentFixture::start("opencode", "opencode_completes_the_basic_script").await? else {
        return Ok(());
    };
    let provider = serde_json::json!({
        "npm": "@ai-sdk/openai-compatible",
        "options": { "baseURL": format!("{}/v1", fixture.model.base_url()), "apiKey": "sk-scripted" },
        "models": { "one": { "limit": { "context": 200_000, "output": 8_000 }, "cost": { "input": 3, "output": 15 } } },
    });
    let settings = serde_json::json!({
        "model": "scripted/one", "small_model": "scripted/one", "autoupdate": false, "share": "disabled",
        "snapshot": false, "lsp": false, "formatter": false, "enabled_providers": ["scripted"],
        "provider": { "scripted": provider }, "permission": { "edit": "allow", "bash": "allow", "webfetch": "deny" },
    });
    let mut command = fixture.command();
    command.env("OPENCODE_CONFIG_CONTENT", settings.to_string());
    for directory in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
        command.env(directory, fixture.home().join(directory));
    }
    for variable in ["AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS", "SHARE", "EXTERNAL_SKILLS"] {
        command.env(format!("OPENCODE_DISABLE_{variable}"), "1");
    }
    command.env("OPENCODE_DISABLE_CLAUDE_CODE", "1");
    command.args(["run", "--format", "json", "please #script:basic"]);
    let done = run_agent(command).await?;
    fixture.check_basic(&done)?;
    // OpenCode's extra request for a title has no tools and no script.
    assert!(fixture.model.requests().iter().any(|request| request.script.is_none()));
    assert!(String::from_utf8_lossy(&done.stdout).contains("\"cache\":{\"write\":0,\"read\":789}"));
    Ok(())
}

#[tokio::test]
async fn gemini_completes_the_basic_script() -> Result<()> {
    let Some(fixture) = AgentFixture::start("gemini", "gemini_completes_the_basic_script").await? else {
        return Ok(());
    };
    let settings = serde_json::json!({
        "security": { "auth": { "selectedType": "gemini-api-key" } },
        "general": { "disableAutoUpdate": true, "enableAutoUpdate": false },
        "privacy": { "usageStatisticsEnabled": false }, "telemetry": { "enabled": false },
    });
    fixture.write_home(".gemini/settings.json", &settings.to_string())?;
    let mut command = fixture.command();
    command.env("GEMINI_API_KEY", "sk-scripted").env("GOOGLE_GEMINI_BASE_URL", fixture.model.base_url());
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
    fixture.check_basic(&run_agent(command).await?)?;
    assert_eq!(fixture.scripted_requests()[0].headers["x-goog-api-key"], "sk-scripted");
    Ok(())
}
