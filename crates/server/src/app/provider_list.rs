//! Lists the providers with their capabilities, limits and state.

use crate::auth::access::ClientCaller;
use crate::problem::Result;
use crate::state::App;
use atoll_api::{Circuit, Provider, ProviderList};
use atoll_core::sandbox::ProviderKind;
use futures_util::future::join_all;
use std::time::Duration;

/// Time limit for a provider to respond.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

pub async fn list_providers(app: &App, client: ClientCaller) -> Result<ProviderList> {
    let is_admin = client.0.is_admin();
    let views = ProviderKind::ALL.iter().map(|kind| view_provider(app, *kind, is_admin));
    let items = join_all(views).await.into_iter().collect::<Result<_>>()?;
    Ok(ProviderList { items })
}

/// Describes a provider. Only admins see why it is not available: the reason can name files of the server.
async fn view_provider(app: &App, kind: ProviderKind, is_admin: bool) -> Result<Provider> {
    let provider = app.providers()?.get(kind);
    let checked = tokio::time::timeout(RESPONSE_TIMEOUT, provider.check_availability()).await;
    let problem = match checked {
        Ok(Ok(())) => None,
        Ok(Err(error)) => Some(error.to_string()),
        Err(_) => Some(format!("it did not respond within {} seconds", RESPONSE_TIMEOUT.as_secs())),
    };
    let circuit = app.circuits.find_open(kind, app.clock.steady_now()).map(|open| Circuit {
        state: open.state,
        failures: open.failures,
        retry_at: open.retry_in.map(|delay| app.clock.now() + delay),
        detail: Some(open.detail).filter(|_| is_admin),
    });
    Ok(Provider {
        name: kind,
        circuit,
        is_default: app.config.provider.default == kind,
        available: problem.is_none(),
        detail: problem.filter(|_| is_admin),
        capabilities: provider.capabilities(),
        create_timeout_s: app.config.sandbox.create_timeout.for_provider(kind).as_secs(),
    })
}
