//! The model gateway: a reverse proxy from sandboxes to model APIs. An agent uses it like the API itself, with a
//! placeholder key. The gateway inserts the real key, meters usage, and refuses a request that would exceed a limit.
//!
//! ```text
//! agent ─► 127.0.0.1:7709/anthropic/… ─► gateway_routes ─► request_body: model ─► sandbox_budget: reserve cost
//!       ◄── response_body: meters, masks the key ◄── forwarding ─► upstream_client ◄──► upstream, with the real key
//! ```
//!
//! `registry_proxy` does the same for downloads from package registries. `credential` finds the key; `login_renewal` renews a login that is stored in place of a key; `charge` settles the cost.
//!
//! The sandbox's network policy does not apply here. The gateway stores no body. In a response it changes nothing but
//! the real key.

mod agent_login;
mod body_buffer;
mod charge;
mod credential;
mod download_body;
mod forwarding;
mod gateway_refusal;
mod gateway_routes;
mod gateway_server;
mod key_mask;
mod login_renewal;
mod model_question;
mod placeholder;
mod project_budget;
mod refusal_report;
mod registry_proxy;
mod request_body;
mod response_body;
mod sandbox_budget;
mod upstream_client;
mod upstream_headers;
mod usage_report;
mod usage_scanner;

pub use credential::is_bound_to;
pub use download_body::DownloadCounter;
pub use gateway_server::serve_gateway;
pub use model_question::{ModelAnswer, ModelQuestion};
pub use placeholder::Placeholders;
pub use registry_proxy::registry_addresses;
pub use upstream_client::{UpstreamClient, new_client as new_upstream_client, root_cause as upstream_root_cause};

use crate::app::continuous;
use crate::egress::parse_upstream_proxy;
use crate::metrics::record_seconds;
use crate::problem::Problem;
use crate::state::App;
use atoll_config::{self as config, Config};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::model::{ModelApi, Price};
use atoll_core::price_table::{list_price, list_prices};
use atoll_core::sandbox::AgentLimits;
use atoll_store::{Tx, sandboxes};
use axum::body::Bytes;
use axum::http::{Request, Response, StatusCode, Uri};
use body_buffer::BufferSpace;
use credential::Credentials;
use gateway_refusal::GatewayRefusal;
use gateway_routes::{GatewayRoute, RequestPurpose, RouteMatch};
use http_body_util::combinators::BoxBody;
use hyper::body::Incoming;
use project_budget::ProjectBudgets;
use request_body::RequestBody;
use sandbox_budget::{Balance, SandboxBudget};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

pub type Body = BoxBody<Bytes, hyper::Error>;

/// Maximum wait for open charges when the server stops.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_CACHED_BUDGETS: usize = 10_000;

pub struct Gateway {
    models: Vec<config::Model>,
    upstreams: Vec<config::Upstream>,
    client: UpstreamClient,
    placeholders: Placeholders,
    credentials: Credentials,
    budgets: Mutex<HashMap<SandboxId, Arc<SandboxBudget>>>,
    projects: ProjectBudgets,
    buffer_space: BufferSpace,
    /// Each charge holds a clone until it is stored.
    open_charges: Arc<()>,
    stopping: watch::Sender<bool>,
}

impl Gateway {
    pub fn new(config: &Config, no_proxy: &str, placeholders: Placeholders) -> Self {
        Self {
            models: config.models.clone(),
            upstreams: config.model_upstreams.clone(),
            client: upstream_client::new_client(parse_upstream_proxy(&config.network, no_proxy)),
            placeholders,
            credentials: Credentials::default(),
            budgets: Mutex::default(),
            projects: ProjectBudgets::default(),
            buffer_space: BufferSpace::for_all(),
            open_charges: Arc::default(),
            stopping: watch::Sender::new(false),
        }
    }

    /// The key that a sandbox sends in place of a real one.
    pub fn placeholder_key(&self, sandbox: SandboxId) -> String {
        self.placeholders.derive_key(sandbox)
    }

