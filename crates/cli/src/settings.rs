//! Loading the configuration for a command.

use crate::failure::{Failure, Result};
use atoll_config::{Inputs, Loaded};
use std::path::PathBuf;

#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConfigFiles {
    /// A configuration file; several times: later ones win key by key
    #[arg(long = "config", value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

pub fn load(flags: Vec<(String, String)>, files: &ConfigFiles) -> Result<Loaded> {
    let inputs = Inputs::of_this_process(flags, files.config.clone())
        .map_err(|error| Failure::setup("config", format!("can't tell the working directory: {error}")))?;
    atoll_config::load(&inputs).map_err(|error| {
        Failure::setup("config", error)
            .next("Mend what is named there; `atoll config` then shows every key and its origin.")
    })
}
