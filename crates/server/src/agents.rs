//! The agents that this server has: whether each can work here, and what it would take.

use crate::options::{ModelUpstream, Models};
use crate::problem::{Code, Problem, Result};
use atoll_agents::{Agent, Found, Missing, Places};
use atoll_core::agent::{Abilities, DEMO, program_inside};
use atoll_core::id::ProjectId;
use atoll_core::model::Api;
use atoll_core::provider::Shown;
use atoll_core::sandbox::{ProviderKind, Settings};
use atoll_store::{Tx, secrets};
use atoll_worker::driver;
use serde::Serialize;
use std::collections::BTreeSet;

/// What agents can work with: where their programs may be, and who serves their models.
#[derive(Debug)]
pub struct Agents {
    places: Places,
    upstreams: Vec<Upstream>,
}

/// Of a place where models are served, as much as is needed to know whether there is a key for it.
#[derive(Debug)]
struct Upstream {
    api: Api,
    has_key: bool,
    /// The stored secret that may hold it.
    secret: Option<String>,
}

/// Which keys somebody has seen to: those of the server, those in its store, and those that a sandbox brings along.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Keys {
    apis: BTreeSet<Api>,
    variables: BTreeSet<String>,
    /// A sandbox gets secrets as variables or files; which, is theirs to say.
    exposed: bool,
}

impl Keys {
    fn fit(&self, agent: Agent) -> bool {
        let brings = |name: &String| agent.keys().contains(&name.as_str()) || name.ends_with("_BASE_URL");
        agent.apis().is_empty()
            || agent.apis().iter().any(|api| self.apis.contains(api))
            || self.variables.iter().any(brings)
            || self.exposed
    }
}

/// An agent as it is shown.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
#[schema(as = Agent)]
pub struct AgentView {
    pub name: String,
    pub title: String,
    /// Whether a sandbox on this machine can be made with it now.
    pub usable: bool,
    /// Its program on the server's machine; only for admins.
    pub path: Option<String>,
    /// How it was found: `installed`, `configured`, `path` or `builtin`.
    pub origin: Option<String>,
    pub version: Option<String>,
    /// Whether this is the version that Atoll was tried with.
    pub tested: bool,
    /// Whether there is a key for its models, or it needs none.
    pub key: bool,
    /// The variables that may hold it.
    pub keys: Vec<&'static str>,
    pub abilities: Abilities,
    /// What keeps it from working here, in sentences.
    pub missing: Vec<String>,
}

/// Why an agent can't work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unable {
    Unknown(String),
    Missing(Missing),
    NoKey(Agent),
}

impl Unable {
    /// What is wrong, and what mends it.
    pub fn sentence(&self) -> String {
        match self {
            Self::Unknown(name) => {
                format!("this version does not know an agent `{name}`; it has {}", driver::NAMES.join(", "))
            }
            Self::Missing(missing) => missing.to_string(),
            Self::NoKey(agent) => {
                let variable = agent.keys().first().copied().unwrap_or_default();
                format!(
                    "there is no key for {}: start the server with {variable} in its environment, or store it with \
                     `atoll secret set {variable}`",
                    agent.title()
                )
            }
        }
    }
}

impl From<Unable> for Problem {
    fn from(unable: Unable) -> Self {
        let code = match &unable {
            Unable::Unknown(_) => Code::NoAgent,
            Unable::Missing(_) => Code::AgentMissing,
            Unable::NoKey(_) => Code::AgentKeyMissing,
        };
        Self::new(code, unable.sentence())
    }
}

/// The agent of a name that there is a driver for, unless it needs no program.
fn with_program(name: &str) -> Result<Option<Agent>, Unable> {
    match (name, name.parse::<Agent>()) {
        (DEMO, _) => Ok(None),
        (_, Ok(agent)) if driver::NAMES.contains(&name) => Ok(Some(agent)),
        (_, _) => Err(Unable::Unknown(name.to_owned())),
    }
}

impl Agents {
    pub fn new(places: Places, models: &Models) -> Self {
        let upstream = |upstream: &ModelUpstream| Upstream {
            api: upstream.api,
            has_key: upstream.key.is_some() || !upstream.needs_key,
            secret: upstream.secret.clone(),
        };
        Self { places, upstreams: models.upstreams.iter().map(upstream).collect() }
    }

