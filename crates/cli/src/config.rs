//! `atoll config`: every setting, its value, and where it came from.

use crate::failure::Result;
use crate::output::Output;
use crate::render::table;
use crate::settings::{self, ConfigFiles};
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll config
  atoll config --config atoll.yaml --json | jq -r 'select(.source != \"default\") | .key'

Secrets are shown as ***.")]
pub struct Config {
    #[command(flatten)]
    files: ConfigFiles,
    /// As if the server had been started with this data directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub fn run(config: &Config, output: &Output) -> Result {
    let flag = config.data_dir.as_ref().map(|dir| ("data_dir".to_owned(), dir.display().to_string()));
    let loaded = settings::load(flag.into_iter().collect(), &config.files)?;
    if output.json {
        return loaded.shown.iter().try_for_each(|shown| output.object(shown));
    }
    let cells = loaded.shown.iter().map(|shown| {
        let value = shown.value.as_deref().unwrap_or("-");
        [shown.key, value, &shown.source.to_string()].map(table::cell).into()
    });
    table::print(output, &["KEY", "VALUE", "FROM"], &cells.collect::<Vec<Vec<_>>>())?;
    for file in &loaded.files {
        output.note(&format!("read {}", file.display()));
    }
    for warning in &loaded.warnings {
        output.note(&format!("warning: {warning}"));
    }
    Ok(())
}
