//! The settings of a sandbox as flags: one list for `atoll run`, `atoll sandbox new` and `atoll project set`.

mod agent_flags;
mod git_flags;
mod limit_flags;
mod network_flags;
mod sandbox_flags;
mod service_flags;

use crate::connect::ConnectedClient;
use crate::current_repository::find_current_repository;
use crate::failure::Result;
use crate::references::SessionRef;
use crate::ticket::TicketRef;
use agent_flags::AgentFlags;
use atoll_api::NewSandbox;
use atoll_core::id::ProjectId;
use atoll_providers::capabilities_of;
use git_flags::GitFlags;
use limit_flags::LimitFlags;
use network_flags::NetworkFlags;
use sandbox_flags::SandboxFlags;
use service_flags::ServiceFlags;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The settings that a request and a project's defaults have in common.
#[derive(Debug, Default, clap::Args)]
pub struct SettingFlags {
    #[command(flatten)]
    sandbox: SandboxFlags,
    #[command(flatten)]
    git: GitFlags,
    #[command(flatten)]
    agent: AgentFlags,
    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    services: ServiceFlags,
    #[command(flatten)]
    limits: LimitFlags,
}

impl SettingFlags {
    /// A request with the given flags. It names every field, so that a new field of the API needs a decision here.
    pub fn to_request(&self) -> Result<NewSandbox> {
        self.to_request_in(None)
    }

    /// A request for a sandbox in this repository, unless `--repo` names another one.
    pub fn to_request_in(&self, repository: Option<&Path>) -> Result<NewSandbox> {
        let Self { sandbox, git, agent, network, services, limits } = self;
        let request = Self::build_request(repository, sandbox, agent, network, services, limits)?;
        Ok(NewSandbox { git: git.settings(), ..request })
    }

    fn build_request(
        repository: Option<&Path>,
        sandbox: &SandboxFlags,
        agent: &AgentFlags,
        network: &NetworkFlags,
        services: &ServiceFlags,
        limits: &LimitFlags,
    ) -> Result<NewSandbox> {
        Ok(NewSandbox {
            provider: sandbox.provider,
            agent: agent.agent.clone(),
            model: agent.model.clone(),
            mode: agent.mode,
            approvals: agent.approvals,
            repo: sandbox.repository(repository)?,
            image: sandbox.image.clone(),
            snapshot: sandbox.snapshot.clone(),
            labels: sandbox.labels.iter().cloned().collect(),
            env: sandbox.env.iter().cloned().collect(),
            resources: sandbox.resources(),
            isolation: sandbox.isolation,
            protected: sandbox.protected.clone(),
            network: network.settings(),
            setup: sandbox.setup(),
            limits: limits.settings(),
            policy: agent.policy.clone(),
            guardian: agent.guardian(),
            health: sandbox.health(),
            fallback_provider: sandbox.fallback_provider,
            timeout_s: sandbox.timeout,
            tools: (!agent.tools.is_empty()).then(|| agent.tools.clone()),
            denied_tools: agent.denied_tools.clone(),
            system_prompt: agent.system_prompt.clone(),
            enable_subagents: agent.subagents,
            enable_skills: agent.skills,
            deliver: sandbox.deliver,
            continuous: agent.continuous_settings(),
            mcp: agent.mcp.clone(),
            secrets: (!sandbox.secrets.is_empty()).then(|| sandbox.secrets.clone()),
            services: services.settings(),
            // `to_request_in` sets it: a worktree has no branch to publish.
            git: None,
            // One command sets each of these in its own way.
            prompt: None,
            title: None,
            name: None,
            end: None,
            project_id: None,
            session_id: None,
            ticket_id: None,
            modes: BTreeMap::new(),
        })
    }

    pub const fn provider(&self) -> Option<atoll_core::sandbox::ProviderKind> {
        self.sandbox.provider
    }

    pub fn agent(&self) -> Option<&str> {
        self.agent.agent.as_deref()
    }

    /// The directory of `--repo`.
    pub fn repo_dir(&self) -> Option<&Path> {
        self.sandbox.repo.as_deref()
    }
}

/// The settings of a sandbox for a worktree: without those of a repository.
#[derive(Debug, Default, clap::Args)]
pub struct WorktreeSettingFlags {
    /// Provider of the sandbox [default: provider.default]
    #[arg(long, value_name = "NAME", value_parser = crate::arguments::provider_parser(), help_heading = "Sandbox")]
    provider: Option<atoll_core::sandbox::ProviderKind>,
    /// Start from this image
    #[arg(long, value_name = "NAME", help_heading = "Sandbox")]
    image: Option<String>,
    /// Set an environment variable (repeatable)
    #[arg(long = "env", value_name = "NAME=VALUE", value_parser = crate::arguments::parse_pair, help_heading = "Sandbox")]
    env: Vec<(String, String)>,
    /// Allow a secret, by name (repeatable)
    #[arg(long = "secret", value_name = "NAME", help_heading = "Sandbox")]
    secrets: Vec<String>,
    #[command(flatten)]
    agent: AgentFlags,
    #[command(flatten)]
    network: NetworkFlags,
    #[command(flatten)]
    services: ServiceFlags,
    #[command(flatten)]
    limits: LimitFlags,
}

