//! The agents of this server: which ones can run here, and what the others lack.

use crate::auth::access::ClientCaller;
use crate::gateway::is_bound_to;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_agents::{Agent, AgentLocations, InstalledAgent, MissingAgent};
use atoll_api::AgentList;
use atoll_core::agent::{Abilities, AcpLaunch, DEMO_AGENT, program_path};
use atoll_core::id::ProjectId;
use atoll_core::model::ModelApi;
use atoll_core::provider::ReadOnlyMount;
use atoll_core::sandbox::Settings;
use atoll_drivers as driver;
use atoll_store::{Tx, secrets};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Finds agent programs and model keys.
#[derive(Debug)]
pub struct Agents {
    locations: AgentLocations,
    upstreams: Vec<UpstreamKey>,
    /// Agents of the Agent Client Protocol that the configuration names.
    acp_agents: BTreeMap<String, AcpLaunch>,
}

/// An upstream's API and the source of its key.
#[derive(Debug)]
struct UpstreamKey {
    api: ModelApi,
    url: String,
    has_key: bool,
    /// The stored secret that can hold the key.
    secret: Option<String>,
}

/// The model keys that are available: the server's, the stored ones, and those in a sandbox's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelKeys {
    apis: BTreeSet<ModelApi>,
    variables: BTreeSet<String>,
    /// The sandbox gets secrets as variables or files, which can hold any key.
    exposed: bool,
}

impl ModelKeys {
    /// The APIs whose keys the gateway has.
    pub fn apis(&self) -> impl Iterator<Item = ModelApi> {
        self.apis.iter().copied()
    }

    fn fits(&self, agent: Agent) -> bool {
        let brings = |name: &String| agent.key_variables().contains(&name.as_str()) || name.ends_with("_BASE_URL");
        agent.model_apis().is_empty()
            || agent.model_apis().iter().any(|api| self.apis.contains(api))
            || self.variables.iter().any(brings)
            || self.exposed
    }
}

/// Why an agent cannot run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentUnavailable {
    /// The name, and the known names.
    Unknown(String, Vec<String>),
    Missing(MissingAgent),
    NoKey(Agent),
}

impl AgentUnavailable {
    /// Describes the problem and how to fix it.
    pub fn describe(&self) -> String {
        match self {
            Self::Unknown(name, known) => format!(
                "unknown agent `{name}`; this server has {}; acp_agents in its configuration adds others",
                known.join(", ")
            ),
            Self::Missing(missing) => missing.to_string(),
            Self::NoKey(agent) => {
                let variable = agent.key_variables().first().copied().unwrap_or_default();
                format!(
                    "there is no key for {}: start the server with {variable} in its environment, or store it with \
                     `atoll secret set {variable}`",
                    agent.display_name()
                )
            }
        }
    }
}

impl From<AgentUnavailable> for Problem {
    fn from(unable: AgentUnavailable) -> Self {
        let code = match &unable {
            AgentUnavailable::Unknown(..) => Code::NoAgent,
            AgentUnavailable::Missing(_) => Code::AgentMissing,
            AgentUnavailable::NoKey(_) => Code::AgentKeyMissing,
        };
        Self::new(code, unable.describe())
    }
}

impl Agents {
    pub fn new(locations: AgentLocations, config: &atoll_config::Config) -> Self {
        let upstream = |upstream: &atoll_config::Upstream| UpstreamKey {
            api: upstream.api,
            url: upstream.url.clone(),
            has_key: upstream.key.is_some() || !upstream.needs_key,
            secret: upstream.secret.clone(),
        };
        Self {
            locations,
            upstreams: config.model_upstreams.iter().map(upstream).collect(),
            acp_agents: config.acp_agents.iter().map(|(name, agent)| (name.clone(), agent.launch())).collect(),
        }
    }

    /// Parses an agent's name. The demo agent needs no program and yields `None`.
    fn parse_agent(&self, name: &str) -> Result<Option<Agent>, AgentUnavailable> {
        match (name, name.parse::<Agent>()) {
            (DEMO_AGENT, _) => Ok(None),
            (_, Ok(agent)) if driver::AGENT_NAMES.contains(&name) => Ok(Some(agent)),
            (_, _) if self.acp_agents.contains_key(name) => Ok(Some(Agent::Acp)),
            (_, _) => Err(AgentUnavailable::Unknown(name.to_owned(), self.agent_names())),
        }
    }

