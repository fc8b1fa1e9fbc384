//! A server with an agent's program and a scripted model.

use atoll_core::model::ModelApi;
use atoll_model_script::{ScriptedModel, Scripts};
use atoll_test_wait::try_poll_for;
use atoll_tests::local::{LocalServer, report_skipped};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// The key that the model requires. No sandbox may see it.
pub const REAL_API_KEY: &str = "sk-the-real-key-of-this-test-0815";

pub struct AgentFixture {
    pub server: LocalServer,
    pub model: ScriptedModel,
    agent: String,
}

impl AgentFixture {
    /// Returns `None` and reports a skipped test if the agent is not installed.
    pub async fn start(agent: &str, what: &str, scripts: &str) -> Option<Self> {
        Self::start_with(agent, what, scripts, ModelApi::ALL, "", &[]).await
    }

    /// Like `start`, with more of the server's configuration.
    pub async fn start_with_config(agent: &str, what: &str, scripts: &str, config: &str) -> Option<Self> {
        Self::start_with(agent, what, scripts, ModelApi::ALL, config, &[]).await
    }

    /// Like `start_with_config`, with more of the server's variables.
    pub async fn start_with_environment(
        agent: &str,
        what: &str,
        scripts: &str,
        config: &str,
        environment: &[(String, String)],
    ) -> Option<Self> {
        Self::start_with(agent, what, scripts, ModelApi::ALL, config, environment).await
    }

    /// Like `start`, with the keys of these APIs only.
    pub async fn start_with_keys(agent: &str, what: &str, scripts: &str, apis: &[ModelApi]) -> Option<Self> {
        Self::start_with(agent, what, scripts, apis, "", &[]).await
    }

    async fn start_with(
        agent: &str,
        what: &str,
        scripts: &str,
        apis: &[ModelApi],
        config: &str,
        environment: &[(String, String)],
    ) -> Option<Self> {
        let program = agent_program_path(agent);
        if !program.exists() {
            let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
            assert!(!required, "{} is missing: run scripts/agents", program.display());
            report_skipped(
                &format!("{what} of {agent}"),
                &format!("{} is missing; scripts/agents installs it", program.display()),
            );
            return None;
        }
        let model = ScriptedModel::start(Scripts::parse(scripts).unwrap()).await.unwrap();
        let base = model.base_url();
        let variables = apis.iter().flat_map(|api| match api {
            ModelApi::Anthropic => {
                [("ANTHROPIC_BASE_URL", base.clone()), ("ANTHROPIC_API_KEY", REAL_API_KEY.to_owned())]
            }
            ModelApi::OpenAi => {
                [("OPENAI_BASE_URL", format!("{base}/v1")), ("OPENAI_API_KEY", REAL_API_KEY.to_owned())]
            }
            ModelApi::Gemini => [("GEMINI_BASE_URL", base.clone()), ("GEMINI_API_KEY", REAL_API_KEY.to_owned())],
        });
        let variables = variables.map(|(name, value)| (name.to_owned(), value));
        let environment: Vec<_> = variables.chain(environment.iter().cloned()).collect();
        let config = format!("agents:\n  {agent}:\n    path: {}\n{config}", program.display());
        let server = tokio::task::block_in_place(|| LocalServer::start_with_env(&config, &environment));
        Some(Self { server, model, agent: agent.to_owned() })
    }

    pub async fn create_sandbox(&self, prompt: &str, settings: Value) -> String {
        let mut request = json!({ "agent": self.agent, "prompt": prompt, "network": { "policy": "none" } });
        match self.agent.as_str() {
            // A model that Codex knows, so that it offers its patch tool.
            "codex" => request["model"] = "gpt-5.5".into(),
            // Otherwise Gemini asks a model to choose one.
            "gemini" => request["model"] = "gemini-2.5-pro".into(),
            _ => {}
        }
        for (name, value) in settings.as_object().unwrap() {
            request[name] = value.clone();
        }
        // `model: null` leaves the choice to the agent.
        request.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        self.server.create_sandbox(request).await
    }

