//! `atoll serve`: runs the server.

mod data_dir;
mod json_line;
mod logging;
pub mod server_options;
pub mod server_user;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::runtime::build_runtime;
use crate::settings::{self, ConfigFiles};
use atoll_config::{Level, LoadedConfig, LogFormat};
use atoll_jail::Launcher;
use atoll_server::Server;
use serde_json::json;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll serve
  atoll serve --listen 127.0.0.1:0 --data-dir /tmp/atoll --json
  atoll serve --listen 0.0.0.0:7700 --tls-cert tls.crt --tls-key tls.key
  DATABASE_URL=postgres://atoll:secret@127.0.0.1/atoll atoll serve

Flags override the environment, which overrides files and defaults; `atoll config` shows all settings.
ATOLL_LOG sets a log filter such as warn,atoll_server=debug.
SIGTERM and SIGINT stop the server after its running requests; it loses nothing that it has acknowledged.")]
pub struct Serve {
    /// Listen on this address [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Store all data in this directory [default: the user's data directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Database: postgres://… or sqlite:PATH [default: SQLite in the data directory]
    ///
    /// Put a URL with a password into DATABASE_URL: other users can see arguments.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Allow a public address without TLS; tokens are sent in clear text
    #[arg(long)]
    insecure_listen: bool,
    /// TLS certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// TLS private key, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// URL for workers on other machines
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Log format: text or json
    #[arg(long, value_name = "FORMAT", value_parser = crate::arguments::parse_word::<LogFormat>)]
    log_format: Option<LogFormat>,
    /// Log level: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", value_parser = crate::arguments::parse_word::<Level>)]
    log_level: Option<Level>,
    #[command(flatten)]
    files: ConfigFiles,
}

