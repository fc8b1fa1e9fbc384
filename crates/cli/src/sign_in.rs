//! `atoll sign-in`: lists and ends sign-ins to the web page.

use crate::connect::{Connect, ConnectedClient};
use crate::failure::Result;
use crate::output::Output;
use crate::render::{table, text, time};
use atoll_core::id::SignInId;

#[derive(Debug, clap::Args)]
pub struct SignInArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List your sign-ins to the page
    #[command(after_help = "Examples:\n  atoll sign-in ls")]
    #[command(alias = "list")]
    Ls,
    /// End a sign-in
    #[command(after_help = "Examples:\n  atoll sign-in rm sin_…")]
    Rm {
        /// Id of the sign-in (sin_…)
        id: SignInId,
    },
}

pub async fn run(sign_in: &SignInArgs, output: &Output) -> Result {
    let client = ConnectedClient::find(&sign_in.connect)?;
    match &sign_in.command {
        Command::Ls => {
            let now = time::now();
            let items = client.list_sign_ins().await?.items;
            table::print_list(output, &items, &["ID", "AGE", "USED", "EXPIRES", "BROWSER"], |item| {
                let browser = item.user_agent.as_deref().map_or_else(|| "-".to_owned(), text::escape_line);
                let (age, used) = (time::format_age(item.created_at, now), time::format_age(item.last_used_at, now));
                let cells = [&item.id.to_string(), &age, &used, &time::format_time(item.expires_at), &browser];
                cells.map(table::cell).into()
            })
        }
        Command::Rm { id } => {
            let ended = client.end_sign_in(*id).await?;
            output.print_result(&ended, || format!("{id} has ended"))
        }
    }
}
