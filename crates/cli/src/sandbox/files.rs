//! `atoll sandbox files`: lists files of a sandbox.

use super::readiness::retry_until_running;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::pages::collect_up_to;
use crate::references::SandboxRef;
use crate::render::{table, text, time};
use atoll_api::{FileListQuery, SandboxFile};
use atoll_core::provider::files::FileKind;
use atoll_core::size::format_bytes;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox files sbx_…
  atoll sandbox files sbx_… src --json | jq -r .name
  atoll sandbox files sbx_… /tmp --all")]
pub struct Files {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Directory or file, absolute or relative to the workspace
    #[arg(default_value = ".")]
    path: String,
    /// Maximum number of rows
    #[arg(long, value_name = "N", default_value_t = 200)]
    limit: usize,
    /// List all rows
    #[arg(long, conflicts_with = "limit")]
    all: bool,
}

pub async fn run(files: &Files, client: &ConnectedClient, output: &Output) -> Result {
    let id = files.id.resolve(client).await?;
    let load = async |limit, cursor| {
        let query = FileListQuery { path: Some(files.path.clone()), limit: Some(limit), cursor };
        client.list_files(id, &query).await
    };
    let list = async || collect_up_to((!files.all).then_some(files.limit), &load).await;
    let (entries, has_more) = match retry_until_running(id, client, output, list).await {
        Err(failure) if failure.has_code("not_a_directory") => (vec![client.stat_file(id, &files.path).await?], false),
        listed => listed?,
    };
    table::print_list(output, &entries, &["MODE", "SIZE", "MODIFIED", "NAME"], table_row)?;
    if has_more && !output.json {
        output.print_note("more rows exist; list them with --all");
    }
    Ok(())
}

fn table_row(file: &SandboxFile) -> Vec<table::Cell> {
    let name = text::escape_line(&file.name);
    let name = match (file.kind, &file.target) {
        (FileKind::Directory, _) => format!("{name}/"),
        (_, Some(target)) => format!("{name} -> {target}"),
        _ => name,
    };
    vec![
        table::cell(format_mode(file.kind, &file.mode)),
        table::cell(if file.kind == FileKind::File { format_bytes(file.size) } else { "-".to_owned() }),
        table::cell(time::format_time(file.modified_at)),
        table::cell(name),
    ]
}

/// Formats the mode like `ls -l`.
fn format_mode(kind: FileKind, mode: &str) -> String {
    let mode = u32::from_str_radix(mode, 8).unwrap_or(0);
    let first = match kind {
        FileKind::Directory => 'd',
        FileKind::Link => 'l',
        FileKind::Fifo => 'p',
        FileKind::Socket => 's',
        FileKind::Device => 'c',
        FileKind::File => '-',
    };
    let bits =
        (0..9).rev().zip("rwxrwxrwx".chars()).map(|(bit, letter)| if mode >> bit & 1 == 1 { letter } else { '-' });
    std::iter::once(first).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_modes_like_ls() {
        assert_eq!(format_mode(FileKind::File, "0644"), "-rw-r--r--");
        assert_eq!(format_mode(FileKind::Directory, "0755"), "drwxr-xr-x");
        assert_eq!(format_mode(FileKind::Link, "nonsense"), "l---------");
    }
}