impl Serve {
    fn config_flags(&self) -> Vec<(String, String)> {
        let flags = [
            ("server.listen", self.listen.clone()),
            ("data_dir", self.data_dir.clone()),
            ("database_url", self.database_url.clone()),
            ("server.insecure_listen", self.insecure_listen.then(|| "true".to_owned())),
            ("server.tls_cert", self.tls_cert.clone()),
            ("server.tls_key", self.tls_key.clone()),
            ("server.public_url", self.public_url.clone()),
            ("log.format", self.log_format.map(|word| word.to_string())),
            ("log.level", self.log_level.map(|word| word.to_string())),
        ];
        flags.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

pub fn run(serve: &Serve, output: &Output) -> Result {
    let loaded = settings::load_config(serve.config_flags(), &serve.files)?;
    logging::start_logging(&loaded.config.log)?;
    let launcher = server_user::start_as_user(&loaded.config)?;
    let runtime = build_runtime(Builder::new_multi_thread())?;
    runtime.block_on(serve_until_stopped(&loaded, launcher, output))
}

async fn serve_until_stopped(
    loaded: &LoadedConfig,
    launcher: Result<Arc<Launcher>, String>,
    output: &Output,
) -> Result {
    let signal_error = |error| Failure::setup("signals", format!("cannot install signal handlers: {error}"));
    // Listen before the start, so that no signal during it is lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(signal_error)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(signal_error)?;
    log_warnings(loaded);
    if let Err(why) = &launcher {
        tracing::warn!("this machine cannot create sandboxes: {why}");
    }
    let server = Box::pin(Server::start(server_options::server_options("atoll serve", &loaded.config, launcher)))
        .await
        .map_err(start_failure)?;
    announce_start(loaded, &server, output)?;
    print_sign_in_link(loaded, &server, output).await?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    tracing::info!("stopping; a second signal stops at once");
    tokio::select! {
        () = server.stop() => {}
        _ = terminate.recv() => return Err(Failure::interrupted()),
        _ = interrupt.recv() => return Err(Failure::interrupted()),
    }
    tracing::info!("stopped");
    Ok(())
}

fn log_warnings(loaded: &LoadedConfig) {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if rustix::process::geteuid().is_root() {
        tracing::warn!(
            "the server runs as root, which it does not need: set server.user, and only the launcher stays root"
        );
    }
    if loaded.config.server.insecure_listen && loaded.config.server.tls().is_none() {
        tracing::warn!(
            "the server listens without TLS on {}: tokens are sent in clear text",
            loaded.config.server.listen
        );
    }
}

/// Prints the URL, the data directory and the token's file, but never the token.
fn announce_start(loaded: &LoadedConfig, server: &Server, output: &Output) -> Result {
    let data_dir: &PathBuf = &loaded.config.data_dir;
    match loaded.config.log.format {
        LogFormat::Json => tracing::info!(
            url = %server.url,
            data_dir = %data_dir.display(),
            admin_token_file = %server.admin_token.display(),
            "listening"
        ),
        LogFormat::Text => {
            output.print_note(&format!("listening on {}", server.url));
            output.print_note(&format!("data directory: {}", data_dir.display()));
            output.print_note(&format!("admin token: {}", server.admin_token.display()));
        }
    }
    if output.json {
        output.print_object(&json!({
            "type": "listening",
            "url": server.url,
            "data_dir": data_dir,
            "admin_token_file": server.admin_token,
        }))?;
    }
    output.flush()
}

/// Prints a link that signs a browser in, for the person at the terminal. A log would show it to all its readers, and a
/// server for other machines is opened from there with an API key.
async fn print_sign_in_link(loaded: &LoadedConfig, server: &Server, output: &Output) -> Result {
    let is_local = server.address.ip().to_canonical().is_loopback();
    let is_private = loaded.config.log.format == LogFormat::Text && std::io::stderr().is_terminal() && !output.json;
    if is_private {
        let link = if is_local { server.issue_sign_in_link().await } else { None };
        output.print_note(&match link {
            Some(link) => format!("open the page (this link works once): {link}"),
            None => "open the page: atoll open".to_owned(),
        });
    }
    output.flush()
}

/// Explains why a server did not start.
pub fn start_failure(error: atoll_server::Error) -> Failure {
    use atoll_server::Error as E;
    use atoll_store::Error as S;
    let (code, hint) = match &error {
        E::DataDir { .. } => ("data_dir", "Choose another --data-dir."),
        E::Listen { .. } => ("listen", "Choose another --listen; 127.0.0.1:0 uses any free port."),
        E::Tls(_) => ("tls", "Set --tls-cert to a PEM certificate chain and --tls-key to its key."),
        E::Store(S::DatabaseHeld(_)) => ("database_held", "Stop the other server, or choose another --database-url."),
        E::Store(S::Locked(_)) => ("locked", "Wait for the other server, or choose another --data-dir."),
        E::Store(S::DiskFull { .. }) => ("disk_full", "Free space on that disk, or choose another --data-dir."),
        E::Store(_) => ("store", "Check the database with `atoll doctor`."),
    };
    Failure::setup(code, error).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, FromArgMatches};
    use std::collections::BTreeSet;

    #[test]
    fn the_configuration_declares_every_flag() {
        let command = Serve::augment_args(clap::Command::new("serve"));
        let flags: BTreeSet<_> = command.get_arguments().filter_map(clap::Arg::get_long).collect();
        let declared = atoll_config::flag_names();
        assert_eq!(flags, declared.iter().map(|(_, flag)| *flag).chain(["config"]).collect());
        for (key, flag) in declared {
            let argument = match flag {
                "insecure-listen" => format!("--{flag}"),
                "log-format" => format!("--{flag}=text"),
                "log-level" => format!("--{flag}=info"),
                _ => format!("--{flag}=x"),
            };
            let serve = Serve::from_arg_matches(&command.clone().get_matches_from(["serve", &argument])).unwrap();
            assert_eq!(serve.config_flags().iter().map(|(key, _)| key).collect::<Vec<_>>(), [key], "--{flag}");
        }
    }
}
