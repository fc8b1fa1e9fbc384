//! Services: programs that run in a sandbox beside the agent, such as a database.

pub mod restart;
pub mod status;

use crate::bounds::{self, OutOfBounds, reject_field};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub const MAX_SERVICES: usize = 8;
const MAX_NAME_BYTES: usize = 32;
const MAX_COMMAND_BYTES: usize = 8 * bounds::KB;
const MAX_ARGUMENTS: usize = 100;
const MAX_DIRECTORY_CHARS: usize = 4096;
const DEFAULT_READY_TIMEOUT_S: u32 = 60;
const MAX_READY_TIMEOUT_S: u32 = 600;

/// A program that the worker starts before the agent and restarts if it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Service {
    /// 1 to 32 of a-z, 0-9 and `-`.
    pub name: String,
    pub command: ServiceCommand,
    /// Its working directory, absolute or relative to the workspace; the workspace by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<String>,
    /// Variables in addition to those of the sandbox.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// The agent waits until this check passes. Without one, the service is ready if it still runs after a moment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready: Option<ReadyCheck>,
    /// Time limit of the ready check; 60 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(minimum = 1, maximum = 600))]
    pub ready_timeout_s: Option<u32>,
}

/// A string runs in /bin/sh; a list is a program and its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ServiceCommand {
    Shell(String),
    Argv(Vec<String>),
}

/// Decides when a service is ready.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ReadyCheck {
    /// The service accepts TCP connections on this port of the sandbox's loopback interface.
    Port(u16),
    /// This command exits with code 0.
    Command(ServiceCommand),
}

impl ServiceCommand {
    /// The program with its arguments.
    pub fn to_argv(&self) -> Vec<String> {
        match self {
            Self::Shell(command) => vec!["/bin/sh".to_owned(), "-c".to_owned(), command.clone()],
            Self::Argv(argv) => argv.clone(),
        }
    }

    /// The command as one line for people.
    pub fn describe(&self) -> String {
        match self {
            Self::Shell(command) => command.clone(),
            Self::Argv(argv) => argv.join(" "),
        }
    }

    fn check_bounds(&self, field: &str) -> Result<(), OutOfBounds> {
        match self {
            Self::Shell(command) => bounds::check_content(field, command, MAX_COMMAND_BYTES),
            Self::Argv(argv) => {
                if argv.first().is_none_or(|program| program.is_empty()) {
                    return reject_field(field, "needs a program");
                }
                if argv.len() > MAX_ARGUMENTS || argv.iter().map(String::len).sum::<usize>() > MAX_COMMAND_BYTES {
                    let limits = format!("{MAX_ARGUMENTS} arguments and {MAX_COMMAND_BYTES} bytes");
                    return reject_field(field, format!("has more than {limits}"));
                }
                if argv.iter().any(|word| word.contains('\0')) {
                    return reject_field(field, "must not contain NUL characters");
                }
                Ok(())
            }
        }
    }
}

impl Service {
    /// The port of its ready check.
    pub const fn port(&self) -> Option<u16> {
        match self.ready {
            Some(ReadyCheck::Port(port)) => Some(port),
            Some(ReadyCheck::Command(_)) | None => None,
        }
    }

    pub fn ready_timeout(&self) -> Duration {
        Duration::from_secs(self.ready_timeout_s.unwrap_or(DEFAULT_READY_TIMEOUT_S).into())
    }

    fn check_bounds(&self) -> Result<(), OutOfBounds> {
        let fits = (1..=MAX_NAME_BYTES).contains(&self.name.len())
            && self.name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-');
        if !fits {
            return reject_field("services.name", format!("must be 1 to {MAX_NAME_BYTES} of a-z, 0-9 and `-`"));
        }
        let field = |part: &str| format!("services.{}.{part}", self.name);
        self.command.check_bounds(&field("command"))?;
        match &self.ready {
            Some(ReadyCheck::Port(0)) => return reject_field(&field("ready.port"), "must be from 1 to 65535"),
            Some(ReadyCheck::Command(command)) => command.check_bounds(&field("ready.command"))?,
            Some(ReadyCheck::Port(_)) | None => {}
        }
        if let Some(directory) = &self.directory {
            bounds::check_line(&field("directory"), directory, MAX_DIRECTORY_CHARS)?;
        }
        if self.ready_timeout_s.is_some_and(|seconds| !(1..=MAX_READY_TIMEOUT_S).contains(&seconds)) {
            return reject_field(&field("ready_timeout_s"), format!("must be from 1 to {MAX_READY_TIMEOUT_S}"));
        }
        bounds::check_env(&self.env).map_err(|error| OutOfBounds { field: field("env"), ..error })
    }
}

