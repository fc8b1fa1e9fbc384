//! `atoll image`: manages images.

use crate::confirm::Confirm;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::image_source::{ArchiveBody, ImageSource};
use crate::output::Output;
use crate::render::{table, text, time};
use crate::spinner::Spinner;
use atoll_core::provider::ImageRef;
use atoll_core::size::format_bytes;

#[derive(Debug, clap::Args)]
pub struct Image {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Import a root file system: an archive, an OCI layout or an engine's image
    #[command(after_help = "\
Examples:
  atoll image import debian docker://debian:stable
  atoll image import tools podman://localhost/tools
  atoll image import layout oci:./layout
  docker save debian:stable -o debian.tar && atoll image import debian debian.tar
  mmdebstrap --variant=minbase stable - | atoll image import minbase -
  atoll sandbox new \"fix it\" --image debian

In a sandbox with an image, `atoll sandbox exec --root` can install packages; that root has no rights
outside.")]
    Import {
        /// Name, 1 to 64 of a-z, 0-9, `.`, `_` and `-`
        name: String,
        /// Archive (tar, `docker save`, OCI), `-` for stdin, directory of an OCI layout, docker://IMAGE or podman://IMAGE
        source: ImageSource,
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
        Command::Import { name, source } => {
            let progress = Spinner::start(output, format!("importing {name}"));
            let image = import_image(&client, name, source).await?;
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

async fn import_image(client: &ConnectedClient, name: &str, source: &ImageSource) -> Result<ImageRef> {
    let ArchiveBody { body, producer } = source.open().await?;
    let imported = client.import_image(name, body).await;
    match (imported, producer) {
        (Ok(image), _) => Ok(image),
        // The producer's failure is the cause of an incomplete archive.
        (Err(error), Some(producer)) => match producer.await {
            Ok(Err(failure)) => Err(failure),
            Ok(Ok(())) | Err(_) => Err(error.into()),
        },
        (Err(error), None) => Err(error.into()),
    }
}

fn print_list(images: &[ImageRef], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, images, &["NAME", "SIZE", "LAYERS", "AGE"], |image| {
        let bytes = image.bytes.map_or_else(|| "-".to_owned(), format_bytes);
        let age = image.created_at.map_or_else(|| "-".to_owned(), |at| time::format_age(at, now));
        [&image.name, &bytes, &image.layers.to_string(), &age].map(table::cell).into()
    })
}
