//! The server's log on stderr.

use super::json_line::JsonLine;
use crate::failure::{Failure, Result};
use atoll_config::{Level, Log, LogFormat, env};
use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::JsonFields;
use tracing_subscriber::util::SubscriberInitExt;

/// Starts logging with the filter of `ATOLL_LOG`, or with `log.level`.
pub fn start_logging(log: &Log) -> Result {
    let custom = std::env::var(env::LOG).ok().filter(|text| !text.trim().is_empty());
    let filter = EnvFilter::try_new(custom.clone().unwrap_or_else(|| default_filter(log.level))).map_err(|error| {
        Failure::setup("bad_log_filter", format!("{}: `{}`: {error}", env::LOG, custom.unwrap_or_default()))
            .with_hint("Use a filter such as `info` or `warn,atoll_server=debug`.")
    })?;
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let started = match log.format {
        LogFormat::Text => lines.with_ansi(std::io::stderr().is_terminal()).finish().try_init(),
        LogFormat::Json => lines.fmt_fields(JsonFields::new()).event_format(JsonLine).finish().try_init(),
    };
    started.map_err(|error| Failure::setup("logging", error))
}

/// Logs Atoll at `level` and libraries at `warn`. In the server, only fake workers run the dispatcher.
fn default_filter(level: Level) -> String {
    match level {
        Level::Error => "error".to_owned(),
        Level::Warn | Level::Info | Level::Debug | Level::Trace => format!("warn,atoll={level},atoll_dispatcher=error"),
    }
}