/// Checks the services of a request or a project.
pub fn check_services(services: &[Service]) -> Result<(), OutOfBounds> {
    if services.len() > MAX_SERVICES {
        return reject_field("services", format!("there are {}; at most {MAX_SERVICES} are allowed", services.len()));
    }
    services.iter().try_for_each(Service::check_bounds)?;
    let mut names = BTreeSet::new();
    match services.iter().find(|service| !names.insert(&service.name)) {
        Some(twice) => reject_field("services", format!("`{}` is listed twice", twice.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn parse(value: Value) -> Service {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_command_is_a_shell_line_or_a_program_with_arguments() {
        let shell = parse(json!({"name": "db", "command": "postgres -D d", "ready": {"port": 5432}}));
        assert_eq!(shell.command.to_argv(), ["/bin/sh", "-c", "postgres -D d"]);
        assert_eq!((shell.port(), shell.ready_timeout()), (Some(5432), Duration::from_secs(60)));
        let argv = parse(json!({"name": "db", "command": ["redis-server", "--save", ""], "ready_timeout_s": 5,
                                "ready": {"command": ["redis-cli", "ping"]}}));
        assert_eq!(argv.command.to_argv(), ["redis-server", "--save", ""]);
        assert_eq!((argv.port(), argv.ready_timeout()), (None, Duration::from_secs(5)));
        for service in [shell, argv] {
            check_services(std::slice::from_ref(&service)).unwrap();
            assert_eq!(parse(serde_json::to_value(&service).unwrap()), service);
        }
        let unknown = json!({"name": "db", "command": "x", "ready": {"log": "started"}});
        assert!(serde_json::from_value::<Service>(unknown).is_err());
    }

    #[test]
    fn services_are_bounded() {
        let with = |changes: Value| {
            let mut service = json!({"name": "db", "command": "x"});
            service.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            check_services(&[parse(service)]).unwrap_err().field
        };
        for name in ["", "DB", "a_b", "a b", &"n".repeat(33)] {
            assert_eq!(with(json!({ "name": name })), "services.name", "{name}");
        }
        for (changes, field) in [
            (json!({"command": " "}), "services.db.command"),
            (json!({"command": []}), "services.db.command"),
            (json!({"command": ["a", "b\0"]}), "services.db.command"),
            (json!({"command": "x".repeat(9000)}), "services.db.command"),
            (json!({"ready": {"port": 0}}), "services.db.ready.port"),
            (json!({"ready": {"command": ""}}), "services.db.ready.command"),
            (json!({"ready_timeout_s": 0}), "services.db.ready_timeout_s"),
            (json!({"ready_timeout_s": 601}), "services.db.ready_timeout_s"),
            (json!({"directory": "a\nb"}), "services.db.directory"),
            (json!({"env": {"PATH": "/x"}}), "services.db.env"),
        ] {
            assert_eq!(with(changes.clone()), field, "{changes}");
        }
        let many = |count: usize| (0..count).map(|n| parse(json!({"name": format!("s{n}"), "command": "x"})));
        check_services(&many(MAX_SERVICES).collect::<Vec<_>>()).unwrap();
        assert!(check_services(&many(MAX_SERVICES + 1).collect::<Vec<_>>()).is_err());
        let twice = parse(json!({"name": "db", "command": "x"}));
        assert!(check_services(&[twice.clone(), twice]).unwrap_err().detail.contains("`db` is listed twice"));
    }
}
