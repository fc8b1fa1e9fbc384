//! `atoll token`: manages API tokens.

use crate::arguments::parse_word;
use crate::connect::{Connect, ConnectedClient};
use crate::failure::{Failure, Result};
use crate::output::Output;
use crate::pages::{collect_all, page_query};
use crate::render::{table, time};
use crate::worker_command::{require_new_file, write_secret_file};
use atoll_api::{NewToken, Token as ApiToken};
use atoll_core::id::{ProjectId, TokenId, UserId};
use atoll_core::principal::{Role, TokenKind};
use atoll_core::time::Timestamp;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, clap::Args)]
pub struct TokenArgs {
    #[command(flatten)]
    connect: Connect,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List your tokens; admins see all
    #[command(after_help = "Examples:\n  atoll token ls")]
    #[command(alias = "list")]
    Ls,
    /// Create a token and print it once
    #[command(after_help = "\
Examples:
  atoll token new laptop
  atoll token new ada --user usr_… --out ada.token
  ATOLL_TOKEN=$(atoll token new ci --service --role member --expires 2027-01-01T00:00:00Z)")]
    New(New),
    /// Revoke a token
    #[command(after_help = "Examples:\n  atoll token rm tok_…")]
    Rm {
        /// Token id (tok_…)
        id: TokenId,
    },
}

#[derive(Debug, clap::Args)]
struct New {
    /// Name of the token
    name: String,
    /// User of the token [default: yourself]
    #[arg(long, value_name = "ID", conflicts_with = "service")]
    user: Option<UserId>,
    /// Create a service token, for a program
    #[arg(long)]
    service: bool,
    /// Role of the service: viewer, member or admin
    #[arg(long, value_parser = parse_word::<Role>, requires = "service")]
    role: Option<Role>,
    /// Limit the service to one project
    #[arg(long, value_name = "ID", requires = "service")]
    project: Option<ProjectId>,
    /// Expiry time, such as 2027-01-31T12:00:00Z
    #[arg(long, value_name = "TIME", value_parser = parse_word::<Timestamp>)]
    expires: Option<Timestamp>,
    /// Write the token to this new private file instead of stdout
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl New {
    fn request(&self) -> NewToken {
        NewToken {
            name: self.name.clone(),
            kind: if self.service { TokenKind::Service } else { TokenKind::User },
            user_id: self.user,
            role: self.role,
            project_id: self.project,
            expires_at: self.expires,
        }
    }
}

pub async fn run(token: &TokenArgs, output: &Output) -> Result {
    let client = ConnectedClient::find(&token.connect)?;
    match &token.command {
        Command::Ls => print_list(&all_tokens(&client).await?, output),
        Command::New(new) => create_token(new, &client, output).await,
        Command::Rm { id } => {
            let removed = client.revoke_token(*id).await?;
            output.print_result(&removed, || format!("{id} is revoked"))
        }
    }
}

async fn all_tokens(client: &ConnectedClient) -> Result<Vec<ApiToken>> {
    collect_all(async |cursor| client.list_tokens(&page_query(cursor)).await).await
}

/// A new token whose secret is in a file.
#[derive(Serialize)]
struct SavedToken<'a> {
    #[serde(flatten)]
    token: ApiToken,
    #[serde(rename = "token")]
    secret: Option<String>,
    token_file: &'a Path,
}

async fn create_token(new: &New, client: &ConnectedClient, output: &Output) -> Result {
    require_new_file(new.out.as_deref())?;
    let mut token = client.create_token(&new.request()).await?;
    let (id, secret) = (token.id, token.token.clone().unwrap_or_default());
    let Some(path) = &new.out else {
        if output.json {
            return output.print_response(&token);
        }
        // stdout has only the token, for scripts.
        output.print_note(&format!("{id}: this token is shown only once"));
        return output.print_line(&secret);
    };
    write_secret_file(path, &secret, false).map_err(|error| {
        Failure::setup("token_file", format!("cannot write the token to {}: {error}", path.display()))
            .with_hint(format!("Revoke it with `atoll token rm {id}` and create another one."))
    })?;
    token.token = None;
    output.print_result(&SavedToken { token, secret: None, token_file: path }, || {
        format!("{id} is in {}", path.display())
    })
}

fn print_list(tokens: &[ApiToken], output: &Output) -> Result {
    let now = time::now();
    table::print_list(output, tokens, &["ID", "KIND", "ROLE", "OWNER", "AGE", "EXPIRES", "NAME"], |token| {
        let expires = token.expires_at.map_or_else(|| "never".to_owned(), time::format_time);
        let user = token.user_id.map(|id| id.to_string());
        let owner = user.or_else(|| token.project_id.map(|id| id.to_string())).unwrap_or_else(|| "-".to_owned());
        let age = time::format_age(token.created_at, now);
        let cells =
            [&token.id.to_string(), token.kind.as_str(), token.role.as_str(), &owner, &age, &expires, &token.name];
        cells.map(table::cell).into()
    })
}