    /// The names of all agents: the built-in ones, then those of the configuration.
    fn agent_names(&self) -> Vec<String> {
        driver::AGENT_NAMES.iter().map(|name| (*name).to_owned()).chain(self.acp_agents.keys().cloned()).collect()
    }

    /// The launch settings of an agent that the configuration names.
    pub fn acp_launch(&self, name: &str) -> Option<AcpLaunch> {
        self.acp_agents.get(name).cloned()
    }

    /// The keys in the server's own configuration.
    pub fn own_keys(&self) -> ModelKeys {
        let with_key = self.upstreams.iter().filter(|upstream| upstream.has_key);
        ModelKeys { apis: with_key.map(|upstream| upstream.api).collect(), ..ModelKeys::default() }
    }

    /// The keys available to a sandbox of a project.
    pub async fn project_keys(&self, tx: &mut dyn Tx, project: ProjectId, settings: &Settings) -> Result<ModelKeys> {
        let ModelKeys { mut apis, .. } = self.own_keys();
        for upstream in &self.upstreams {
            if let Some(name) = &upstream.secret
                && !apis.contains(&upstream.api)
                && secrets::resolve_secret(tx, project, name).await?.is_some_and(|row| is_bound_to(&row, &upstream.url))
            {
                apis.insert(upstream.api);
            }
        }
        let variables = settings.env.keys().cloned().collect();
        Ok(ModelKeys { apis, variables, exposed: !settings.exposed_secrets.is_empty() })
    }

    fn find_program(&self, name: &str, agent: Agent) -> Result<InstalledAgent, AgentUnavailable> {
        let found = self.locations.find_acp_agent(name).unwrap_or_else(|| self.locations.find_agent(agent));
        found.map_err(AgentUnavailable::Missing)
    }

    /// Checks that an agent can run in a sandbox on this machine.
    pub fn check_agent(&self, name: &str, keys: &ModelKeys) -> Result<(), AgentUnavailable> {
        let Some(agent) = self.parse_agent(name)? else { return Ok(()) };
        self.find_program(name, agent)?.list_mounts().map_err(AgentUnavailable::Missing)?;
        if keys.fits(agent) { Ok(()) } else { Err(AgentUnavailable::NoKey(agent)) }
    }

    /// The default agent: the first that is installed and has a key.
    pub fn default_agent(&self, keys: &ModelKeys) -> Option<String> {
        let mut names = Agent::BY_PREFERENCE.iter().map(|agent| agent.as_str());
        names.find(|name| self.check_agent(name, keys).is_ok()).map(str::to_owned)
    }

    /// The problem when there is no default agent.
    pub fn no_agent_problem(&self, keys: &ModelKeys) -> Problem {
        // An installed agent that lacks only its key is the easiest fix.
        let almost = Agent::BY_PREFERENCE.iter().find_map(|agent| match self.check_agent(agent.as_str(), keys) {
            Err(unable @ AgentUnavailable::NoKey(_)) => Some(unable.describe()),
            Ok(()) | Err(AgentUnavailable::Unknown(..) | AgentUnavailable::Missing(_)) => None,
        });
        let how =
            almost.unwrap_or_else(|| "no agent is installed on this machine; run `atoll agents install claude`".into());
        Problem::new(Code::NoAgent, format!("{how}; \"agent\": \"demo\" needs no model and no key"))
    }

    /// The programs of this machine that an agent in a sandbox needs.
    pub fn programs_for(&self, agent: Option<&str>) -> Result<Vec<ReadOnlyMount>, AgentUnavailable> {
        let Some(name) = agent else { return Ok(Vec::new()) };
        match self.parse_agent(name)? {
            Some(agent) => self.find_program(name, agent)?.list_mounts().map_err(AgentUnavailable::Missing),
            None => Ok(Vec::new()),
        }
    }

