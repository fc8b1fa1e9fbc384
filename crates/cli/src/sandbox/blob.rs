//! `atoll sandbox blob`: prints a blob.

use super::download;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use atoll_core::id::SandboxId;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll sandbox blob sbx_… 5f2c… > output.txt

Events name the blobs with their whole texts: output_blob, text_blob, full_diff_blob and so on.
`atoll logs ID --full` prints the whole texts in place.")]
pub struct Blob {
    /// Sandbox id (sbx_…)
    id: SandboxId,
    /// Name of the blob: a SHA-256
    #[arg(value_parser = parse_name)]
    sha256: String,
}

fn parse_name(text: &str) -> Result<String, String> {
    let is_hash = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { Ok(text.to_lowercase()) } else { Err("expected 64 hexadecimal digits".to_owned()) }
}

pub async fn run(blob: &Blob, client: &ConnectedClient, output: &Output) -> Result {
    let response = client.download_blob(blob.id, &blob.sha256).await?;
    download::print_download(client, response, output).await
}
