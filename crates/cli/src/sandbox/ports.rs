//! `atoll sandbox ports` and `preview`.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::render::{table, text, time};
use atoll_api::NewPreview;
use atoll_core::id::{PreviewId, SandboxId};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  atoll sandbox ports last")]
pub struct Ports {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox preview last 3000             print a link to port 3000
  atoll sandbox preview last                  list the links
  atoll sandbox preview last --revoke prv_…

Everyone who has the link can use the port, until the link expires or is revoked.")]
pub struct PreviewArgs {
    /// Sandbox: id, end of the id, name, branch or `last`
    id: SandboxRef,
    /// Port to create a link to
    port: Option<u16>,
    /// Seconds until the link expires
    #[arg(long, value_name = "SECONDS", requires = "port")]
    ttl: Option<u32>,
    /// Revoke a link
    #[arg(long, value_name = "ID", conflicts_with = "port")]
    revoke: Option<PreviewId>,
}

pub async fn list_ports(ports: &Ports, client: &ConnectedClient, output: &Output) -> Result {
    let items = client.list_ports(ports.id.resolve(client).await?).await?.items;
    let now = time::now();
    table::print_list(output, &items, &["PORT", "AGE", "PROGRAM"], |item| {
        let program = item.program.as_deref().map_or_else(|| "-".to_owned(), text::escape_line);
        [item.port.to_string(), time::format_age(item.opened_at, now), program].map(table::cell).into()
    })
}

pub async fn run_preview(preview: &PreviewArgs, client: &ConnectedClient, output: &Output) -> Result {
    let sandbox = preview.id.resolve(client).await?;
    match (preview.port, preview.revoke) {
        (Some(port), _) => {
            let created = client.create_preview(sandbox, &NewPreview { port, ttl_s: preview.ttl }).await?;
            output.print_result(&created, || created.url.clone().unwrap_or_default())
        }
        (None, Some(id)) => {
            let revoked = client.revoke_preview(sandbox, id).await?;
            output.print_result(&revoked, || format!("{id} is revoked"))
        }
        (None, None) => list_previews(sandbox, client, output).await,
    }
}

async fn list_previews(sandbox: SandboxId, client: &ConnectedClient, output: &Output) -> Result {
    let items = client.list_previews(sandbox).await?.items;
    let now = time::now();
    table::print_list(output, &items, &["ID", "PORT", "AGE", "EXPIRES"], |item| {
        let age = time::format_age(item.created_at, now);
        [item.id.to_string(), item.port.to_string(), age, time::format_time(item.expires_at)].map(table::cell).into()
    })
}