    /// The path of an agent's program in a sandbox where Atoll puts it.
    pub fn program_path_inside(&self, agent: Option<&str>) -> Option<String> {
        let name = agent?;
        self.parse_agent(name).ok().flatten().map(|_| program_path(name))
    }

    /// Lists all agents. Blocks: it can run programs to get their version.
    pub fn list_agents(&self, keys: &ModelKeys, with_paths: bool) -> Vec<atoll_api::Agent> {
        self.agent_names().iter().map(|name| self.view(name, keys, with_paths)).collect()
    }

    fn abilities_of(&self, name: &str) -> Abilities {
        let driver = match self.acp_launch(name) {
            Some(launch) => Some(driver::create_acp_driver(name, launch)),
            None => driver::create_driver(name),
        };
        driver.map(|driver| driver.abilities()).unwrap_or_default()
    }

    fn view(&self, name: &str, keys: &ModelKeys, with_paths: bool) -> atoll_api::Agent {
        let abilities = self.abilities_of(name);
        let checked = self.check_agent(name, keys);
        let agent = self.parse_agent(name).ok().flatten();
        let found = agent.and_then(|agent| self.find_program(name, agent).ok());
        let version = found.as_ref().and_then(InstalledAgent::detect_version);
        let mut missing: Vec<String> = checked.as_ref().err().map(AgentUnavailable::describe).into_iter().collect();
        let key = agent.is_none_or(|agent| keys.fits(agent));
        if let (Some(agent), Err(AgentUnavailable::Missing(_)), false) = (agent, &checked, key) {
            missing.push(AgentUnavailable::NoKey(agent).describe());
        }
        atoll_api::Agent {
            name: name.to_owned(),
            title: agent.map_or("the built-in demo agent, without a model", Agent::display_name).to_owned(),
            usable: checked.is_ok(),
            path: found.as_ref().filter(|_| with_paths).map(|found| found.program.display().to_string()),
            origin: match (agent, &found) {
                (None, _) => Some("builtin".to_owned()),
                (Some(_), found) => found.as_ref().map(|found| found.origin.to_string()),
            },
            tested: agent.is_none_or(|agent| version.as_deref().is_some_and(|version| agent.is_tested(version))),
            version,
            key,
            keys: agent.map(Agent::key_variables).unwrap_or_default().iter().map(|key| (*key).to_owned()).collect(),
            abilities,
            missing,
        }
    }
}

