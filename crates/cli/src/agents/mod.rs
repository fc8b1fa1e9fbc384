//! `atoll agents`: which agents' programs are on this machine, and how to get one.

use atoll_agents::{Agent, Places};
use atoll_config::Config;

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
