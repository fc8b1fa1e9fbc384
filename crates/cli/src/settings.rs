//! Loads the configuration for a command.

use crate::failure::{Failure, Result};
use atoll_config::{Inputs, LoadedConfig};
use std::path::PathBuf;

#[derive(Debug, Clone, Default, clap::Args)]
pub struct ConfigFiles {
    /// Read this configuration file (repeatable; later files win)
    #[arg(long = "config", value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

pub fn load_config(flags: Vec<(String, String)>, files: &ConfigFiles) -> Result<LoadedConfig> {
    let inputs = Inputs::of_this_process(flags, files.config.clone())
        .map_err(|error| Failure::setup("config", format!("cannot determine the working directory: {error}")))?;
    atoll_config::load_config(&inputs).map_err(|error| {
        Failure::setup("config", error)
            .with_hint("Fix the configuration; `atoll config` shows every key and its source.")
    })
}