    /// The keys that this server has itself.
    pub fn own_keys(&self) -> Keys {
        let with_key = self.upstreams.iter().filter(|upstream| upstream.has_key);
        Keys { apis: with_key.map(|upstream| upstream.api).collect(), ..Keys::default() }
    }

    /// The keys that a sandbox of a project would have.
    pub async fn keys(&self, tx: &mut dyn Tx, project: ProjectId, settings: &Settings) -> Result<Keys> {
        let Keys { mut apis, .. } = self.own_keys();
        for upstream in &self.upstreams {
            if let Some(name) = &upstream.secret
                && !apis.contains(&upstream.api)
                && secrets::find(tx, project, name).await?.is_some()
            {
                apis.insert(upstream.api);
            }
        }
        let variables = settings.env.keys().cloned().collect();
        Ok(Keys { apis, variables, exposed: !settings.exposed_secrets.is_empty() })
    }

    fn find(&self, agent: Agent) -> Result<Found, Unable> {
        self.places.find(agent).map_err(Unable::Missing)
    }

    /// Whether an agent can work in a sandbox of this machine, looked at before one is made.
    pub fn check(&self, name: &str, keys: &Keys) -> Result<(), Unable> {
        let Some(agent) = with_program(name)? else { return Ok(()) };
        self.find(agent)?.shown().map_err(Unable::Missing)?;
        if keys.fit(agent) { Ok(()) } else { Err(Unable::NoKey(agent)) }
    }

    /// The agent of a sandbox that names none: the first that is here and has its key.
    pub fn first(&self, keys: &Keys) -> Option<String> {
        let mut names = Agent::BY_CHOICE.iter().map(|agent| agent.as_str());
        names.find(|name| self.check(name, keys).is_ok()).map(str::to_owned)
    }

    /// What to do where no agent was named and none can work.
    pub fn none(&self, keys: &Keys) -> Problem {
        // One that is here and only lacks its key is the shortest way.
        let almost = Agent::BY_CHOICE.iter().find_map(|agent| match self.check(agent.as_str(), keys) {
            Err(unable @ Unable::NoKey(_)) => Some(unable.sentence()),
            Ok(()) | Err(Unable::Unknown(_) | Unable::Missing(_)) => None,
        });
        let how =
            almost.unwrap_or_else(|| "no agent is on this machine: `atoll agents install claude` gets one".into());
        Problem::new(Code::NoAgent, format!("{how}; \"agent\": \"demo\" needs no model and no key"))
    }

    /// What a sandbox is shown of this machine for its agent to run.
    pub fn programs(&self, provider: ProviderKind, agent: Option<&str>) -> Result<Vec<Shown>, Unable> {
        match agent {
            Some(name) if provider.is_on_this_machine() => match with_program(name)? {
                Some(agent) => self.find(agent)?.shown().map_err(Unable::Missing),
                None => Ok(Vec::new()),
            },
            Some(_) | None => Ok(Vec::new()),
        }
    }

    /// Where the agent's program is in a sandbox; elsewhere it is looked for by its name.
    pub fn inside(provider: ProviderKind, agent: Option<&str>) -> Option<String> {
        let name = agent.filter(|_| provider.is_on_this_machine())?;
        with_program(name).ok().flatten().map(|agent| program_inside(agent.as_str()))
    }

    /// All that there is a driver for. Programs may be started to ask for their version: not to be called where
    /// waiting does harm.
    pub fn list(&self, keys: &Keys, with_paths: bool) -> Vec<AgentView> {
        driver::NAMES.iter().map(|name| self.view(name, keys, with_paths)).collect()
    }

