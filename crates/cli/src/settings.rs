//! Loads the configuration for a command.

use crate::failure::{Failure, Result};
use atoll_config::{Inputs, LoadedConfig};
use std::path::{Path, PathBuf};

#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Server")]
pub struct ConfigFiles {
    /// Read this configuration file (repeatable; later files win)
    #[arg(long = "config", value_name = "FILE")]
    pub config: Vec<PathBuf>,
}

/// Loads the configuration of a command whose only flag for it is `--data-dir`.
pub fn load_with_data_dir(data_dir: Option<&Path>, files: &ConfigFiles) -> Result<LoadedConfig> {
    let flag = data_dir.map(|dir| ("data_dir".to_owned(), dir.display().to_string()));
    load_config(flag.into_iter().collect(), files)
}

pub fn load_config(flags: Vec<(String, String)>, files: &ConfigFiles) -> Result<LoadedConfig> {
    let inputs = Inputs::of_this_process(flags, files.config.clone())
        .map_err(|error| Failure::setup("config", format!("cannot determine the working directory: {error}")))?;
    atoll_config::load_config(&inputs).map_err(|error| {
        Failure::setup("config", error)
            .with_hint("Fix the configuration; `atoll config` shows every key and its source.")
    })
}
