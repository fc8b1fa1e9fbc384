//! PostgreSQL's own tools, with the URL in their environment: arguments can be seen by everybody.

use crate::failure::{Failure, Result};
use reqwest::Url;
use secrecy::{ExposeSecret, SecretString};
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

/// A database's URL as the variables that libpq reads.
pub struct Variables(Vec<(&'static str, SecretString)>);

/// Parameters of a URL that have a variable.
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

impl Variables {
    pub fn of(url: &SecretString) -> Result<Self> {
        // The parser's own words could repeat the password.
        let bad = || Failure::setup("config", "database_url is not a URL that PostgreSQL's tools can be given");
        let url = Url::parse(url.expose_secret()).map_err(|_| bad())?;
        let mut variables = Vec::new();
        let mut put = |name, value: &str| {
            if !value.is_empty() {
                variables.push((name, SecretString::from(value)));
            }
        };
        put("PGHOST", &decoded(url.host_str().unwrap_or_default().trim_matches(['[', ']'])));
        put("PGPORT", &url.port().map(|port| port.to_string()).unwrap_or_default());
        put("PGUSER", &decoded(url.username()));
        put("PGPASSWORD", &decoded(url.password().unwrap_or_default()));
        put("PGDATABASE", &decoded(url.path().trim_start_matches('/')));
        for (name, value) in url.query_pairs() {
            if let Some((_, variable)) = PARAMETERS.iter().find(|(known, _)| *known == name) {
                put(*variable, &value);
            }
        }
        Ok(Self(variables))
    }

    /// One of the tools, told by its environment where to go; it asks nobody for a password.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.envs(self.0.iter().map(|(name, value)| (*name, value.expose_secret())));
        command.stdin(std::process::Stdio::null());
        command
    }
}

fn decoded(text: &str) -> String {
    // `form_urlencoded` also reads `+` as a space, which a URL's other parts do not.
    let pair = format!("x={}", text.replace('+', "%2B").replace('&', "%26"));
    Url::parse(&format!("x:/?{pair}"))
        .ok()
        .and_then(|url| url.query_pairs().next().map(|(_, value)| value.into_owned()))
        .unwrap_or_default()
}

pub fn dump(url: &SecretString, to: &Path) -> Result {
    let variables = Variables::of(url)?;
    let mut dump = variables.command("pg_dump");
    dump.args(["--no-password", "--format=custom", "--no-owner", "--no-privileges", "--file"]).arg(to);
    run(dump, "pg_dump")?;
    // Reading its table of contents tells a whole dump from a torn one.
    let mut list = Command::new("pg_restore");
    list.arg("--list").arg(to);
    run(list, "pg_restore")
}

fn run(mut command: Command, program: &str) -> Result {
    let ended = command.output().map_err(|error| {
        let failure = Failure::setup("no_pg_dump", format!("can't run {program}: {error}"));
        match error.kind() {
            ErrorKind::NotFound => failure.next("On Debian and Ubuntu it is in the package postgresql-client."),
            _ => failure,
        }
    })?;
    if ended.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&ended.stderr);
    let next = if said.contains("version mismatch") {
        "PostgreSQL's tools must not be older than its server: install the postgresql-client of that version."
    } else {
        "Check database_url, and that its user may read everything; `atoll doctor` looks at it."
    };
    Err(Failure::work("backup_failed", format!("{program} failed: {}", said.trim())).next(next))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_becomes_variables() {
        let url = SecretString::from("postgres://ada:p%40s%26s+w@db.example:5433/my%20db?sslmode=require&x=1");
        let variables = Variables::of(&url).unwrap();
        let shown: Vec<(&str, &str)> = variables.0.iter().map(|(name, value)| (*name, value.expose_secret())).collect();
        assert_eq!(
            shown,
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