impl WorktreeSettingFlags {
    pub fn to_request(&self) -> Result<NewSandbox> {
        let mut sandbox = SandboxFlags::default();
        (sandbox.provider, sandbox.image) = (self.provider, self.image.clone());
        (sandbox.env, sandbox.secrets) = (self.env.clone(), self.secrets.clone());
        SettingFlags::build_request(None, &sandbox, &self.agent, &self.network, &self.services, &self.limits)
    }
}

/// The place of a new sandbox: its project, session, title and name.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Session")]
pub struct PlacementFlags {
    /// Project of the sandbox [default: the default project]
    #[arg(long, value_name = "ID")]
    pub project: Option<ProjectId>,
    /// Start with an empty workspace, not with the repository of this directory
    #[arg(long, help_heading = "Sandbox", conflicts_with_all = ["repo", "base", "branch", "depth", "target", "submodules", "lfs", "sparse"])]
    pub no_repo: bool,
    /// Continue this session, with its conversation and branch
    #[arg(long, value_name = "SESSION")]
    pub session: Option<SessionRef>,
    /// Work on this ticket: key or id
    #[arg(long, value_name = "TICKET")]
    pub ticket: Option<TicketRef>,
    /// Title of the session [default: the ticket's, or the first line of the prompt]
    #[arg(long)]
    pub title: Option<String>,
    /// Name of the sandbox, unique among the live ones of the project
    #[arg(long)]
    pub name: Option<String>,
}

impl PlacementFlags {
    /// The repository of the current directory, where it is the default: a new session of the default project on this
    /// machine's server, with a provider that works on repositories.
    pub fn default_repository(&self, settings: &SettingFlags, client: &ConnectedClient) -> Option<PathBuf> {
        let is_chosen = settings.repo_dir().is_some() || self.session.is_some() || self.project.is_some();
        let runs_agents = settings.provider().is_none_or(|provider| capabilities_of(provider).runs_agents());
        if self.no_repo || is_chosen || !runs_agents || !client.address.is_local_admin() {
            return None;
        }
        find_current_repository()
    }

    /// Adds the place to a request.
    pub async fn add_to_request(&self, request: &mut NewSandbox, client: &ConnectedClient) -> Result {
        request.project_id = self.project;
        if let Some(session) = &self.session {
            request.session_id = Some(session.resolve(client).await?);
        }
        if let Some(ticket) = &self.ticket {
            request.ticket_id = Some(ticket.resolve(client).await?);
        }
        request.title = self.title.clone();
        request.name = self.name.clone();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use serde_json::{Value, json};

    #[derive(Parser)]
    struct TestCommand {
        #[command(flatten)]
        settings: SettingFlags,
    }

    fn body(arguments: &[&str]) -> Value {
        let parsed = TestCommand::try_parse_from([&["test"], arguments].concat());
        let parsed = parsed.unwrap_or_else(|error| panic!("{error}"));
        serde_json::to_value(parsed.settings.to_request().unwrap()).unwrap()
    }

    #[test]
    fn sends_only_given_flags_and_a_check_implies_continuous() {
        assert_eq!(body(&[]), json!({}));
        assert_eq!(body(&["--continuous"]), json!({"continuous": {}}));
        assert_eq!(
            body(&["--check", "make test", "--mode", "implementation"]),
            json!({"mode": "implementation", "continuous": {"checks": ["make test"]}})
        );
        assert_eq!(body(&["--memory", "2", "--pids", "99"]), json!({"resources": {"memory_gb": 2.0, "pids": 99}}));
        assert_eq!(body(&["--guardian", "nudge"]), json!({"guardian": {"act": "nudge"}}));
        assert_eq!(
            body(&["--subagents", "false", "--deliver", "true"]),
            json!({"enable_subagents": false, "deliver": true})
        );
        assert_eq!(body(&["--setup", "make deps", "--setup", "b"]), json!({"setup": {"commands": ["make deps", "b"]}}));
        assert_eq!(body(&["--no-setup"]), json!({"setup": {"enabled": false}}));
        assert_eq!(
            body(&["--allow-host", "a.example"]),
            json!({"network": {"policy": "allow", "allow": ["a.example"]}})
        );
        assert_eq!(
            body(&["--service", "db:5432=postgres -D d", "--service", "queue=redis-server --port=1"]),
            json!({"services": [
                {"name": "db", "command": "postgres -D d", "ready": {"port": 5432}},
                {"name": "queue", "command": "redis-server --port=1"},
            ]})
        );
        assert_eq!(body(&["--no-services"]), json!({"services": []}));
        for bad in ["db", "=x", "db:=x", "db:0=x", "db:70000=x", "db="] {
            assert!(TestCommand::try_parse_from(["test", "--service", bad]).is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_structured_settings_from_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("policy.json");
        std::fs::write(&file, r#"{"rules": [{"tools": ["Bash"], "then": "ask"}]}"#).unwrap();
        let path = file.to_str().unwrap();
        assert_eq!(body(&["--policy", path]), json!({"policy": {"rules": [{"tools": ["Bash"], "then": "ask"}]}}));
        assert!(TestCommand::try_parse_from(["test", "--policy", "/nonexistent"]).is_err());
        std::fs::write(&file, "{").unwrap();
        assert!(TestCommand::try_parse_from(["test", "--mcp", path]).is_err());
    }
}
