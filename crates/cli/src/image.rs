//! `atoll image`: imported roots.

use crate::client::{Client, Connect};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{size, table, text, time};
use serde_json::Value;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
pub struct Image {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Import a root: a tar of it, what `docker save` gives, or an OCI archive
    #[command(after_help = "\
Examples:
  docker save debian:stable -o debian.tar && atoll image import debian debian.tar
  mmdebstrap --variant=minbase stable - | atoll image import minbase -
  atoll sandbox new \"fix it\" --image debian

In a sandbox with an imported root `atoll sandbox exec --root` may install packages; that root is nobody outside.")]
    Import {
        /// 1 to 64 of a-z, 0-9, `.`, `_` and `-`
        name: String,
        /// The archive, or `-` for the input
        file: PathBuf,
    },
    /// List the images, with what each takes on disk
    #[command(after_help = "Examples:\n  atoll image ls")]
    #[command(alias = "list")]
    Ls,
    /// Forget an image; one that is in use stays
    #[command(after_help = "Examples:\n  atoll image rm debian")]
    Rm { name: String },
}

pub async fn run(image: &Image, output: &Output) -> Result {
    let client = Client::find(&image.connect)?;
    match &image.command {
        Command::Import { name, file } => {
            let made = client.post_file("/images", &[("name", name.clone())], file).await?;
            if output.json {
                return output.object(&made);
            }
            let bytes = made["bytes"].as_u64().map_or_else(String::new, |bytes| format!(" ({})", size::bytes(bytes)));
            output.line(&format!("{name} is there{bytes}; use it: `atoll sandbox new --image {name}`"))
        }
        Command::Ls => list(&items(&client).await?, output),
        Command::Rm { name } => {
            if name.contains(['/', '?', '#', '%']) {
                return Err(Failure::refused("not_found", format!("there is no image `{}`", text::inline(name))));
            }
            let gone = client.delete(&format!("/images/{name}"), &[]).await?;
            if output.json { output.object(&gone) } else { output.line(&format!("{name} is gone")) }
        }
    }
}

async fn items(client: &Client) -> Result<Vec<Value>> {
    let mut answer = client.get("/images", &[]).await?;
    match answer["items"].take() {
        Value::Array(items) => Ok(items),
        _ => Err(client.not_atoll("images without items")),
    }
}

fn list(items: &[Value], output: &Output) -> Result {
    if output.json {
        return items.iter().try_for_each(|item| output.object(item));
    }
    let now = time::now();
    let cells = items.iter().map(|item| {
        let bytes = item["bytes"].as_u64().map_or_else(|| "-".to_owned(), size::bytes);
        let age = item["created_at"].as_str().map_or_else(|| "-".to_owned(), |at| time::age(at, now));
        let layers = item["layers"].to_string();
        [item["name"].as_str().unwrap_or("-"), &bytes, &layers, &age].map(table::cell).into()
    });
    table::print(output, &["NAME", "SIZE", "LAYERS", "AGE"], &cells.collect::<Vec<Vec<_>>>())
}