    fn view(&self, name: &str, keys: &Keys, with_paths: bool) -> AgentView {
        let abilities = driver::find(name).map(|driver| driver.abilities()).unwrap_or_default();
        let checked = self.check(name, keys);
        let agent = name.parse::<Agent>().ok();
        let found = agent.and_then(|agent| self.find(agent).ok());
        let version = found.as_ref().and_then(Found::version);
        let mut missing: Vec<String> = checked.as_ref().err().map(Unable::sentence).into_iter().collect();
        let key = agent.is_none_or(|agent| keys.fit(agent));
        if let (Some(agent), Err(Unable::Missing(_)), false) = (agent, &checked, key) {
            missing.push(Unable::NoKey(agent).sentence());
        }
        AgentView {
            name: name.to_owned(),
            title: agent.map_or("the built-in demo, without a model", Agent::title).to_owned(),
            usable: checked.is_ok(),
            path: found.as_ref().filter(|_| with_paths).map(|found| found.program.display().to_string()),
            origin: match (agent, &found) {
                (None, _) => Some("builtin".to_owned()),
                (Some(_), found) => found.as_ref().map(|found| found.origin.to_string()),
            },
            tested: agent.is_none_or(|agent| version.as_deref().is_some_and(|version| agent.is_tested(version))),
            version,
            key,
            keys: agent.map(Agent::keys).unwrap_or_default().to_vec(),
            abilities,
            missing,
        }
    }
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
        let places = Places { data_dir: base.join("data"), path: vec![base.to_path_buf()], ..Places::default() };
        Agents::new(places, &Models::default())
    }

    fn of(api: Api) -> Keys {
        Keys { apis: [api].into(), ..Keys::default() }
    }

    #[test]
    fn the_first_that_is_here_and_has_its_key_is_taken() {
        let base = tempfile::tempdir().unwrap();
        let (nothing, anthropic) = (Keys::default(), of(Api::Anthropic));
        let none = machine(base.path(), &[]);
        assert_eq!(none.first(&anthropic), None);
        assert!(none.none(&anthropic).detail.contains("atoll agents install claude"));
        assert!(matches!(none.check("claude", &anthropic), Err(Unable::Missing(_))));

        let agents = machine(base.path(), &["claude"]);
        assert_eq!(agents.first(&of(Api::OpenAi)), None, "the key of another's models is none");
        assert_eq!(agents.check("claude", &nothing), Err(Unable::NoKey(Agent::Claude)));
        let problem = agents.none(&nothing);
        assert_eq!(problem.code, Code::NoAgent);
        assert!(problem.detail.contains("ANTHROPIC_API_KEY") && problem.detail.contains("demo"), "{}", problem.detail);
        let own = Keys { variables: ["ANTHROPIC_BASE_URL".into()].into(), ..Keys::default() };
        assert_eq!(agents.first(&own).as_deref(), Some("claude"), "the sandbox brings its own");
        assert_eq!(agents.first(&anthropic).as_deref(), Some("claude"));
        assert_eq!(agents.check("demo", &nothing), Ok(()), "demo only when it is named");
        assert_eq!(agents.check("nobody", &nothing), Err(Unable::Unknown("nobody".into())));
        let two = machine(base.path(), &["codex"]);
        assert_eq!(two.first(&of(Api::OpenAi)).as_deref(), Some("codex"), "one without its key is passed over");
    }

    #[test]
    fn only_sandboxes_of_this_machine_are_shown_a_program() {
        let base = tempfile::tempdir().unwrap();
        let agents = machine(base.path(), &["claude"]);
        for provider in ProviderKind::ALL {
            let shown = agents.programs(*provider, Some("claude")).unwrap();
            assert_eq!(!shown.is_empty(), provider.is_on_this_machine(), "{provider}");
            let inside = Agents::inside(*provider, Some("claude"));
            assert_eq!(inside.is_some(), provider.is_on_this_machine(), "{provider}");
            assert_eq!(Agents::inside(*provider, Some("demo")), None);
        }
        let shown = agents.programs(ProviderKind::Local, Some("claude")).unwrap();
        let inside = Agents::inside(ProviderKind::Local, Some("claude")).unwrap();
        assert_eq!(inside, format!("{}/{}", atoll_core::agent::PLACE, shown[0].at));
        assert_eq!(shown[0].from, base.path().join("claude").canonicalize().unwrap());
    }

    #[test]
    fn every_driver_is_listed_with_what_it_can_do() {
        let base = tempfile::tempdir().unwrap();
        let list = machine(base.path(), &["claude"]).list(&of(Api::Anthropic), false);
        assert_eq!(list.iter().map(|view| view.name.as_str()).collect::<Vec<_>>(), driver::NAMES);
        for view in &list {
            assert_eq!(view.abilities, driver::find(&view.name).unwrap().abilities(), "{}", view.name);
            assert_eq!(view.path, None, "paths are for admins");
            assert_eq!(view.usable, view.missing.is_empty(), "{view:?}");
        }
        assert!(list.iter().any(|view| view.name == "claude" && view.usable && !view.tested));
    }
}
