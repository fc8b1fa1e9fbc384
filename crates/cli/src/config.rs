//! `atoll config`: shows every setting, its value and its source.

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

Secrets appear as ***.")]
pub struct Config {
    #[command(flatten)]
    files: ConfigFiles,
    /// Show the settings for this data directory
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
}

pub fn run(config: &Config, output: &Output) -> Result {
    let loaded = settings::load_with_data_dir(config.data_dir.as_deref(), &config.files)?;
    if output.json {
        return loaded.settings.iter().try_for_each(|setting| output.print_object(setting));
    }
    let cells = loaded.settings.iter().map(|setting| {
        let value = setting.value.as_deref().unwrap_or("-");
        [setting.key, value, &setting.source.to_string()].map(table::cell).into()
    });
    table::print_table(output, &["KEY", "VALUE", "FROM"], &cells.collect::<Vec<Vec<_>>>())?;
    for file in &loaded.files {
        output.print_note(&format!("read {}", file.display()));
    }
    for warning in &loaded.warnings {
        output.print_note(&format!("warning: {warning}"));
    }
    Ok(())
}
