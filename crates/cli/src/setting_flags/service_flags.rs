//! The flags of services that run beside the agent.

use crate::arguments::{parse_json_file, parse_pair};
use atoll_core::service::{ReadyCheck, Service, ServiceCommand};
use std::collections::BTreeMap;

/// A list of services. The alias keeps clap from taking it for a list of values.
type ServiceList = Vec<Service>;

#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "Services")]
pub struct ServiceFlags {
    /// Run COMMAND beside the agent, ready when it accepts connections on PORT (repeatable)
    #[arg(long = "service", value_name = "NAME[:PORT]=COMMAND", value_parser = parse_service)]
    services: Vec<Service>,
    /// Services with all their settings: a file with a JSON list
    #[arg(long = "services", value_name = "FILE", value_parser = parse_json_file::<ServiceList>, conflicts_with = "services")]
    service_file: Option<ServiceList>,
    /// Run without the project's services
    #[arg(long, conflicts_with_all = ["services", "service_file"])]
    no_services: bool,
}

impl ServiceFlags {
    /// The services of the request; `None` without any flag.
    pub fn settings(&self) -> Option<Vec<Service>> {
        let given = (!self.services.is_empty()).then(|| self.services.clone());
        given.or_else(|| self.service_file.clone()).or_else(|| self.no_services.then(Vec::new))
    }
}

fn parse_service(text: &str) -> Result<Service, String> {
    let (name, command) = parse_pair(text).map_err(|_| "expected NAME=COMMAND or NAME:PORT=COMMAND")?;
    let (name, ready) = match name.split_once(':') {
        Some((name, port)) => {
            let port = port.parse().ok().filter(|port| *port > 0);
            let port = port.ok_or("the port after `:` is a number from 1 to 65535")?;
            (name.to_owned(), Some(ReadyCheck::Port(port)))
        }
        None => (name, None),
    };
    if command.trim().is_empty() {
        return Err("the command after `=` is empty".to_owned());
    }
    let command = ServiceCommand::Shell(command);
    Ok(Service { name, command, directory: None, env: BTreeMap::new(), ready, ready_timeout_s: None })
}
