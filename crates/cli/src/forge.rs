//! `atoll forge`: the user's logins at forges.

use crate::arguments::parse_word;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_api::{Forge, ForgeLogin, ForgeLoginState};
use atoll_core::forge::ForgeKind;
use std::time::Duration;

/// The wait between two polls if the server names none.
const DEFAULT_INTERVAL_S: u64 = 5;

#[derive(Debug, clap::Args)]
pub struct ForgeArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the forges, and your logins at them
    #[command(after_help = "Examples:\n  atoll forge ls\n  atoll forge ls --json | jq .login.account")]
    #[command(alias = "list")]
    Ls,
    /// Log in to a forge with a code that you confirm in a browser
    #[command(after_help = "\
Examples:
  atoll forge login github

The server keeps your token sealed and renews it. Your sandboxes clone with it, and your branches and pull requests \
come from your account. No sandbox contains it.")]
    Login {
        /// Forge: github
        #[arg(value_parser = parse_word::<ForgeKind>)]
        forge: ForgeKind,
    },
    /// Remove your login from the server
    #[command(after_help = "\
Examples:
  atoll forge logout github

The forge lists the authorization until you revoke it in your settings there.")]
    Logout {
        /// Forge: github
        #[arg(value_parser = parse_word::<ForgeKind>)]
        forge: ForgeKind,
    },
}

pub async fn run(forge: &ForgeArgs, output: &Output) -> Result {
    let client = ConnectedClient::find(&forge.connect)?;
    match &forge.command {
        Command::Ls => print_list(&client.list_forges().await?.items, output),
        Command::Login { forge } => log_in(&client, *forge, output).await,
        Command::Logout { forge } => {
            let removed = client.remove_forge_login(*forge).await?;
            output.print_result(&removed, || format!("logged out of {}", removed.host))
        }
    }
}

async fn log_in(client: &ConnectedClient, forge: ForgeKind, output: &Output) -> Result {
    let started = client.start_forge_login(forge).await?;
    output.print_result(&started, || {
        let (page, code) = (text::escape_line(&started.verification_uri), text::escape_line(&started.user_code));
        format!("Open {page} and enter the code {code}\nWaiting for your confirmation …")
    })?;
    output.flush()?;
    let mut interval_s = started.interval_s;
    loop {
        tokio::time::sleep(Duration::from_secs(interval_s)).await;
        let progress = client.poll_forge_login(forge).await?;
        match progress.state {
            ForgeLoginState::Pending => interval_s = progress.interval_s.unwrap_or(DEFAULT_INTERVAL_S),
            ForgeLoginState::Granted => {
                return output.print_result(&progress, || {
                    let account = progress.login.as_ref().and_then(|login| login.account.as_deref());
                    format!("logged in to {forge} as {}", text::escape_line(account.unwrap_or("an unknown account")))
                });
            }
            ForgeLoginState::Denied => {
                return Err(Failure::setup("forge_login_denied", format!("you denied the login at {forge}")));
            }
            ForgeLoginState::Expired => {
                let detail = format!("the code expired; run `atoll forge login {forge}` again");
                return Err(Failure::setup("forge_login_expired", detail));
            }
        }
    }
}

fn print_list(forges: &[Forge], output: &Output) -> Result {
    table::print_list(output, forges, &["NAME", "HOST", "ACCOUNT", "TOKEN UNTIL", "SERVER HAS"], |forge| {
        let account = describe_account(forge.login.as_ref());
        let expires_at = forge.login.as_ref().and_then(|login| login.expires_at);
        let until = expires_at.map_or_else(|| "-".to_owned(), time::format_time);
        let server_has = describe_server(forge);
        [forge.name.as_str(), &forge.host, &account, &until, &server_has].map(table::cell).into()
    })
}

fn describe_account(login: Option<&ForgeLogin>) -> String {
    match login {
        Some(login) => login.account.clone().unwrap_or_else(|| "unknown".to_owned()),
        None => "-".to_owned(),
    }
}

/// The server's own credentials, and whether users can log in.
fn describe_server(forge: &Forge) -> String {
    let parts = [(forge.has_app, "app"), (forge.has_token, "token"), (forge.allows_login, "logins")];
    let names: Vec<&str> = parts.iter().filter(|(has, _)| *has).map(|(_, name)| *name).collect();
    if names.is_empty() { "-".to_owned() } else { names.join(", ") }
}
