//! The server's log, on the error output.

use crate::failure::{Failure, Result};
use atoll_config::{Level, Log, LogFormat, env};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::util::SubscriberInitExt;

/// `ATOLL_LOG`, where it is set, says more finely what `log.level` says for all of Atoll.
pub fn start(log: &Log) -> Result {
    let wanted = std::env::var(env::LOG).ok().filter(|text| !text.trim().is_empty());
    let filter = EnvFilter::try_new(wanted.clone().unwrap_or_else(|| directives(log.level))).map_err(|error| {
        Failure::setup("bad_log_filter", format!("{}: `{}`: {error}", env::LOG, wanted.unwrap_or_default()))
            .next("Write it like `info` or `warn,atoll_server=debug`.")
    })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match log.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => lines.json().flatten_event(true).finish().try_init(),
    };
    started.map_err(|error| Failure::setup("logging", error))
}

/// Atoll's own lines from `level` on; of the libraries only what is wrong.
fn directives(level: Level) -> String {
    match level {
        Level::Error => "error".to_owned(),
        Level::Warn | Level::Info | Level::Debug | Level::Trace => format!("warn,atoll={level}"),
    }
}
