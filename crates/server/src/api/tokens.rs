//! `/tokens`, and one-time tickets for WebSockets.

use super::{Page, PageQuery};
use crate::auth::{Caller, secret, tickets};
use crate::cursor;
use crate::extract::{Body, Id, Params, page_size};
use crate::once::{Answer, Once};
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use atoll_core::id::{ProjectId, TokenId, UserId};
use atoll_core::principal::{Principal, Role, TokenKind};
use atoll_core::time::Timestamp;
use atoll_store::tokens::{self, Holder, Token};
use atoll_store::{projects, users};
use axum::Json;
use axum::extract::State;
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Serialize, utoipa::ToSchema)]
#[schema(as = Token)]
pub struct TokenView {
    id: TokenId,
    kind: TokenKind,
    name: String,
    user_id: Option<UserId>,
    role: Role,
    project_id: Option<ProjectId>,
    created_at: Timestamp,
    expires_at: Option<Timestamp>,
    /// Only in the answer that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    token: Option<String>,
}

impl TokenView {
    /// Workers' tokens are not shown.
    fn of(row: Token) -> Option<Self> {
        let (kind, user_id, role, project_id) = match row.holder {
            Holder::User { id, role } => (TokenKind::User, Some(id), role, None),
            Holder::Service { role, project } => (TokenKind::Service, None, role, project),
            Holder::Worker { .. } => return None,
        };
        Some(Self {
            id: row.id,
            kind,
            name: row.name,
            user_id,
            role,
            project_id,
            created_at: row.created_at,
            expires_at: row.expires_at,
            token: None,
        })
    }
}

#[derive(Debug, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewToken {
    name: String,
    /// `user` (the default): for a person, with that person's role. `service`: for a program.
    #[serde(default = "for_user")]
    kind: TokenKind,
    /// Whose; the caller's own where absent.
    user_id: Option<UserId>,
    /// What a service may do.
    role: Option<Role>,
    /// Bounds a service to one project.
    project_id: Option<ProjectId>,
    expires_at: Option<Timestamp>,
}

const fn for_user() -> TokenKind {
    TokenKind::User
}

fn own_user(caller: &Caller) -> Option<UserId> {
    match &caller.principal {
        Principal::User { user, .. } => Some(*user),
        Principal::Service { .. } | Principal::Worker { .. } => None,
    }
}

/// Make a token. It is shown once.
///
/// Everybody can make tokens for themselves; those of others and of services take an admin.
#[utoipa::path(post, path = "/tokens", tag = "tokens", request_body = NewToken,
    params(("Idempotency-Key" = Option<String>, Header)), responses((status = 201, body = TokenView)))]
pub async fn make(
    State(app): State<Arc<App>>,
    caller: Caller,
    once: Once,
    Body { value: new, hash }: Body<NewToken>,
) -> Result<Answer> {
    caller.must_not_be_worker()?;
    bounds::line("name", &new.name, bounds::NAME_CHARS)?;
    let own = own_user(&caller);
    let for_self = new.kind == TokenKind::User && own.is_some() && new.user_id.is_none_or(|user| Some(user) == own);
    if !for_self {
        caller.must_be_admin()?;
    }
    if new.expires_at.is_some_and(|end| end <= app.clock.now()) {
        return Err(Problem::invalid("expires_at: lies in the past"));
    }
    app.write_once(&caller, once, hash, move |work| {
        Box::pin(async move {
            let holder = match new.kind {
                TokenKind::User => {
                    if new.role.is_some() || new.project_id.is_some() {
                        return Err(Problem::invalid("role, project_id: a user's token has the user's own rights"));
                    }
                    let id = new.user_id.or(own).ok_or_else(|| Problem::invalid("user_id: whose token?"))?;
                    let user = users::get(work.tx, id).await?.ok_or_else(|| Problem::not_found("user"))?;
                    Holder::User { id, role: user.role }
                }
                TokenKind::Service => {
                    if new.user_id.is_some() {
                        return Err(Problem::invalid("user_id: a service's token belongs to no user"));
                    }
                    if let Some(project) = new.project_id {
                        projects::get(work.tx, project).await?.ok_or_else(|| Problem::not_found("project"))?;
                    }
                    Holder::Service { role: new.role.unwrap_or(Role::Member), project: new.project_id }
                }
            };
            let id = TokenId::new();
            let made = secret::generate(id);
            let row = Token {
                id,
                name: new.name,
                hash: made.hash.clone(),
                holder,
                created_at: work.now,
                expires_at: new.expires_at,
            };
            tokens::insert(work.tx, &row).await?;
            let mut view = TokenView::of(row).ok_or_else(|| Problem::internal("a worker's token"))?;
            view.token = Some(made.token.expose_secret().to_owned());
            Answer::created(view)
        })
    })
    .await
}

/// List tokens: an admin sees all, others their own.
#[utoipa::path(get, path = "/tokens", tag = "tokens", params(PageQuery),
    responses((status = 200, body = Page<TokenView>)))]
pub async fn list(
    State(app): State<Arc<App>>,
    caller: Caller,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<TokenView>>> {
    caller.must_not_be_worker()?;
    let limit = page_size(query.limit, 50, 200)?;
    let after = cursor::read_id::<TokenId>("tokens", query.cursor.as_deref())?;
    let only = if caller.must_be_admin().is_ok() {
        None
    } else {
        Some(own_user(&caller).ok_or_else(|| Problem::forbidden("a service has no tokens of its own"))?)
    };
    let rows = app
        .read(move |tx| Box::pin(async move { Ok(tokens::list(tx, only, after.as_deref(), limit + 1).await?) }))
        .await?;
    let page = Page::cut("tokens", rows, limit, |row| row.id.to_string());
    let items = page.items.into_iter().filter_map(TokenView::of).collect();
    Ok(Json(Page { items, next_cursor: page.next_cursor }))
}

/// End a token.
#[utoipa::path(delete, path = "/tokens/{id}", tag = "tokens", params(("id" = TokenId, Path)),
    responses((status = 200, body = TokenView)))]
pub async fn remove(State(app): State<Arc<App>>, caller: Caller, Id(id): Id<TokenId>) -> Result<Answer> {
    caller.must_not_be_worker()?;
    let (admin, own) = (caller.must_be_admin().is_ok(), own_user(&caller));
    let answer = app
        .write(move |work| {
            Box::pin(async move {
                let gone = || Problem::not_found("token");
                let row = tokens::get(work.tx, id).await?.ok_or_else(gone)?;
                let owns = matches!(&row.holder, Holder::User { id, .. } if Some(*id) == own);
                if !admin && !owns {
                    return Err(gone());
                }
                let view = TokenView::of(row).ok_or_else(gone)?;
                tokens::delete(work.tx, id).await?;
                Answer::ok(view)
            })
        })
        .await?;
    app.tokens.forget();
    Ok(answer)
}

#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Ticket {
    ticket: String,
    expires_at: Timestamp,
}

/// A one-time ticket for `/events/ws?ticket=…`, good for 30 seconds.
#[utoipa::path(post, path = "/ws-tickets", tag = "tokens", responses((status = 201, body = Ticket)))]
pub async fn ticket(State(app): State<Arc<App>>, caller: Caller) -> Result<Answer> {
    caller.must_not_be_worker()?;
    let expires_at = app.clock.now() + tickets::LIFETIME;
    let ticket = app.tickets.issue(caller).ok_or_else(|| {
        Problem::new(Code::RateLimited, "too many tickets are out; they expire by themselves").retry_after(30)
    })?;
    Answer::created(Ticket { ticket, expires_at })
}
