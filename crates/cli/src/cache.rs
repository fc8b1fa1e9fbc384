//! `atoll cache`: manages set-up layers.

use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_api::{Cache as ApiCache, PruneCaches, RemoveCacheQuery};
use atoll_core::id::ProjectId;
use atoll_core::size::format_bytes;

#[derive(Debug, clap::Args)]
pub struct CacheArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List set-up layers
    #[command(after_help = "Examples:\n  atoll cache ls")]
    #[command(alias = "list")]
    Ls,
    /// Remove a set-up layer; sandboxes that use it keep their files
    #[command(after_help = "Examples:\n  atoll cache rm 5f2c9a0b7d1e4c63")]
    Rm {
        /// Name of the set-up layer, as `atoll cache ls` prints it
        name: String,
        /// Project of the set-up layer [default: the default project]
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
    },
    /// Remove unused set-up layers
    #[command(
        after_help = "Examples:\n  atoll cache prune\n  atoll cache prune --unused-for 7 --yes\n  atoll cache prune --all --dry-run"
    )]
    Prune {
        /// Minimum time without a use, in days
        #[arg(long, value_name = "DAYS", default_value_t = 30, conflicts_with = "all")]
        unused_for: u32,
        /// Remove all set-up layers
        #[arg(long)]
        all: bool,
        /// Only of this project
        #[arg(long, value_name = "ID")]
        project: Option<ProjectId>,
        /// List the set-up layers, and remove none
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        confirm: Confirm,
    },
}

pub async fn run(cache: &CacheArgs, output: &Output) -> Result {
    let client = ConnectedClient::find(&cache.connect)?;
    match &cache.command {
        Command::Ls => print_list(&client.list_caches().await?.items, output),
        Command::Rm { name, project } => remove_cache(&client, name, *project, output).await,
        Command::Prune { unused_for, all, project, dry_run, confirm } => {
            let request =
                PruneCaches { unused_days: Some(*unused_for), all: *all, project_id: *project, dry_run: true };
            let found = client.prune_caches(&request).await?;
            if !dry_run && !found.items.is_empty() {
                confirm.require(&format!("removes {}", describe_layers(&found.items)), output).await?;
            }
            let pruned = match dry_run {
                true => found,
                false => client.prune_caches(&PruneCaches { dry_run: false, ..request }).await?,
            };
            let verb = if *dry_run { "would remove" } else { "removed" };
            output.print_result(&pruned, || format!("{verb} {}", describe_layers(&pruned.items)))
        }
    }
}

/// The number of layers and their size.
fn describe_layers(layers: &[ApiCache]) -> String {
    let bytes = layers.iter().filter_map(|layer| layer.bytes).sum();
    let noun = if layers.len() == 1 { "set-up layer" } else { "set-up layers" };
    format!("{} {noun}, {}", layers.len(), format_bytes(bytes))
}

async fn remove_cache(client: &ConnectedClient, name: &str, project: Option<ProjectId>, output: &Output) -> Result {
    if name.contains(['/', '?', '#', '%']) {
        return Err(Failure::refused("not_found", format!("there is no cache `{}`", text::escape_line(name))));
    }
    let removed = client.remove_cache(name, &RemoveCacheQuery { project_id: project }).await?;
    output.print_result(&removed, || format!("{} is removed", text::escape_line(name)))
}

fn print_list(caches: &[ApiCache], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, caches, &["NAME", "SIZE", "USED", "AGE", "PROJECT"], |cache| {
        let bytes = cache.bytes.map_or_else(|| "-".to_owned(), format_bytes);
        let [used, age] = [cache.used_at, cache.created_at]
            .map(|at| at.map_or_else(|| "-".to_owned(), |at| time::format_age(at, now)));
        [&cache.name, &bytes, &used, &age, &cache.project_id.to_string()].map(table::cell).into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_sizes_are_readable() {
        let layer =
            |bytes| ApiCache { name: "k".into(), project_id: ProjectId::new(), bytes, created_at: None, used_at: None };
        assert_eq!(describe_layers(&[layer(Some(1 << 20))]), format!("1 set-up layer, {}", format_bytes(1 << 20)));
        assert!(describe_layers(&[layer(None), layer(None)]).starts_with("2 set-up layers"));
    }
}
