//! Forges, and the callers' own logins at them.

use crate::auth::access::ClientCaller;
use crate::forge_logins::view_login;
use crate::keyed_locks::run_to_completion;
use crate::problem::{Problem, Result};
use crate::state::App;
use atoll_api::{Forge, ForgeList, ForgeLoginProgress, StartedForgeLogin};
use atoll_core::forge::ForgeKind;
use atoll_core::id::UserId;
use std::sync::Arc;

fn require_user(client: &ClientCaller) -> Result<UserId> {
    client.0.user().ok_or_else(|| Problem::forbidden("only a user has a login at a forge; use a user's token"))
}

pub async fn list_forges(app: &App, client: ClientCaller) -> Result<ForgeList> {
    let mut items = Vec::new();
    for name in ForgeKind::ALL {
        items.push(describe_forge(app, *name, client.0.user()).await?);
    }
    Ok(ForgeList { items })
}

async fn describe_forge(app: &App, name: ForgeKind, user: Option<UserId>) -> Result<Forge> {
    let login = match user {
        Some(user) => app.forge_logins.find_login(user).await?.map(view_login),
        None => None,
    };
    let github = &app.config.github;
    Ok(Forge {
        name,
        host: github.host(),
        login,
        has_app: github.app_id.is_some(),
        has_token: github.token.is_some(),
        allows_login: github.client_id.is_some(),
    })
}

pub async fn start_login(app: &App, client: ClientCaller, forge: ForgeKind) -> Result<StartedForgeLogin> {
    let ForgeKind::GitHub = forge;
    app.forge_logins.start_login(require_user(&client)?).await
}

/// Asks the forge about the caller's login. A disconnect does not cancel it: the forge issues the token once.
pub async fn poll_login(app: &Arc<App>, client: ClientCaller, forge: ForgeKind) -> Result<ForgeLoginProgress> {
    let ForgeKind::GitHub = forge;
    let (user, app) = (require_user(&client)?, Arc::clone(app));
    run_to_completion(async move { app.forge_logins.poll_login(user).await }).await
}

pub async fn remove_login(app: &App, client: ClientCaller, forge: ForgeKind) -> Result<Forge> {
    let user = require_user(&client)?;
    let ForgeKind::GitHub = forge;
    app.forge_logins.remove_login(user).await?;
    tracing::info!(%user, %forge, "a user's login was removed");
    describe_forge(app, forge, Some(user)).await
}
