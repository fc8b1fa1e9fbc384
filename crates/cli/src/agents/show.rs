//! What there is: asked of the server where one runs, else looked at as one started here would.

use super::places;
use crate::client::{Client, Connect, recorded};
use crate::failure::Result;
use crate::output::Output;
use crate::render::{table, text};
use crate::serve::options;
use atoll_config::Config;
use atoll_core::agent::Abilities;
use serde_json::{Value, json};

pub async fn run(connect: &Connect, config: &Config, output: &Output) -> Result {
    let items = known(connect, config).await?;
    if output.json {
        return items.iter().try_for_each(|item| output.object(item));
    }
    let rows: Vec<Vec<_>> = items.iter().map(row).collect();
    table::print(output, &["NAME", "VERSION", "TESTED", "KEY", "CAN", "PROGRAM"], &rows)?;
    for item in items.iter().filter(|item| item["usable"] != true) {
        let name = item["name"].as_str().unwrap_or_default();
        for missing in item["missing"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            output.line(&format!("{}: {}", text::inline(name), text::inline(missing)))?;
        }
    }
    Ok(())
}

/// Every agent, as `GET /agents` shows it.
pub async fn known(connect: &Connect, config: &Config) -> Result<Vec<Value>> {
    match asked(connect, config).await {
        Some(items) => items,
        None => Ok(here(config).await),
    }
}

/// The server's own view, if one runs.
async fn asked(connect: &Connect, config: &Config) -> Option<Result<Vec<Value>>> {
    let named = connect.server.is_some();
    if !named && recorded(&config.data_dir).is_none() {
        return None;
    }
    let connect = match named {
        true => connect.clone(),
        false => Connect { data_dir: Some(config.data_dir.clone()), ..connect.clone() },
    };
    let answer = async { listed(&Client::find(&connect)?).await };
    match answer.await {
        // One that was there is not any more: what it would see can be seen without it.
        Err(_) if !named => None,
        answer => Some(answer),
    }
}

/// What a server says of all agents.
pub async fn listed(client: &Client) -> Result<Vec<Value>> {
    match client.get("/agents", &[]).await?["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Err(client.not_atoll("agents without items")),
    }
}

async fn here(config: &Config) -> Vec<Value> {
    let agents = atoll_server::agents::Agents::new(places(config), &options::models(config));
    let keys = agents.own_keys();
    let listed = tokio::task::spawn_blocking(move || agents.list(&keys, true)).await.unwrap_or_default();
    listed.iter().map(|view| json!(view)).collect()
}

fn row(item: &Value) -> Vec<table::Cell> {
    let text = |field: &str| item[field].as_str().unwrap_or("-").to_owned();
    let word = |yes: bool| if yes { "yes" } else { "no" };
    let found = item["origin"].is_string();
    let builtin = item["origin"] == "builtin";
    let tested = if found { word(item["tested"] == true) } else { "-" };
    let abilities: Abilities = serde_json::from_value(item["abilities"].clone()).unwrap_or_default();
    let program = if builtin { "built in".to_owned() } else { text("path") };
    let key = if item["keys"].as_array().is_none_or(Vec::is_empty) { "none needed" } else { word(item["key"] == true) };
    let cells =
        [text("name"), text("version"), tested.to_owned(), key.to_owned(), abilities.names().join(" "), program];
    cells.map(table::cell).into()
}
