//! `atoll sandbox files`: what is in a sandbox.

use crate::client::Client;
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_core::id::SandboxId;
use serde_json::Value;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox files sbx_…
  atoll sandbox files sbx_… src --json | jq -r .name
  atoll sandbox files sbx_… /tmp --all")]
pub struct Files {
    id: SandboxId,
    /// A directory or a file, absolute or below the workspace
    #[arg(default_value = ".")]
    path: String,
    /// How many at most
    #[arg(long, value_name = "N", default_value_t = 200)]
    limit: usize,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(files: &Files, client: &Client, output: &Output) -> Result {
    let query = [("path", files.path.clone())];
    let at = format!("/sandboxes/{}/files", files.id);
    let limit = (!files.all).then_some(files.limit);
    let (rows, more) = match client.list(&format!("{at}/list"), &query, limit).await {
        Err(Failure::Told(told)) if told.code == "not_a_directory" => {
            (vec![client.get(&format!("{at}/stat"), &query).await?], false)
        }
        listed => listed?,
    };
    if output.json {
        return rows.iter().try_for_each(|row| output.object(row));
    }
    let cells: Vec<_> = rows.iter().map(cells).collect();
    table::print(output, &["MODE", "SIZE", "MODIFIED", "NAME"], &cells)?;
    if more {
        output.note("there are more: --all lists them");
    }
    Ok(())
}

fn cells(row: &Value) -> Vec<table::Cell> {
    let said = |field: &str| row[field].as_str().unwrap_or_default();
    let (name, kind) = (text::inline(said("name")), said("kind"));
    let name = match (kind, row["target"].as_str()) {
        ("directory", _) => format!("{name}/"),
        (_, Some(target)) => format!("{name} -> {target}"),
        _ => name,
    };
    let size = row["size"].as_u64().unwrap_or(0);
    vec![
        table::cell(permissions(kind, said("mode"))),
        table::cell(if kind == "file" { size.to_string() } else { "-".to_owned() }),
        table::cell(time::exact(said("modified_at"))),
        table::cell(name),
    ]
}

/// As `ls` shows them.
fn permissions(kind: &str, mode: &str) -> String {
    let mode = u32::from_str_radix(mode, 8).unwrap_or(0);
    let first = match kind {
        "directory" => 'd',
        "link" => 'l',
        "fifo" => 'p',
        "socket" => 's',
        "device" => 'c',
        _ => '-',
    };
    let bits =
        (0..9).rev().zip("rwxrwxrwx".chars()).map(|(bit, letter)| if mode >> bit & 1 == 1 { letter } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_shown_as_everywhere() {
        assert_eq!(permissions("file", "0644"), "-rw-r--r--");
        assert_eq!(permissions("directory", "0755"), "drwxr-xr-x");
        assert_eq!(permissions("link", "nonsense"), "l---------");
    }
}
