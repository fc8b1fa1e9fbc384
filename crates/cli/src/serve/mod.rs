//! `atoll serve`: the control plane itself.

mod directory;
mod logging;
pub mod options;
pub mod user;

use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::settings::{self, ConfigFiles};
use atoll_config::{Level, Loaded, LogFormat};
use atoll_jail::Launcher;
use atoll_server::Server;
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll serve
  atoll serve --listen 127.0.0.1:0 --data-dir /tmp/atoll --json
  atoll serve --listen 0.0.0.0:7700 --tls-cert tls.crt --tls-key tls.key
  DATABASE_URL=postgres://atoll:secret@127.0.0.1/atoll atoll serve

Settings come from flags, then the environment, then files, then defaults; `atoll config` shows them all.
ATOLL_LOG chooses more finely what is logged, for example warn,atoll_server=debug.
SIGTERM and SIGINT stop the server: requests under way may end, and nothing that was answered is lost.")]
pub struct Serve {
    /// The address and port to listen on [default: 127.0.0.1:7700]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// Where everything is kept that must last [default: the user's data directory]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// The database: postgres://… or sqlite:PATH [default: SQLite in the data directory]
    ///
    /// A URL with a password is better put into the environment (DATABASE_URL): arguments can be seen by others.
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    #[command(flatten)]
    files: ConfigFiles,
    /// Allow an address that other machines reach without TLS: tokens then travel in the clear
    #[arg(long)]
    insecure_listen: bool,
    /// The certificate chain, PEM
    #[arg(long, value_name = "FILE")]
    tls_cert: Option<String>,
    /// The certificate's key, PEM
    #[arg(long, value_name = "FILE")]
    tls_key: Option<String>,
    /// How workers on other machines reach this server
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// How log lines are written: text or json
    #[arg(long, value_name = "FORMAT", value_parser = crate::arguments::word::<LogFormat>)]
    log_format: Option<LogFormat>,
    /// The least important lines that are still logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL", value_parser = crate::arguments::word::<Level>)]
    log_level: Option<Level>,
}

impl Serve {
    fn flags(&self) -> Vec<(String, String)> {
        let given = [
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
        given.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect()
    }
}

pub fn run(serve: &Serve, output: &Output) -> Result {
    let loaded = settings::load(serve.flags(), &serve.files)?;
    logging::start(&loaded.config.log)?;
    let launcher = user::start(&loaded.config)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::setup("runtime", format!("can't start threads: {error}")))?;
    runtime.block_on(until_stopped(&loaded, launcher, output))
}

async fn until_stopped(loaded: &Loaded, launcher: Result<Arc<Launcher>, String>, output: &Output) -> Result {
    let cant_listen = |error| Failure::setup("signals", format!("can't listen to signals: {error}"));
    // Before the start, so that a signal during it is not lost.
    let mut terminate = signal(SignalKind::terminate()).map_err(cant_listen)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cant_listen)?;
    warn(loaded);
    if let Err(why) = &launcher {
        tracing::warn!("no sandboxes can be made on this machine: {why}");
    }
    let server = Box::pin(Server::start(options::options(&loaded.config, launcher))).await.map_err(cant_start)?;
    announce(loaded, &server, output)?;
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

fn warn(loaded: &Loaded) {
    for warning in &loaded.warnings {
        tracing::warn!("{warning}");
    }
    if rustix::process::geteuid().is_root() {
        tracing::warn!(
            "this server runs as root, which it does not need: name a user of its own with server.user, and only \
             the process that makes sandboxes stays root"
        );
    }
    if loaded.config.server.insecure_listen && loaded.config.server.tls.is_none() {
        tracing::warn!("tokens travel in the clear on {}: it listens without TLS", loaded.config.server.listen);
    }
}

/// Where everything is; never the token itself.
fn announce(loaded: &Loaded, server: &Server, output: &Output) -> Result {
    let data_dir: &PathBuf = &loaded.config.data_dir;
    match loaded.config.log.format {
        LogFormat::Json => tracing::info!(
            url = %server.url,
            data_dir = %data_dir.display(),
            admin_token_file = %server.admin_token.display(),
            "listening"
        ),
        LogFormat::Text => {
            output.note(&format!("listening on {}", server.url));
            output.note(&format!("data in {}", data_dir.display()));
            output.note(&format!("the admin's token is in {}", server.admin_token.display()));
        }
    }
    if output.json {
        output.object(&json!({
            "type": "listening",
            "url": server.url,
            "data_dir": data_dir,
            "admin_token_file": server.admin_token,
        }))?;
    }
    output.flush()
}

fn cant_start(error: atoll_server::Error) -> Failure {
    use atoll_server::Error as E;
    use atoll_store::Error as S;
    let (code, next) = match &error {
        E::DataDir { .. } => ("data_dir", None),
        E::Listen { .. } => {
            ("listen", Some("`atoll doctor` says who is there; `--listen 127.0.0.1:0` takes any free port."))
        }
        E::Tls(_) => ("tls", Some("Give a PEM certificate chain with --tls-cert and its key with --tls-key.")),
        E::Store(S::Locked(_)) => ("locked", None),
        E::Store(S::Full { .. }) => ("disk_full", Some("Make room on that disk, or name another one with --data-dir.")),
        E::Store(_) => ("store", Some("`atoll doctor` looks at the database and says what to mend.")),
    };
    let failure = Failure::setup(code, error);
    match next {
        Some(next) => failure.next(next),
        None => failure,
    }
}