    /// Waits until the turn ends or the sandbox fails. Reads the log, because a heartbeat may be ahead of it.
    pub async fn wait_until_idle(&self, id: &str) -> Value {
        self.server
            .wait_for_event(id, |event| event["type"] == "agent.waiting" || event["type"] == "sandbox.failed")
            .await;
        self.server.get_sandbox(id).await
    }

    /// Waits for an open approval and returns it.
    pub async fn wait_for_approval(&self, id: &str) -> Value {
        let polled = try_poll_for(async || {
            let all = self.server.admin.get(&format!("/sandboxes/{id}/approvals")).await.expect_status(200);
            all["items"].as_array().unwrap().iter().find(|item| item["state"] == "open").cloned().ok_or(all)
        });
        polled.await.unwrap_or_else(|all| panic!("{} has no open approval: {all}", self.agent))
    }

    /// Kills all processes of the agent. Stops them first, so that a wrapper cannot exit when its child dies.
    pub async fn kill_agent(&self, id: &str) {
        let kill = "for with in STOP KILL; do for d in /proc/[0-9]*; do \
                    case $(readlink $d/exe) in */agents/*) kill -$with ${d#/proc/};; esac; done; done";
        self.server.run_shell(id, kill).await;
    }

    /// Returns true if the agent accepts a message in the running turn. Otherwise the message restarts the turn.
    pub fn can_steer_in_turn(&self) -> bool {
        self.agent != "gemini"
    }

    /// Asserts that the model received the key, and that nothing in the sandbox contains it.
    pub async fn assert_key_stays_outside(&self, id: &str) {
        let requests = self.model.requests();
        assert!(
            requests.iter().any(|request| format!("{:?}", request.headers).contains(REAL_API_KEY)),
            "the gateway must use the real key"
        );
        // The pattern must not match its own command line.
        let pattern = REAL_API_KEY.replacen("sk", "[s]k", 1);
        let search = format!(
            "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep '{pattern}'; \
             grep -rls '{pattern}' /workspace /home /tmp /run /etc 2>/dev/null; true"
        );
        assert_eq!(self.server.run_shell(id, &search).await.stdout, "");
    }

    /// Asserts that neither a snapshot with the running agent nor the server's data directory contains the key.
    ///
    /// `known` is a text that the same search must find.
    pub async fn assert_key_is_not_stored(&self, id: &str, known: &str) {
        // The sandbox has the placeholder key.
        let printed = self.server.run_shell(id, "env | grep -c ATOLL_GATEWAY_KEY").await.expect_success();
        assert_eq!(printed.trim(), "1");
        let path = format!("/sandboxes/{id}/snapshot");
        self.server.admin.post(&path, json!({ "name": "with-agent" })).await.expect_status(201);
        let data_dir = self.server.data_dir();
        assert!(!find_files_containing(&data_dir, known).is_empty(), "the search must find known text");
        assert_eq!(find_files_containing(&data_dir, REAL_API_KEY), Vec::<PathBuf>::new());
        let events = self.server.admin.all_events(id).await;
        assert!(events.len() > 5 && !json!(events).to_string().contains(REAL_API_KEY));
        self.server.admin.delete("/snapshots/with-agent").await.expect_status(200);
    }

    pub async fn stop_and_check(self) {
        self.server.stop_and_check().await;
    }
}

pub fn agent_program_path(agent: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root.join(target).join("agents/bin").join(agent)
}

/// Lists all files below a directory that contain these words.
fn find_files_containing(directory: &Path, words: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut open = vec![directory.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let (path, kind) = (entry.path(), entry.file_type().unwrap());
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file()
                && std::fs::read(&path).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(words))
            {
                found.push(path);
            }
        }
    }
    found
}
