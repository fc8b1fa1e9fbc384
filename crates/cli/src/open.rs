//! `atoll open`: opens the web page in a browser that is signed in.

use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::references::SandboxRef;
use crate::worker_command::write_secret_file;
use serde_json::json;
use std::path::PathBuf;
use std::process::{Command, Stdio};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  atoll open
  atoll open last
  atoll open --print

The link works once, for ten minutes, and gives the browser the rights of your token.")]
pub struct Open {
    /// Sandbox whose page to open: id, end of the id, name, branch or `last`
    sandbox: Option<SandboxRef>,
    /// Print the link in place of opening a browser
    #[arg(long)]
    print: bool,
    #[command(flatten)]
    connect: Connect,
}

/// Programs that open a file in the user's browser.
const OPENERS: [&str; 2] = ["xdg-open", "open"];

pub async fn run(open: &Open, output: &Output) -> Result {
    let client = ConnectedClient::find(&open.connect)?;
    let target = match &open.sandbox {
        Some(reference) => format!("&to=/sandboxes/{}", reference.resolve(&client).await?),
        None => String::new(),
    };
    let link = client.create_sign_in_link().await?;
    let url = format!("{}{}{target}", client.address.base_url(), link.path);
    if output.json {
        return output.print_object(&json!({ "type": "sign_in_link", "url": url, "expires_at": link.expires_at }));
    }
    let opened = if open.print { Err(String::new()) } else { open_browser(&client, &url) };
    match opened {
        Ok(()) => output.print_line(&format!("opened {} in the browser", client.address.base_url())),
        Err(why) => {
            if !why.is_empty() {
                output.print_note(&format!("no browser was opened: {why}"));
            }
            output.print_line(&url)
        }
    }
}

/// Opens a private file that leads to the URL: other users can see the arguments of programs, but not this file.
fn open_browser(client: &ConnectedClient, url: &str) -> std::result::Result<(), String> {
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    if cfg!(target_os = "linux") && !has_display {
        return Err("there is no graphical session".to_owned());
    }
    let file = redirect_file(client)?;
    let url = url.replace('&', "&amp;").replace('"', "&quot;").replace('<', "&lt;");
    let page = format!(
        "<!doctype html><meta charset=\"utf-8\"><title>Atoll</title><meta name=\"referrer\" content=\"no-referrer\">\
         <meta http-equiv=\"refresh\" content=\"0;url={url}\"><a href=\"{url}\">Open Atoll</a>"
    );
    write_secret_file(&file, &page, true).map_err(|error| format!("{}: {error}", file.display()))?;
    let started = OPENERS.iter().any(|opener| {
        let mut command = Command::new(opener);
        command.arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    });
    if started { Ok(()) } else { Err("no program opens one".to_owned()) }
}

/// The data directory of a local server, else the directory of the session.
fn redirect_file(client: &ConnectedClient) -> std::result::Result<PathBuf, String> {
    let session = || std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let directory = client.address.local.clone().or_else(session);
    Ok(directory.ok_or("there is no private directory")?.join("open-page.html"))
}