/// Lists the agents with the keys of the default project. Only admins see paths.
pub async fn list_agents(app: &App, client: ClientCaller) -> Result<AgentList> {
    let (agents, project) = (Arc::clone(&app.agents), app.default_project);
    let keys = app.read(async move |tx| agents.project_keys(tx, project, &Settings::default()).await).await?;
    let (agents, with_paths) = (Arc::clone(&app.agents), client.0.is_admin());
    let items = tokio::task::spawn_blocking(move || agents.list_agents(&keys, with_paths)).await;
    Ok(AgentList { items: items.map_err(Problem::internal)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    fn machine(base: &Path, programs: &[&str]) -> Agents {
        for name in programs {
            let program = base.join(name);
            std::fs::write(&program, "#!/bin/sh\n").unwrap();
            std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let locations = AgentLocations {
            data_dir: base.join("data"),
            acp_programs: [("goose".to_owned(), base.join("goose"))].into(),
            path: vec![base.to_path_buf()],
            ..AgentLocations::default()
        };
        let goose = AcpLaunch { arguments: vec!["acp".to_owned()], ..AcpLaunch::default() };
        Agents { locations, upstreams: Vec::new(), acp_agents: [("goose".to_owned(), goose)].into() }
    }

    fn of(api: ModelApi) -> ModelKeys {
        ModelKeys { apis: [api].into(), ..ModelKeys::default() }
    }

    #[test]
    fn the_default_is_the_first_installed_agent_with_a_key() {
        let base = tempfile::tempdir().unwrap();
        let (nothing, anthropic) = (ModelKeys::default(), of(ModelApi::Anthropic));
        let none = machine(base.path(), &[]);
        assert_eq!(none.default_agent(&anthropic), None);
        assert!(none.no_agent_problem(&anthropic).detail.contains("atoll agents install claude"));
        assert!(matches!(none.check_agent("claude", &anthropic), Err(AgentUnavailable::Missing(_))));

        let agents = machine(base.path(), &["claude"]);
        assert_eq!(agents.default_agent(&of(ModelApi::OpenAi)), None, "a key of another API does not count");
        assert_eq!(agents.check_agent("claude", &nothing), Err(AgentUnavailable::NoKey(Agent::Claude)));
        let problem = agents.no_agent_problem(&nothing);
        assert_eq!(problem.code, Code::NoAgent);
        assert!(problem.detail.contains("ANTHROPIC_API_KEY") && problem.detail.contains("demo"), "{}", problem.detail);
        let own = ModelKeys { variables: ["ANTHROPIC_BASE_URL".into()].into(), ..ModelKeys::default() };
        assert_eq!(agents.default_agent(&own).as_deref(), Some("claude"), "the sandbox brings its own key");
        assert_eq!(agents.default_agent(&anthropic).as_deref(), Some("claude"));
        assert_eq!(agents.check_agent("demo", &nothing), Ok(()), "the demo agent must be named");
        assert_eq!(
            agents.check_agent("unheard", &nothing),
            Err(AgentUnavailable::Unknown("unheard".into(), agents.agent_names()))
        );
        let two = machine(base.path(), &["codex"]);
        assert_eq!(
            two.default_agent(&of(ModelApi::OpenAi)).as_deref(),
            Some("codex"),
            "an agent without a key is skipped"
        );
    }

    #[test]
    fn a_program_is_inside_where_its_path_says() {
        let base = tempfile::tempdir().unwrap();
        let agents = machine(base.path(), &["claude"]);
        assert_eq!(agents.programs_for(Some("demo")), Ok(Vec::new()), "the demo agent needs no program");
        assert_eq!(agents.programs_for(None), Ok(Vec::new()));
        assert_eq!(agents.program_path_inside(Some("demo")), None);
        let mounts = agents.programs_for(Some("claude")).unwrap();
        let inside = agents.program_path_inside(Some("claude")).unwrap();
        assert_eq!(inside, format!("{}/{}", atoll_core::agent::AGENTS_DIR, mounts[0].relative_path));
        assert_eq!(mounts[0].host_path, base.path().join("claude").canonicalize().unwrap());
    }

    #[test]
    fn the_configuration_adds_agents_by_name() {
        let base = tempfile::tempdir().unwrap();
        let missing = machine(base.path(), &[]).check_agent("goose", &ModelKeys::default()).unwrap_err();
        assert!(missing.describe().contains("acp_agents.goose.program"), "{}", missing.describe());
        let agents = machine(base.path(), &["goose"]);
        assert_eq!(agents.check_agent("goose", &ModelKeys::default()), Ok(()));
        let mounts = agents.programs_for(Some("goose")).unwrap();
        let inside = agents.program_path_inside(Some("goose")).unwrap();
        assert_eq!(inside, format!("{}/{}", atoll_core::agent::AGENTS_DIR, mounts[0].relative_path));
        assert_eq!(agents.acp_launch("goose").unwrap().arguments, ["acp"]);
        assert_eq!(agents.acp_launch("acp"), None);
    }

    #[test]
    fn lists_every_driver_with_its_abilities() {
        let base = tempfile::tempdir().unwrap();
        let list = machine(base.path(), &["claude"]).list_agents(&of(ModelApi::Anthropic), false);
        let names: Vec<_> = list.iter().map(|view| view.name.as_str()).collect();
        assert_eq!(names, [driver::AGENT_NAMES, &["goose"]].concat());
        for view in &list {
            let driver = driver::create_driver(&view.name).or_else(|| driver::create_driver("acp"));
            assert_eq!(view.abilities, driver.unwrap().abilities(), "{}", view.name);
            assert_eq!(view.path, None, "only admins see paths");
            assert_eq!(view.usable, view.missing.is_empty(), "{view:?}");
        }
        assert!(list.iter().any(|view| view.name == "claude" && view.usable && !view.tested));
    }
}
