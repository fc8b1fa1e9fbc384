//! API tokens, and one-time tickets for WebSockets.

use super::create::issue_worker_token;
use super::ingest::require_not_drained;
use super::views::{cut_page, view_token, view_worker_start};
use crate::auth::access::{CanWork, ClientCaller};
use crate::auth::tickets::{TICKET_LIFETIME, Tickets};
use crate::auth::token_format::generate_token;
use crate::cursor::decode_id;
use crate::extract::page_size;
use crate::idempotency::{IdempotencyKey, JsonResponse};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_api::{NewToken, Page, PageQuery, WebSocketTicket};
use atoll_core::bounds;
use atoll_core::id::{SandboxId, TokenId, UserId};
use atoll_core::principal::{Role, TokenKind};
use atoll_store::tokens::{self, TokenHolder, TokenRow};
use atoll_store::{Tx, projects, users};
use secrecy::ExposeSecret;

/// Creates a token, which expires no later than the caller's own. Users may create their own; tokens of other users and of services require an admin.
pub async fn create_token(app: &App, client: ClientCaller, key: IdempotencyKey, new: NewToken) -> Result<JsonResponse> {
    bounds::check_line("name", &new.name, bounds::MAX_NAME_CHARS)?;
    let caller = client.0;
    let own = caller.user();
    let is_own = new.kind == TokenKind::User && own.is_some() && new.user_id.is_none_or(|user| Some(user) == own);
    if !is_own {
        caller.require_admin()?;
    }
    if new.expires_at.is_some_and(|end| end <= app.clock.now()) {
        return Err(Problem::invalid("expires_at: must be in the future"));
    }
    let creator = caller.principal.token();
    app.write_once(&caller, key, async move |work| {
        let holder = find_holder(work.tx, &new, own).await?;
        let creator = tokens::find_token(work.tx, creator).await?.ok_or_else(Problem::unauthorized)?;
        let id = TokenId::new();
        let issued = generate_token(id);
        let row = TokenRow {
            id,
            name: new.name,
            hash: issued.hash.clone(),
            holder,
            created_at: work.now,
            expires_at: [new.expires_at, creator.expires_at].into_iter().flatten().min(),
        };
        tokens::insert_token(work.tx, &row).await?;
        let mut view = view_token(row).ok_or_else(|| Problem::internal("a worker's token"))?;
        view.token = Some(issued.token.expose_secret().to_owned());
        JsonResponse::created(view)
    })
    .await
}

async fn find_holder(tx: &mut dyn Tx, new: &NewToken, own: Option<UserId>) -> Result<TokenHolder> {
    match new.kind {
        TokenKind::User => {
            if new.role.is_some() || new.project_id.is_some() {
                return Err(Problem::invalid("role, project_id: a user's token has the user's own rights"));
            }
            let id = new.user_id.or(own).ok_or_else(|| Problem::invalid("user_id: required"))?;
            let user = users::find_user(tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
            Ok(TokenHolder::User { id, role: user.role })
        }
        TokenKind::Service => {
            if new.user_id.is_some() {
                return Err(Problem::invalid("user_id: a service's token belongs to no user"));
            }
            if let Some(project) = new.project_id {
                projects::find_project(tx, project).await?.ok_or_else(|| Problem::not_found("project"))?;
            }
            Ok(TokenHolder::Service { role: new.role.unwrap_or(Role::Member), project: new.project_id })
        }
    }
}

/// Lists tokens: all for an admin, else the caller's own.
pub async fn list_tokens(app: &App, client: ClientCaller, query: PageQuery) -> Result<Page<atoll_api::Token>> {
    let limit = page_size(query.limit, 50, 200)?;
    let after = decode_id::<TokenId>("tokens", query.cursor.as_deref())?;
    let only = if client.0.is_admin() {
        None
    } else {
        Some(client.0.user().ok_or_else(|| Problem::forbidden("a service has no tokens of its own"))?)
    };
    let rows = app.read(async move |tx| Ok(tokens::list_tokens(tx, only, after.as_deref(), limit + 1).await?));
    let page = cut_page("tokens", rows.await?, limit, |row| row.id.to_string());
    let items = page.items.into_iter().filter_map(view_token).collect();
    Ok(Page { items, next_cursor: page.next_cursor })
}

/// Revokes a token. Without the role `admin`, only the caller's own.
pub async fn remove_token(app: &App, client: ClientCaller, id: TokenId) -> Result<atoll_api::Token> {
    let (is_admin, own) = (client.0.is_admin(), client.0.user());
    let removed = app.write(async move |work| {
        let not_found = || Problem::not_found("token");
        let row = tokens::find_token(work.tx, id).await?.ok_or_else(not_found)?;
        let is_own = matches!(&row.holder, TokenHolder::User { id, .. } if Some(*id) == own);
        if !is_admin && !is_own {
            return Err(not_found());
        }
        let view = view_token(row).ok_or_else(not_found)?;
        tokens::delete_token(work.tx, id).await?;
        Ok(view)
    });
    let token = removed.await?;
    app.tokens.forget();
    Ok(token)
}

pub fn issue_ticket(app: &App, client: ClientCaller) -> Result<WebSocketTicket> {
    let expires_at = app.clock.now() + TICKET_LIFETIME;
    let ticket = app.tickets.issue(client.0).ok_or_else(Tickets::too_many)?;
    Ok(WebSocketTicket { ticket, expires_at })
}

/// Issues a new worker token and revokes the old one.
pub async fn replace_worker_token(app: &App, access: CanWork<SandboxId>, key: IdempotencyKey) -> Result<JsonResponse> {
    let (id, public_url) = (access.id, app.public_url.clone());
    let replaced = app.write_once(&access.caller, key, async move |work| {
        let (_, row) = work.lock_sandbox(id).await?;
        require_not_drained(&row)
            .map_err(|_| Problem::new(Code::SandboxEnded, "the sandbox has ended and its worker is done"))?;
        let token = issue_worker_token(work, id).await?;
        JsonResponse::created(view_worker_start(id, token.token.expose_secret(), &public_url))
    });
    let response = replaced.await?;
    app.tokens.forget();
    Ok(response)
}
