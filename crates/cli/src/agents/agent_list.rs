//! `atoll agents`: lists agents from the running server, or from this machine.

use super::search_paths;
use crate::connect::{Connect, ConnectedClient, recorded_url};
use crate::failure::Result;
use crate::output::Output;
use crate::render::{table, text};
use atoll_api::Agent;
use atoll_config::Config;

pub async fn run(connect: &Connect, config: &Config, output: &Output) -> Result {
    let agents = list_agents(connect, config).await?;
    if output.json {
        return output.print_responses(&agents);
    }
    let rows: Vec<Vec<_>> = agents.iter().map(table_row).collect();
    table::print_table(output, &["NAME", "VERSION", "TESTED", "KEY", "ABILITIES", "PROGRAM"], &rows)?;
    for agent in agents.iter().filter(|agent| !agent.usable) {
        for missing in &agent.missing {
            output.print_line(&text::escape_line(&format!("{}: {missing}", agent.name)))?;
        }
    }
    Ok(())
}

/// All agents: from the running server if there is one, otherwise from the configuration.
pub async fn list_agents(connect: &Connect, config: &Config) -> Result<Vec<Agent>> {
    match list_from_running_server(connect, config).await {
        Some(agents) => agents,
        None => Ok(list_from_config(config).await),
    }
}

async fn list_from_running_server(connect: &Connect, config: &Config) -> Option<Result<Vec<Agent>>> {
    let is_named = connect.server.is_some();
    if !is_named && recorded_url(&config.data_dir).is_none() {
        return None;
    }
    let connect = match is_named {
        true => connect.clone(),
        false => Connect { data_dir: Some(config.data_dir.clone()), ..connect.clone() },
    };
    let listed = async { list_from_server(&ConnectedClient::find(&connect)?).await };
    match listed.await {
        // The recorded server has stopped: look at the machine directly.
        Err(_) if !is_named => None,
        listed => Some(listed),
    }
}

pub async fn list_from_server(client: &ConnectedClient) -> Result<Vec<Agent>> {
    Ok(client.list_agents().await?.items)
}

async fn list_from_config(config: &Config) -> Vec<Agent> {
    let agents = atoll_server::agents::Agents::new(search_paths(config), config);
    let keys = agents.own_keys();
    tokio::task::spawn_blocking(move || agents.list_agents(&keys, true)).await.unwrap_or_default()
}

fn table_row(agent: &Agent) -> Vec<table::Cell> {
    let yes_or_no = |yes: bool| if yes { "yes" } else { "no" };
    let origin = agent.origin.as_deref();
    let tested = origin.map_or("-", |_| yes_or_no(agent.tested));
    let program = if origin == Some("builtin") { "built in" } else { agent.path.as_deref().unwrap_or("-") };
    let key = if agent.keys.is_empty() { "not needed" } else { yes_or_no(agent.key) };
    let version = agent.version.as_deref().unwrap_or("-");
    [&agent.name, version, tested, key, &agent.abilities.names().join(" "), program].map(table::cell).into()
}