    /// A signal that becomes true when the server stops.
    fn stop_signal(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Waits until all charges are stored, at most `SETTLE_TIMEOUT`. Responses without a client are not read further.
    pub async fn wait_until_settled(&self) {
        self.stopping.send_replace(true);
        let deadline = tokio::time::Instant::now() + SETTLE_TIMEOUT;
        while Arc::strong_count(&self.open_charges) > 1 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The label of a model in metrics.
    fn model_label(&self, name: &str) -> String {
        crate::metrics::model_label(&self.models, name)
    }

    fn find_listed(&self, name: &str) -> Option<&config::Model> {
        self.models.iter().find(|model| model.name == name)
    }

    /// The hosts of the upstreams whose key this secret is.
    pub fn hosts_of_secret(&self, name: &str) -> Vec<String> {
        let named = self.upstreams.iter().filter(|upstream| upstream.secret.as_deref() == Some(name));
        let uris = named.filter_map(|upstream| upstream.url.parse::<Uri>().ok());
        let mut hosts: Vec<String> = uris.filter_map(|uri| Some(uri.authority()?.to_string())).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }

    /// The price of a model, by the name that agents use.
    pub fn price_of(&self, name: &str) -> Option<Price> {
        match self.find_listed(name) {
            // List prices are known by the upstream's name of the model.
            Some(model) => model.price.or_else(|| list_price(model.model.as_deref().unwrap_or(&model.name))),
            None => list_price(name),
        }
    }

    /// The highest known price of an upstream for a request of this size. Without known prices of its own, the list
    /// prices of its API count.
    fn highest_price(&self, upstream: &config::Upstream, input: u64, output: u64) -> Option<Price> {
        let own = self.models.iter().filter(|model| model.upstream == upstream.name);
        let own: Vec<Price> = own.filter_map(|model| self.price_of(&model.name)).collect();
        let is_built_in = upstream.name == upstream.api.as_str();
        let listed = list_prices(upstream.api).filter(|_| is_built_in || own.is_empty());
        own.iter().copied().chain(listed).max_by_key(|price| price.max_cost_micros(input, output))
    }

    /// The upstream of this name; without a name, the API's built-in upstream, or the first configured one with a key.
    fn find_upstream(&self, api: ModelApi, name: Option<&str>) -> Option<&config::Upstream> {
        let all = || self.upstreams.iter().filter(|upstream| upstream.api == api);
        match name {
            Some(name) => all().find(|upstream| upstream.name == name),
            None => {
                let own = all().find(|upstream| upstream.name == api.as_str());
                let has_key = |upstream: &&config::Upstream| upstream.key.is_some() || !upstream.needs_key;
                own.filter(has_key).or_else(|| all().find(has_key)).or(own)
            }
        }
    }

    /// Finds the model of a request and its upstream.
    fn resolve_model(
        &self,
        route: &GatewayRoute,
        request_body: &RequestBody,
    ) -> Result<ResolvedModel<'_>, GatewayRefusal> {
        let name = route.path_model.as_ref().map(|(model, _)| model).or(request_body.model.as_ref());
        let listed = match name {
            _ if self.models.is_empty() || route.purpose == RequestPurpose::ListModels => None,
            None => return Err(GatewayRefusal::NoModel),
            Some(name) => Some(self.find_listed(name).ok_or_else(|| GatewayRefusal::NotListed {
                model: name.chars().take(200).collect(),
                listed: self.models.iter().map(|model| model.name.clone()).collect(),
            })?),
        };
        let upstream = self.find_upstream(route.api, listed.map(|model| model.upstream.as_str()));
        let upstream = upstream.ok_or_else(|| match listed {
            None => GatewayRefusal::NoUpstream,
            Some(model) => {
                let other = self.upstreams.iter().find(|upstream| upstream.name == model.upstream);
                other.map_or(GatewayRefusal::NoUpstream, |other| GatewayRefusal::WrongApi {
                    model: model.name.clone(),
                    api: other.api,
                })
            }
        })?;
        let price = name.and_then(|name| self.price_of(name));
        Ok(ResolvedModel {
            upstream,
            name: name.cloned(),
            upstream_model: listed.and_then(|model| model.model.as_deref()),
            context: listed.and_then(|model| model.context),
            price,
        })
    }

    async fn sandbox_budget(&self, app: &App, sandbox: SandboxId) -> Result<Arc<SandboxBudget>, GatewayRefusal> {
        if let Some(known) = self.budgets.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox) {
            return Ok(Arc::clone(known));
        }
        let read = app.read(async move |tx| load_balance(tx, sandbox).await).await;
        let (project, balance) = read.map_err(|_| GatewayRefusal::Busy)?.ok_or(GatewayRefusal::WrongPlaceholder)?;
        let new_budget = SandboxBudget::new(sandbox, self.projects.project_budget(app, project).await?, balance);
        let mut accounts = self.budgets.lock().unwrap_or_else(PoisonError::into_inner);
        if accounts.len() >= MAX_CACHED_BUDGETS {
            // A budget that is referenced elsewhere has a request in flight.
            accounts.retain(|_, budget| Arc::strong_count(budget) > 1);
            self.projects.prune();
        }
        Ok(Arc::clone(accounts.entry(sandbox).or_insert_with(|| Arc::new(new_budget))))
    }

