//! `atoll sandbox network`.

use crate::arguments::parse_word;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::table::{self, cell};
use crate::render::text;
use atoll_api::{HostTraffic, NetworkStatus};
use atoll_core::sandbox::{Network as NetworkSettings, NetworkPolicy};
use atoll_core::size::format_bytes;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox network sbx_…                              show the policy and the traffic
  atoll sandbox network sbx_… --allow pypi.org --allow '*.pythonhosted.org'
  atoll sandbox network sbx_… --policy allow --allow example.org:8443
  atoll sandbox network sbx_… --policy none                also closes open connections

--allow adds to the list of allowed hosts; with --policy, it replaces the list. Changes apply immediately.")]
pub struct Network {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Network policy: none, allow, packages (registries) or all
    #[arg(long, value_parser = parse_word::<NetworkPolicy>)]
    policy: Option<NetworkPolicy>,
    /// Allow a host: NAME, *.NAME, or either with :PORT (repeatable)
    #[arg(long, value_name = "HOST")]
    allow: Vec<String>,
}

pub async fn run(network: &Network, client: &ConnectedClient, output: &Output) -> Result {
    let id = network.id.resolve(client).await?;
    let current = client.get_network(id).await?;
    match requested_change(network, &current) {
        Some(change) => print_status(&client.change_network(id, &change).await?, output),
        None => print_status(&current, output),
    }
}

/// The new settings; `None` if the command only shows the current ones.
fn requested_change(network: &Network, current: &NetworkStatus) -> Option<NetworkSettings> {
    let (policy, mut allow) = match (network.policy, network.allow.is_empty()) {
        (Some(policy), _) => (policy, Vec::new()),
        (None, false) if current.policy == NetworkPolicy::Packages => (NetworkPolicy::Packages, current.allow.clone()),
        (None, false) => (NetworkPolicy::Allow, current.allow.clone()),
        (None, true) => return None,
    };
    for host in &network.allow {
        if !allow.contains(host) {
            allow.push(host.clone());
        }
    }
    Some(NetworkSettings { policy, allow })
}

fn print_status(status: &NetworkStatus, output: &Output) -> Result {
    if output.json {
        return output.print_response(status);
    }
    let list = if status.allow.is_empty() { String::new() } else { format!(": {}", status.allow.join(", ")) };
    output.print_line(&text::escape_line(&format!("policy {}{list}", status.policy)))?;
    if status.hosts.is_empty() {
        return output.print_line("no traffic yet");
    }
    let rows: Vec<_> = status.hosts.iter().map(table_row).collect();
    table::print_table(output, &["HOST", "PORT", "SENT", "RECEIVED", "CONNECTIONS", "REFUSED"], &rows)
}

fn table_row(host: &HostTraffic) -> Vec<table::Cell> {
    let counts = [host.connections, host.refused].map(|count| cell(count.to_string()));
    let mut row = vec![cell(&host.host), cell(host.port.to_string())];
    row.extend([host.sent, host.received].map(|bytes| cell(format_bytes(bytes))));
    row.extend(counts);
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_api::TrafficTotal;

    fn change(policy: Option<NetworkPolicy>, allow: &[&str]) -> Option<(NetworkPolicy, Vec<String>)> {
        change_from(NetworkPolicy::Allow, policy, allow)
    }

    fn change_from(
        current: NetworkPolicy,
        policy: Option<NetworkPolicy>,
        allow: &[&str],
    ) -> Option<(NetworkPolicy, Vec<String>)> {
        let allow = allow.iter().map(|host| (*host).to_owned()).collect();
        let network = Network { id: "last".parse().unwrap(), policy, allow };
        let allow = vec!["a.example".to_owned()];
        let current = NetworkStatus { policy: current, allow, hosts: Vec::new(), total: TrafficTotal::default() };
        let settings = requested_change(&network, &current)?;
        Some((settings.policy, settings.allow))
    }

    #[test]
    fn allow_adds_a_host_and_policy_replaces_the_list() {
        let hosts = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(change(None, &[]), None);
        let added = change(None, &["b.example", "a.example"]);
        assert_eq!(added, Some((NetworkPolicy::Allow, hosts(&["a.example", "b.example"]))));
        let extended = change_from(NetworkPolicy::Packages, None, &["b.example"]);
        assert_eq!(extended, Some((NetworkPolicy::Packages, hosts(&["a.example", "b.example"]))));
        let replaced = change(Some(NetworkPolicy::Allow), &["b.example"]);
        assert_eq!(replaced, Some((NetworkPolicy::Allow, hosts(&["b.example"]))));
        assert_eq!(change(Some(NetworkPolicy::None), &[]), Some((NetworkPolicy::None, hosts(&[]))));
    }
}
