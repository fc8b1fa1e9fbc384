//! Prints the body of a download.

use crate::connect::ConnectedClient;
use crate::failure::Result;
use crate::output::Output;
use crate::render::text;
use atoll_client::Response;

/// Prints a text: escaped on a terminal, unchanged into a pipe.
pub async fn print_download(client: &ConnectedClient, mut response: Response, output: &Output) -> Result {
    let mut left = Vec::new();
    while let Some(chunk) = client.read_chunk(&mut response).await? {
        if output.width.is_none() {
            output.write_bytes(&chunk)?;
            continue;
        }
        left.extend_from_slice(&chunk);
        while let Some(end) = left.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = left.drain(..=end).collect();
            output.print_line(&text::escape_line(String::from_utf8_lossy(&line).trim_end()))?;
        }
    }
    if left.is_empty() { Ok(()) } else { output.print_line(&text::escape_line(&String::from_utf8_lossy(&left))) }
}