    /// Applies changed limits of a sandbox.
    pub fn update_limits(&self, sandbox: SandboxId, limits: &AgentLimits) {
        if let Some(budget) = self.budgets.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox) {
            budget.set_limit(limits.cost_usd.map(sandbox_budget::to_micros));
        }
    }

    /// Sets or clears the cost limit of the sandbox's continuous task.
    pub fn update_task_limit(&self, sandbox: SandboxId, most: Option<i64>) {
        if let Some(budget) = self.budgets.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox) {
            budget.set_task_limit(most);
            // The next phase of the task reports exhaustion again.
            budget.clear_exhausted();
        }
    }

    /// Reloads a changed project, whose budget may have changed.
    pub async fn reload_project(&self, app: &App, project: ProjectId) {
        self.projects.reload_project(app, project).await;
    }

    /// Reserves the maximum cost of a request. On a shortage it reads the stored limits and tries again.
    async fn reserve_cost(&self, app: &Arc<App>, budget: &Arc<SandboxBudget>, most: i64) -> Result<(), GatewayRefusal> {
        match budget.reserve(most, app.clock.now()) {
            Err(GatewayRefusal::Budget { .. }) => {}
            reservation => return reservation,
        }
        let sandbox = budget.sandbox;
        let read = app.read(async move |tx| load_balance(tx, sandbox).await).await;
        if let Ok(Some((_, balance))) = read {
            budget.set_limit(balance.limit);
            budget.set_task_limit(balance.task);
        }
        budget.reserve(most, app.clock.now())
    }
}

/// Reads the stored balance of a sandbox and its project.
async fn load_balance(tx: &mut dyn Tx, sandbox: SandboxId) -> Result<Option<(ProjectId, Balance)>, Problem> {
    let Some(row) = sandboxes::find_sandbox(tx, sandbox).await? else { return Ok(None) };
    let (limit, task) = (sandbox_budget::cost_limit(&row.settings), continuous::cost_limit(tx, &row).await?);
    Ok(Some((row.project_id, Balance { limit, task, spent: row.cost_model_micros, reserved: 0 })))
}

/// The model of a request, with its upstream.
struct ResolvedModel<'a> {
    upstream: &'a config::Upstream,
    name: Option<String>,
    /// Name at the upstream, if it differs.
    upstream_model: Option<&'a str>,
    context: Option<u64>,
    price: Option<Price>,
}

fn status_class(status: StatusCode) -> &'static str {
    match status.as_u16() {
        ..=299 => "2xx",
        300..=399 => "3xx",
        400..=499 => "4xx",
        500.. => "5xx",
    }
}

/// Handles a request to the gateway. Returns any other request unchanged.
pub async fn handle_request(
    app: &Arc<App>,
    sandbox: SandboxId,
    request: Request<Incoming>,
) -> Result<Response<Body>, Request<Incoming>> {
    if let Some(download) = registry_proxy::match_download(&app.config.registries, request.uri()) {
        return Ok(registry_proxy::forward_download(app, sandbox, download, request).await);
    }
    let (api, route) = match gateway_routes::match_route(request.method(), request.uri().path()) {
        RouteMatch::NotGateway => return Err(request),
        RouteMatch::Unknown(api) => (api, None),
        RouteMatch::Route(route) => (route.api, Some(route)),
    };
    let began = Instant::now();
    let query = request.uri().query().unwrap_or_default();
    let is_shown = upstream_headers::has_key(request.headers(), query, &app.gateway.placeholder_key(sandbox));
    let passed = match route {
        _ if !is_shown => Err(GatewayRefusal::WrongPlaceholder),
        None => Err(GatewayRefusal::NotServed),
        Some(route) => forwarding::forward_request(app, sandbox, route, request).await,
    };
    let status = passed.as_ref().map_or("refused", |response| status_class(response.status()));
    metrics::counter!(crate::metrics::GATEWAY_REQUESTS, "api" => api.as_str(), "status" => status).increment(1);
    Ok(match passed {
        Ok(response) => {
            record_seconds(crate::metrics::GATEWAY_SECONDS, &[("api", api.as_str())], began.elapsed());
            response
        }
        Err(refusal) => {
            refusal_report::report_refusal(app, sandbox, &refusal);
            refusal.to_response(api)
        }
    })
}
