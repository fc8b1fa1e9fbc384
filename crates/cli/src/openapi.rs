//! `atoll openapi`: prints the OpenAPI document.

use crate::failure::{Failure, Result};
use crate::output::Output;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll openapi > openapi.json
  atoll openapi --json | jq '.paths | keys'")]
pub struct OpenApi {}

/// Prints the OpenAPI document, generated from the handlers.
pub fn run(output: &Output) -> Result {
    let document = atoll_server::router::openapi_document();
    let text = if output.json { document.to_json() } else { document.to_pretty_json() };
    let text = text.map_err(|error| Failure::work("openapi", error))?;
    if output.json { output.print_raw_object(&text) } else { output.print_line(&text) }
}
