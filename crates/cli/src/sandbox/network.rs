//! `atoll sandbox network`, and what a new sandbox may reach.

use crate::arguments::word;
use crate::client::Client;
use crate::failure::Result;
use crate::output::Output;
use crate::render::table::{self, cell};
use crate::render::text;
use atoll_core::id::SandboxId;
use atoll_core::sandbox::NetworkPolicy;
use serde_json::{Value, json};

/// What a new sandbox may reach.
#[derive(Debug, Clone, clap::Args)]
pub struct Choice {
    /// What may leave the sandbox: none, allow or all [default: the project's, else none]
    #[arg(long, value_name = "POLICY", value_parser = word::<NetworkPolicy>)]
    network: Option<NetworkPolicy>,
    /// A host that the sandbox may reach: name, *.name, or either with :port; several times
    #[arg(long, value_name = "HOST")]
    allow_host: Vec<String>,
}

impl Choice {
    /// As the server takes it; a list without a policy means the policy of lists.
    pub fn body(&self) -> Option<Value> {
        let policy = self.network.or((!self.allow_host.is_empty()).then_some(NetworkPolicy::Allow))?;
        Some(json!({ "policy": policy, "allow": self.allow_host }))
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox network sbx_…                              what it may reach, and what it has
  atoll sandbox network sbx_… --allow pypi.org --allow '*.pythonhosted.org'
  atoll sandbox network sbx_… --policy allow --allow example.org:8443
  atoll sandbox network sbx_… --policy none                closes what is open, too

--allow adds to the list of a sandbox that has one; with --policy the list begins anew. It counts at once.")]
pub struct Network {
    id: SandboxId,
    /// What may leave it: none, allow or all
    #[arg(long, value_parser = word::<NetworkPolicy>)]
    policy: Option<NetworkPolicy>,
    /// A host that it may reach: name, *.name, or either with :port; several times
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
}

pub async fn run(network: &Network, client: &Client, output: &Output) -> Result {
    let path = format!("/sandboxes/{}/network", network.id);
    let now = client.get(&path, &[]).await?;
    let Some(wanted) = wanted(network, &now) else { return show(&now, output) };
    let changed = client.put(&path, &wanted).await?;
    show(&changed, output)
}

/// What to change to; nothing where only a look is wanted.
fn wanted(network: &Network, now: &Value) -> Option<Value> {
    let (policy, mut allow) = match (network.policy, network.allow.is_empty()) {
        (Some(policy), _) => (policy, Vec::new()),
        (None, false) => {
            let list = now["allow"].as_array().into_iter().flatten().filter_map(|host| host.as_str());
            (NetworkPolicy::Allow, list.map(str::to_owned).collect::<Vec<_>>())
        }
        (None, true) => return None,
    };
    for host in &network.allow {
        if !allow.contains(host) {
            allow.push(host.clone());
        }
    }
    Some(json!({ "policy": policy, "allow": allow }))
}

fn show(row: &Value, output: &Output) -> Result {
    if output.json {
        return output.object(row);
    }
    let allow: Vec<_> = row["allow"].as_array().into_iter().flatten().filter_map(|host| host.as_str()).collect();
    let list = if allow.is_empty() { String::new() } else { format!(": {}", allow.join(", ")) };
    output.line(&text::inline(&format!("policy {}{list}", row["policy"].as_str().unwrap_or_default())))?;
    let lines: Vec<_> = row["hosts"].as_array().into_iter().flatten().map(line).collect();
    if lines.is_empty() {
        return output.line("nothing has left it yet");
    }
    table::print(output, &["HOST", "PORT", "SENT", "RECEIVED", "CONNECTIONS", "REFUSED"], &lines)
}

fn line(host: &Value) -> Vec<table::Cell> {
    let figure = |field: &str| cell(host[field].as_u64().unwrap_or(0).to_string());
    vec![
        cell(host["host"].as_str().unwrap_or_default()),
        figure("port"),
        figure("sent"),
        figure("received"),
        figure("connections"),
        figure("refused"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(policy: Option<NetworkPolicy>, allow: &[&str]) -> Network {
        Network { id: SandboxId::new(), policy, allow: allow.iter().map(|host| (*host).to_owned()).collect() }
    }

    #[test]
    fn a_host_is_added_and_a_policy_begins_anew() {
        let now = json!({ "policy": "allow", "allow": ["a.example"] });
        assert_eq!(wanted(&network(None, &[]), &now), None);
        let added = wanted(&network(None, &["b.example", "a.example"]), &now);
        assert_eq!(added, Some(json!({ "policy": "allow", "allow": ["a.example", "b.example"] })));
        let anew = wanted(&network(Some(NetworkPolicy::Allow), &["b.example"]), &now);
        assert_eq!(anew, Some(json!({ "policy": "allow", "allow": ["b.example"] })));
        let none = wanted(&network(Some(NetworkPolicy::None), &[]), &now);
        assert_eq!(none, Some(json!({ "policy": "none", "allow": [] })));
    }
}
