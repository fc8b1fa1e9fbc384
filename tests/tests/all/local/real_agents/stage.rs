//! A server with an agent's program and a scripted model.

use atoll_model_script::{ScriptedModel, Scripts};
use atoll_tests::local::{Ground, PATIENCE, skipped};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What the model wants to see, and nobody in the sandbox does.
pub const KEY: &str = "sk-the-real-key-of-this-test-0815";

pub struct Stage {
    pub ground: Ground,
    pub model: ScriptedModel,
    agent: String,
}

impl Stage {
    /// Nothing where the agent is not installed: the test is skipped, by name.
    pub async fn set(agent: &str, what: &str, scripts: &str) -> Option<Self> {
        let program = program(agent);
        if !program.exists() {
            let required = std::env::var_os("ATOLL_TEST_AGENTS").is_some_and(|value| !value.is_empty());
            assert!(!required, "{} is missing: run scripts/agents", program.display());
            skipped(
                &format!("{what} of {agent}"),
                &format!("{} is missing; scripts/agents installs it", program.display()),
            );
            return None;
        }
        let model = ScriptedModel::start(Scripts::parse(scripts).unwrap()).await.unwrap();
        let base = model.base_url();
        let environment = [
            ("ANTHROPIC_BASE_URL", base.clone()),
            ("ANTHROPIC_API_KEY", KEY.to_owned()),
            ("OPENAI_BASE_URL", format!("{base}/v1")),
            ("OPENAI_API_KEY", KEY.to_owned()),
            ("GEMINI_BASE_URL", base),
            ("GEMINI_API_KEY", KEY.to_owned()),
        ];
        let environment = environment.map(|(name, value)| (name.to_owned(), value));
        let config = format!("agents:\n  {agent}:\n    path: {}\n", program.display());
        let ground = tokio::task::block_in_place(|| Ground::start_in(&config, &environment));
        Some(Self { ground, model, agent: agent.to_owned() })
    }

    pub async fn make(&self, prompt: &str, settings: Value) -> String {
        let mut request = json!({ "agent": self.agent, "prompt": prompt, "network": { "policy": "none" } });
        match self.agent.as_str() {
            // Of the models that it knows, so that it offers its tool for patches.
            "codex" => request["model"] = "gpt-5.5".into(),
            // Else it asks a model which one to take.
            "gemini" => request["model"] = "gemini-2.5-pro".into(),
            _ => {}
        }
        for (name, value) in settings.as_object().unwrap() {
            request[name] = value.clone();
        }
        self.ground.make(request).await
    }

    /// Its turn is over and it waits, or it has failed. The log says so last; a heartbeat may be before the log.
    pub async fn rests(&self, id: &str) -> Value {
        self.ground.event(id, |event| event["type"] == "agent.waiting" || event["type"] == "sandbox.failed").await;
        self.ground.row(id).await
    }

    /// What the agent waits for now.
    pub async fn asked(&self, id: &str) -> Value {
        let begun = Instant::now();
        loop {
            let all = self.ground.admin.get(&format!("/sandboxes/{id}/approvals")).await.expect(200);
            let open = all["items"].as_array().unwrap().iter().find(|item| item["state"] == "open").cloned();
            if let Some(open) = open {
                return open;
            }
            assert!(begun.elapsed() < PATIENCE, "{} asks for nothing: {all}", self.agent);
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    }

    /// Everything of the agent, wherever it is. All of it is held first: a wrapper whose child is killed before it would
    /// else have the time to exit by itself.
    pub async fn kill_agent(&self, id: &str) {
        let kill = "for with in STOP KILL; do for d in /proc/[0-9]*; do \
                    case $(readlink $d/exe) in */agents/*) kill -$with ${d#/proc/};; esac; done; done";
        self.ground.shell(id, kill).await;
    }

    /// Whether this agent takes what is said into the running turn; else the turn is begun anew with it.
    pub fn steers_in_the_turn(&self) -> bool {
        self.agent != "gemini"
    }

    /// The models have seen it, and nothing inside has.
    pub async fn key_is_outside(&self, id: &str) {
        let requests = self.model.requests();
        assert!(requests.iter().any(|request| format!("{:?}", request.headers).contains(KEY)), "the real key was used");
        // Written so that it does not find itself.
        let pattern = KEY.replacen("sk", "[s]k", 1);
        let look = format!(
            "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep '{pattern}'; \
             grep -rls '{pattern}' /workspace /home /tmp /run /etc 2>/dev/null; true"
        );
        assert_eq!(self.ground.shell(id, &look).await.stdout, "");
    }

    /// A snapshot of the sandbox, whose agent is there and waits, does not hold it, nor does anything else that the
    /// server keeps: layers, spools, its database, the log. `known` is something that is there to be found.
    pub async fn key_is_not_kept(&self, id: &str, known: &str) {
        // Whoever looks for it inside finds the placeholder, and tells so in the log.
        let printed = self.ground.shell(id, "env | grep -c ATOLL_GATEWAY_KEY").await.well();
        assert_eq!(printed.trim(), "1");
        let path = format!("/sandboxes/{id}/snapshot");
        self.ground.admin.post(&path, json!({ "name": "with-agent" })).await.expect(201);
        let kept = self.ground.data();
        assert!(!holding(&kept, known).is_empty(), "the search finds what is there");
        assert_eq!(holding(&kept, KEY), Vec::<PathBuf>::new());
        let events = self.ground.admin.all_events(id).await;
        assert!(events.len() > 5 && !json!(events).to_string().contains(KEY));
        self.ground.admin.delete("/snapshots/with-agent").await.expect(200);
    }

    pub async fn leave(self) {
        self.ground.leave().await;
    }
}

fn program(agent: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
    root.join(target).join("agents/bin").join(agent)
}

/// All files below a directory that hold these words.
fn holding(directory: &Path, words: &str) -> Vec<PathBuf> {
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
