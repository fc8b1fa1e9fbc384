//! `atoll agents`: lists, installs and removes agents.

pub mod agent_list;
mod download;
mod registry;

use crate::arguments::parse_word;
use crate::connect::Connect;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::settings::{self, ConfigFiles};
use atoll_agents::install::InstalledVersion;
use atoll_agents::{Agent, AgentLocations};
use atoll_config::Config;
use atoll_core::size::format_bytes;
use serde_json::json;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll agents                                   list agents and what each one lacks
  atoll agents install claude                    install Claude Code at the tested version
  atoll agents install codex --version 0.167.0   install another version
  atoll agents remove claude

Atoll looks for an agent at agents.NAME.path, then in the data directory, then in PATH.
Sandboxes mount its program read-only and download nothing.")]
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
    /// Install an agent from the npm registry
    #[command(after_help = "\
Examples:
  atoll agents install claude
  NPM_CONFIG_REGISTRY=https://npm.example.org atoll agents install opencode

The command downloads the package for this machine from npm's configured registry, verifies its checksum
and unpacks it into the data directory. It runs no scripts of the package.")]
    Install {
        /// Agent: claude, codex, gemini or opencode
        #[arg(value_parser = parse_word::<Agent>)]
        name: Agent,
        /// Version [default: the tested one]
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
    /// Remove an installed agent; running sandboxes keep it
    #[command(after_help = "Examples:\n  atoll agents remove claude\n  atoll agents remove claude --version 2.1.325")]
    Remove {
        /// Agent: claude, codex, gemini or opencode
        #[arg(value_parser = parse_word::<Agent>)]
        name: Agent,
        /// Remove only this version
        #[arg(long, value_name = "VERSION")]
        version: Option<String>,
    },
}

pub async fn run(agents: &Agents, output: &Output) -> Result {
    let loaded = settings::load_with_data_dir(agents.connect.data_dir.as_deref(), &agents.files)?;
    let locations = search_paths(&loaded.config);
    match &agents.command {
        None => agent_list::run(&agents.connect, &loaded.config, output).await,
        Some(Command::Install { name, version }) => install(&locations, *name, version.as_deref(), output).await,
        Some(Command::Remove { name, version }) => remove(&locations, *name, version.as_deref(), output),
    }
}

/// The locations where Atoll looks for agents' programs.
pub fn search_paths(config: &Config) -> AgentLocations {
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
    AgentLocations {
        // The launcher does not follow links on the path of a program.
        data_dir: config.data_dir.canonicalize().unwrap_or_else(|_| config.data_dir.clone()),
        configured: Agent::ALL.iter().filter_map(|agent| Some((*agent, named(*agent)?))).collect(),
        acp_programs: config.acp_agents.iter().map(|(name, agent)| (name.clone(), agent.program.clone())).collect(),
        path: std::env::split_paths(&path).filter(|directory| directory.is_absolute()).collect(),
    }
}

async fn install(locations: &AgentLocations, agent: Agent, version: Option<&str>, output: &Output) -> Result {
    let Some(package) = agent.package_for_host() else {
        let what = match agent {
            Agent::Acp => "`acp` is a program of your choice and has no package".to_owned(),
            _ => format!("{} has no package for this machine", agent.display_name()),
        };
        return Err(Failure::setup("no_package", what)
            .with_hint(format!("Set agents.{agent}.path in the configuration to its program.")));
    };
    let version = version.unwrap_or(package.version);
    // This also validates the version.
    locations.version_dir(agent, version).map_err(Failure::input)?;
    let (installed, is_new) = match locations.find_version(agent, version) {
        Some(there) => (there, false),
        None => (download::download_agent(locations, agent, package, version, output).await?, true),
    };
    print_installed(agent, &installed, is_new, output)
}

fn print_installed(agent: Agent, installed: &InstalledVersion, is_new: bool, output: &Output) -> Result {
    let InstalledVersion { version, directory, bytes } = installed;
    let tested = agent.is_tested(version);
    if output.json {
        return output.print_object(&json!({
            "name": agent, "version": version, "tested": tested, "directory": directory, "bytes": bytes, "new": is_new,
        }));
    }
    let is = if is_new { "is installed in" } else { "was already installed in" };
    let untested = if tested { "" } else { "; Atoll is not tested with this version" };
    let (title, directory, bytes) = (agent.display_name(), directory.display(), format_bytes(*bytes));
    output.print_line(&format!("{title} {version} {is} {directory} ({bytes}){untested}"))
}

fn remove(locations: &AgentLocations, agent: Agent, version: Option<&str>, output: &Output) -> Result {
    let removed = locations.remove_versions(agent, version).map_err(|error| Failure::setup("agents", error))?;
    if output.json {
        return output.print_object(&json!({ "name": agent, "removed": removed }));
    }
    match removed.as_slice() {
        [] => output.print_line(&format!("{} was not installed", agent.display_name())),
        versions => output.print_line(&format!("removed {} {}", agent.display_name(), versions.join(", "))),
    }
}
