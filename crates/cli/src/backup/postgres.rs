//! Runs PostgreSQL's tools with the URL in their environment, because every user can see arguments.

use crate::failure::{Failure, Result};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// A database URL as libpq's environment variables.
pub struct LibpqEnvironment(Vec<(&'static str, SecretString)>);

/// URL parameters and their environment variables.
const PARAMETERS: &[(&str, &str)] = &[
    ("host", "PGHOST"),
    ("hostaddr", "PGHOSTADDR"),
    ("port", "PGPORT"),
    ("user", "PGUSER"),
    ("password", "PGPASSWORD"),
    ("dbname", "PGDATABASE"),
    ("sslmode", "PGSSLMODE"),
    ("sslrootcert", "PGSSLROOTCERT"),
    ("sslcert", "PGSSLCERT"),
    ("sslkey", "PGSSLKEY"),
    ("options", "PGOPTIONS"),
    ("connect_timeout", "PGCONNECT_TIMEOUT"),
];

impl LibpqEnvironment {
    pub fn from_url(url: &SecretString) -> Result<Self> {
        // The parser's own message could contain the password.
        let bad = || Failure::setup("config", "database_url is not a valid URL for PostgreSQL's tools");
        let url = Url::parse(url.expose_secret()).map_err(|_| bad())?;
        let mut variables = Vec::new();
        let mut put = |name, value: &str| {
            if !value.is_empty() {
                variables.push((name, SecretString::from(value)));
            }
        };
        put("PGHOST", &percent_decode(url.host_str().unwrap_or_default().trim_matches(['[', ']'])));
        put("PGPORT", &url.port().map(|port| port.to_string()).unwrap_or_default());
        put("PGUSER", &percent_decode(url.username()));
        put("PGPASSWORD", &percent_decode(url.password().unwrap_or_default()));
        put("PGDATABASE", &percent_decode(url.path().trim_start_matches('/')));
        for (name, value) in url.query_pairs() {
            if let Some((_, variable)) = PARAMETERS.iter().find(|(known, _)| *known == name) {
                put(*variable, &value);
            }
        }
        Ok(Self(variables))
    }

    /// A command with the connection in its environment and no stdin, so that it cannot prompt for a password.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(self.0.iter().map(|(name, value)| (*name, value.expose_secret())));
        command.stdin(std::process::Stdio::null());
        command
    }
}

fn percent_decode(text: &str) -> String {
    // `query_pairs` decodes `+` as a space, which is wrong for the other parts of a URL.
    let pair = format!("x={}", text.replace('+', "%2B").replace('&', "%26"));
    Url::parse(&format!("x:/?{pair}"))
        .ok()
        .and_then(|url| url.query_pairs().next().map(|(_, value)| value.into_owned()))
        .unwrap_or_default()
}

pub fn dump_database(url: &SecretString, to: &Path) -> Result {
    let variables = LibpqEnvironment::from_url(url)?;
    let mut dump = variables.command("pg_dump");
    dump.args(["--no-password", "--format=custom", "--no-owner", "--no-privileges", "--file"]).arg(to);
    run_tool(dump, "pg_dump")?;
    // `pg_restore --list` fails for a truncated dump.
    let mut list = Command::new("pg_restore");
    list.arg("--list").arg(to);
    run_tool(list, "pg_restore")
}

fn run_tool(mut command: Command, program: &str) -> Result {
    let ended = command.output().map_err(|error| {
        let failure = Failure::setup("no_pg_dump", format!("cannot run {program}: {error}"));
        match error.kind() {
            ErrorKind::NotFound => failure.with_hint("Install the package postgresql-client (Debian, Ubuntu)."),
            _ => failure,
        }
    })?;
    if ended.status.success() {
        return Ok(());
    }
    let stderr = String::from_utf8_lossy(&ended.stderr);
    let next = if stderr.contains("version mismatch") {
        "Install a postgresql-client that is at least as new as the server."
    } else {
        "Check database_url and its user's permissions; `atoll doctor` checks the connection."
    };
    Err(Failure::work("backup_failed", format!("{program} failed: {}", stderr.trim())).with_hint(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn translates_a_url_to_variables() {
        let url = SecretString::from("postgres://ada:p%40s%26s+w@db.example:5433/my%20db?sslmode=require&x=1");
        let variables = LibpqEnvironment::from_url(&url).unwrap();
        let pairs: Vec<(&str, &str)> = variables.0.iter().map(|(name, value)| (*name, value.expose_secret())).collect();
        assert_eq!(
            pairs,
            [
                ("PGHOST", "db.example"),
                ("PGPORT", "5433"),
                ("PGUSER", "ada"),
                ("PGPASSWORD", "p@s&s+w"),
                ("PGDATABASE", "my db"),
                ("PGSSLMODE", "require"),
            ]
        );
    }
}
