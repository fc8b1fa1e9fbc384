//! `atoll agents`: which agents can work here, what each lacks, and how to get one.

mod fetch;
mod registry;
pub mod show;

use crate::arguments::word;
use crate::client::Connect;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::size;
use crate::settings::{self, ConfigFiles};
use atoll_agents::install::Installed;
use atoll_agents::{Agent, Places};
use atoll_config::Config;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll agents                                   which there are, and what each lacks
  atoll agents install claude                    get Claude Code, at the version that was tried
  atoll agents install codex --version 0.167.0   another version
  atoll agents remove claude

An agent is taken from where agents.NAME.path says, else from what was installed here, else from PATH.
A sandbox sees its program read-only; nothing is fetched when one starts.")]
pub struct Agents {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    files: ConfigFiles,
    #[command(flatten)]
    connect: Connect,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Get an agent from the npm registry into the data directory
    #[command(after_help = "\
Examples:
  atoll agents install claude
  NPM_CONFIG_REGISTRY=https://npm.example.org atoll agents install opencode

The package for this kind of machine is fetched from the registry that npm is set up for, checked against
its checksum and unpacked; no script of it is run.")]
    Install {
        /// claude, codex, gemini or opencode
        #[arg(value_parser = word::<Agent>)]
        name: Agent,
        /// Another version than the one that this version of Atoll was tried with
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
    /// Remove what was installed; sandboxes that run it keep it
    #[command(after_help = "Examples:\n  atoll agents remove claude\n  atoll agents remove claude --version 2.1.325")]
    Remove {
        /// claude, codex, gemini or opencode
        #[arg(value_parser = word::<Agent>)]
        name: Agent,
        /// Only this version
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
}

pub async fn run(agents: &Agents, output: &Output) -> Result {
    let flag = agents.connect.data_dir.as_ref().map(|dir| ("data_dir".to_owned(), dir.display().to_string()));
    let loaded = settings::load(flag.into_iter().collect(), &agents.files)?;
    let places = places(&loaded.config);
    match &agents.command {
        None => show::run(&agents.connect, &loaded.config, output).await,
        Some(Command::Install { name, version }) => install(&places, *name, version.as_deref(), output).await,
        Some(Command::Remove { name, version }) => remove(&places, *name, version.as_deref(), output),
    }
}

/// Where agents' programs are looked for.
pub fn places(config: &Config) -> Places {
    let named = |agent: Agent| {
        let agents = &config.agents;
        match agent {
            Agent::Acp => &agents.acp,
            Agent::Claude => &agents.claude,
            Agent::Codex => &agents.codex,
            Agent::Gemini => &agents.gemini,
            Agent::Opencode => &agents.opencode,
        }
        .clone()
    };
    let path = std::env::var_os("PATH").unwrap_or_default();
    Places {
        // The launcher follows no link on the way to a program.
        data_dir: config.data_dir.canonicalize().unwrap_or_else(|_| config.data_dir.clone()),
        configured: Agent::ALL.iter().filter_map(|agent| Some((*agent, named(*agent)?))).collect(),
        path: std::env::split_paths(&path).filter(|directory| directory.is_absolute()).collect(),
    }
}

async fn install(places: &Places, agent: Agent, version: Option<&str>, output: &Output) -> Result {
    let Some(package) = agent.package_here() else {
        let what = match agent {
            Agent::Acp => "`acp` is whatever program you name: there is no package of it".to_owned(),
            _ => format!("{} has no package for this kind of machine", agent.title()),
        };
        return Err(Failure::setup("no_package", what)
            .next(format!("Name its program with agents.{agent}.path in the configuration.")));
    };
    let version = version.unwrap_or(package.version);
    // Also says whether it is a version at all.
    places.directory(agent, version).map_err(Failure::input)?;
    let (installed, is_new) = match places.is_there(agent, version) {
        Some(there) => (there, false),
        None => (fetch::install(places, agent, package, version, output).await?, true),
    };
    told(agent, &installed, is_new, output)
}

fn told(agent: Agent, installed: &Installed, is_new: bool, output: &Output) -> Result {
    let Installed { version, directory, bytes } = installed;
    let tested = agent.is_tested(version);
    if output.json {
        return output.object(&json!({
            "name": agent, "version": version, "tested": tested, "directory": directory, "bytes": bytes, "new": is_new,
        }));
    }
    let is = if is_new { "is installed in" } else { "is there already:" };
    let untested = if tested { "" } else { "; Atoll was not tried with this version" };
    let (title, directory, bytes) = (agent.title(), directory.display(), size::bytes(*bytes));
    output.line(&format!("{title} {version} {is} {directory} ({bytes}){untested}"))
}

fn remove(places: &Places, agent: Agent, version: Option<&str>, output: &Output) -> Result {
    let removed = places.remove(agent, version).map_err(|error| Failure::setup("agents", error))?;
    if output.json {
        return output.object(&json!({ "name": agent, "removed": removed }));
    }
    match removed.as_slice() {
        [] => output.line(&format!("nothing of {} was installed here", agent.title())),
        versions => output.line(&format!("{} {} is gone", agent.title(), versions.join(", "))),
    }
}
