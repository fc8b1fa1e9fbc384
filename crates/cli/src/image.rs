//! `atoll image`: manages images.

use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, text, time};
use crate::spinner::Spinner;
use atoll_client::Body;
use atoll_core::provider::ImageRef;
use atoll_core::size::format_bytes;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct Image {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Import a root file system: tar, `docker save` or OCI archive
    #[command(after_help = "\
Examples:
  docker save debian:stable -o debian.tar && atoll image import debian debian.tar
  mmdebstrap --variant=minbase stable - | atoll image import minbase -
  atoll sandbox new \"fix it\" --image debian

In a sandbox with an image, `atoll sandbox exec --root` can install packages; that root has no rights
outside.")]
    Import {
        /// Name, 1 to 64 of a-z, 0-9, `.`, `_` and `-`
        name: String,
        /// Archive file, or `-` for stdin
        file: PathBuf,
    },
    /// List images
    #[command(after_help = "Examples:\n  atoll image ls")]
    #[command(alias = "list")]
    Ls,
    /// Remove an image
    #[command(after_help = "Examples:\n  atoll image rm debian")]
    Rm {
        /// Name of the image
        name: String,
        #[command(flatten)]
        confirm: Confirm,
    },
}

pub async fn run(image: &Image, output: &Output) -> Result {
    let client = ConnectedClient::find(&image.connect)?;
    match &image.command {
        Command::Import { name, file } => {
            let progress = Spinner::start(output, format!("importing {}", file.display()));
            let image = client.import_image(name, open_archive(file).await?).await?;
            drop(progress);
            output.print_result(&image, || {
                let bytes = image.bytes.map_or_else(String::new, |bytes| format!(" ({})", format_bytes(bytes)));
                format!("imported {name}{bytes}; use it with `atoll sandbox new --image {name}`")
            })
        }
        Command::Ls => print_list(&client.list_images().await?.items, output),
        Command::Rm { name, confirm } => {
            confirm.require(&format!("removes the image `{}`", text::escape_line(name)), output).await?;
            if name.contains(['/', '?', '#', '%']) {
                return Err(Failure::refused("not_found", format!("there is no image `{}`", text::escape_line(name))));
            }
            let removed = client.remove_image(name).await?;
            output.print_result(&removed, || format!("{name} is removed"))
        }
    }
}

/// Opens the archive; `-` is stdin.
async fn open_archive(file: &Path) -> Result<Body> {
    let path = if file == Path::new("-") { Path::new("/dev/stdin") } else { file };
    let opened = tokio::fs::File::open(path).await;
    let archive = opened.map_err(|error| Failure::input(format!("cannot read {}: {error}", file.display())))?;
    Ok(Body::from(archive))
}

fn print_list(images: &[ImageRef], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, images, &["NAME", "SIZE", "LAYERS", "AGE"], |image| {
        let bytes = image.bytes.map_or_else(|| "-".to_owned(), format_bytes);
        let age = image.created_at.map_or_else(|| "-".to_owned(), |at| time::format_age(at, now));
        [&image.name, &bytes, &image.layers.to_string(), &age].map(table::cell).into()
    })
}
