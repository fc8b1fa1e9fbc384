//! The model gateway: a reverse proxy from sandboxes to model APIs. An agent uses it like the API itself, with a
//! placeholder key. The gateway inserts the real key, meters usage, and refuses a request that would exceed a limit.
//!
//! ```text
//! agent ─► 127.0.0.1:7709/anthropic/… ─► gateway_routes ─► request_body: model ─► sandbox_budget: reserve cost
//!       ◄───────────── charge: meters the response ◄────────── upstream_client ◄──► upstream, with the real key
//! ```
//!
//! `credential` finds the key; `login_renewal` renews a login that is stored in place of a key.
//!
//! The sandbox's network policy does not apply here. The gateway stores no body and changes no response.

mod agent_login;
mod body_buffer;
mod charge;
mod credential;
mod gateway_refusal;
mod gateway_routes;
mod gateway_server;
mod login_renewal;
mod placeholder;
mod project_budget;
mod request_body;
mod sandbox_budget;
mod upstream_client;
mod upstream_headers;
mod usage_scanner;

pub use gateway_server::serve_gateway;
pub use placeholder::Placeholders;

use crate::app::{continuous, limits};
use crate::egress::parse_upstream_proxy;
use crate::problem::Problem;
use crate::state::App;
use atoll_api::events::{EventData, ModelRefused};
use atoll_config::{self as config, Config};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::model::{ModelApi, ModelTokens, Price, list_price};
use atoll_core::sandbox::AgentLimits;
use atoll_store::{Tx, sandboxes};
use axum::body::Bytes;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{Request, Response, StatusCode, Uri, Version, request};
use body_buffer::BufferSpace;
use charge::{Charge, ChargeItem, MeteredBody};
use credential::{Credentials, UpstreamKey};
use gateway_refusal::GatewayRefusal;
use gateway_routes::{GatewayRoute, RequestPurpose, RouteMatch};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use project_budget::ProjectBudgets;
use request_body::RequestBody;
use sandbox_budget::{Balance, Exhausted, SandboxBudget};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use usage_scanner::UsageScanner;

pub type Body = BoxBody<Bytes, hyper::Error>;

/// Maximum wait for open charges when the server stops.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_CACHED_BUDGETS: usize = 10_000;

pub struct Gateway {
    models: Vec<config::Model>,
    upstreams: Vec<config::Upstream>,
    client: upstream_client::UpstreamClient,
    placeholders: Placeholders,
    credentials: Credentials,
    budgets: Mutex<HashMap<SandboxId, Arc<SandboxBudget>>>,
    projects: ProjectBudgets,
    buffer_space: BufferSpace,
    /// Each charge holds a clone until it is stored.
    open_charges: Arc<()>,
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
        }
    }

    /// The key that a sandbox sends in place of a real one.
    pub fn placeholder_key(&self, sandbox: SandboxId) -> String {
        self.placeholders.derive_key(sandbox)
    }

    /// Waits until all charges are stored, at most `SETTLE_TIMEOUT`.
    pub async fn wait_until_settled(&self) {
        let deadline = tokio::time::Instant::now() + SETTLE_TIMEOUT;
        while Arc::strong_count(&self.open_charges) > 1 && tokio::time::Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn find_listed(&self, name: &str) -> Option<&config::Model> {
        self.models.iter().find(|model| model.name == name)
    }

    /// The price of a model, by the name that agents use.
    pub fn price_of(&self, name: &str) -> Option<Price> {
        match self.find_listed(name) {
            // List prices are known by the upstream's name of the model.
            Some(model) => model.price.or_else(|| list_price(model.model.as_deref().unwrap_or(&model.name))),
            None => list_price(name),
        }
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

    /// Sends a request with the real key in place of the placeholder.
    async fn send_upstream(
        &self,
        head: &request::Parts,
        body: &Bytes,
        upstream: &config::Upstream,
        key: Option<&UpstreamKey>,
    ) -> Result<Response<Incoming>, hyper_util::client::legacy::Error> {
        let mut headers = head.headers.clone();
        upstream_headers::prepare_headers(&mut headers, upstream.api, upstream.auth, key);
        let mut request = Request::new(Full::new(body.clone()));
        (*request.method_mut(), *request.uri_mut()) = (head.method.clone(), head.uri.clone());
        *request.headers_mut() = headers;
        self.client.request(request).await
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

/// Handles a request to the gateway. Returns any other request unchanged.
pub async fn handle_request(
    app: &Arc<App>,
    sandbox: SandboxId,
    request: Request<Incoming>,
) -> Result<Response<Body>, Request<Incoming>> {
    let (api, route) = match gateway_routes::match_route(request.method(), request.uri().path()) {
        RouteMatch::NotGateway => return Err(request),
        RouteMatch::Unknown(api) => (api, None),
        RouteMatch::Route(route) => (route.api, Some(route)),
    };
    let query = request.uri().query().unwrap_or_default();
    let is_shown = upstream_headers::has_key(request.headers(), query, &app.gateway.placeholder_key(sandbox));
    let passed = match route {
        _ if !is_shown => Err(GatewayRefusal::WrongPlaceholder),
        None => Err(GatewayRefusal::NotServed),
        Some(route) => forward_request(app, sandbox, route, request).await,
    };
    Ok(match passed {
        Ok(response) => response,
        Err(refusal) => {
            report_refusal(app, sandbox, &refusal);
            refusal.to_response(api)
        }
    })
}

async fn forward_request(
    app: &Arc<App>,
    sandbox: SandboxId,
    route: GatewayRoute,
    request: Request<Incoming>,
) -> Result<Response<Body>, GatewayRefusal> {
    let gateway = &app.gateway;
    let budget = gateway.sandbox_budget(app, sandbox).await?;
    let (mut head, body) = request.into_parts();
    let (body, permit) = body_buffer::read_body(body, &budget.buffer_space, &gateway.buffer_space).await?;
    let is_plain = !head.headers.contains_key(CONTENT_ENCODING);
    let request_body = match request_body::parse_request_body(&body).filter(|_| is_plain) {
        Some(request_body) => request_body,
        None if route.purpose == RequestPurpose::ListModels => RequestBody::default(),
        None if gateway.models.is_empty() && budget.cost_limit_kind().is_none() => RequestBody::default(),
        None => return Err(GatewayRefusal::Unreadable),
    };
    if request_body.in_background && route.api == ModelApi::OpenAi {
        return Err(GatewayRefusal::Background);
    }
    let chosen = gateway.resolve_model(&route, &request_body)?;
    let key = gateway.credentials.find_key(app, budget.project.project, chosen.upstream).await?;
    let item = price_request(&budget, &route, &chosen, &request_body, body.len())?;
    if let Some(item) = &item {
        gateway.reserve_cost(app, &budget, item.reserved).await?;
    }
    let mut charge = item.map(|item| Charge::new(app, Arc::clone(&budget), item));

    let body = match chosen.upstream_model.filter(|_| route.path_model.is_none()) {
        Some(above) => request_body.replace_model(&body, above).unwrap_or(body),
        None => body,
    };
    let unreachable = |detail: String| GatewayRefusal::Unreachable { upstream: chosen.upstream.name.clone(), detail };
    let query = gateway_routes::query_without_key(head.uri.query().unwrap_or_default());
    let mark = if query.is_empty() { "" } else { "?" };
    let uri = format!("{}{}{mark}{query}", chosen.upstream.url, route.upstream_path(chosen.upstream_model));
    head.uri = uri.parse::<Uri>().map_err(|_| unreachable("invalid URL".to_owned()))?;

    if let Some(charge) = &mut charge {
        charge.mark_sent();
    }
    budget.clear_exhausted();
    let mut answered = gateway.send_upstream(&head, &body, chosen.upstream, key.as_ref()).await;
    // A login may be revoked before it expires. A rejected request costs nothing.
    if let (Ok(response), Some(refused)) = (&answered, &key)
        && response.status() == StatusCode::UNAUTHORIZED
        && let Some(next) =
            gateway.credentials.key_after_rejection(app, budget.project.project, chosen.upstream, refused).await
    {
        answered = gateway.send_upstream(&head, &body, chosen.upstream, Some(&next)).await;
    }
    drop(body);
    drop(permit);
    let mut response = match answered {
        Ok(response) => response,
        Err(error) => {
            // An upstream that accepted the connection may have processed the request, so it stays charged.
            if let Some(charge) = charge.as_mut().filter(|_| error.is_connect()) {
                charge.mark_free();
            }
            return Err(unreachable(upstream_client::root_cause(&error)));
        }
    };
    // The response to the sandbox is HTTP/1.1, whatever the upstream's version is.
    *response.version_mut() = Version::HTTP_11;
    crate::egress::hop_headers::strip_hop_headers(response.headers_mut(), None);
    let Some(mut charge) = charge else { return Ok(response.map(BodyExt::boxed)) };
    if response.status().is_success() {
        let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        charge.mark_answered(UsageScanner::new(route.api), kind.starts_with("text/event-stream"));
    } else {
        charge.mark_free();
    }
    Ok(response.map(|body| MeteredBody::new(body, charge).boxed()))
}

/// Logs a refusal that a person must act on as an event, throttled, and pauses the agent if its budget is exhausted.
fn report_refusal(app: &Arc<App>, sandbox: SandboxId, refusal: &GatewayRefusal) {
    let detail = refusal.message();
    tracing::debug!(%sandbox, detail, "refused a model request");
    let known = app.gateway.budgets.lock().unwrap_or_else(PoisonError::into_inner).get(&sandbox).cloned();
    let (Some(reason), Some(budget)) = (refusal.log_reason(), known) else { return };
    let stop = refusal.exhausted();
    let (news, stop) = (budget.count_refusal(reason, stop), stop.filter(|stop| budget.mark_exhausted(*stop)));
    if news.is_none() && stop.is_none() {
        return;
    }
    let refused = ModelRefused { reason: reason.to_owned(), detail, count: news.unwrap_or(1) };
    let (app, is_news, refusal) = (Arc::clone(app), news.is_some(), refusal.clone());
    tokio::spawn(async move {
        let logged = app.write(async move |work| {
            let (_, mut row) = work.lock_sandbox(sandbox).await?;
            if row.state.is_live() {
                if is_news {
                    let event = EventData::ModelRefused(refused).into_event(work.now);
                    work.log(&mut row, vec![event]).await?;
                }
                match (stop, &refusal) {
                    (Some(Exhausted::ProjectBudget(pause)), GatewayRefusal::ProjectBudget(short)) => {
                        limits::pause_at_project_budget(work, &mut row, &pause, short.spent, short.until).await?;
                    }
                    (Some(Exhausted::SandboxLimit | Exhausted::ProjectBudget(_)), _) => {
                        limits::pause_at_cost_limit(work, &mut row).await?
                    }
                    (Some(Exhausted::TaskLimit(_)) | None, _) => {}
                }
                sandboxes::update_sandbox(work.tx, &mut row).await?;
                if let Some(Exhausted::TaskLimit(limit)) = stop {
                    continuous::end_at_cost_limit(work, sandbox, limit).await?;
                }
            }
            Ok(())
        });
        if let Err(problem) = logged.await {
            tracing::warn!(%sandbox, detail = %problem.detail, "failed to log a refused model request");
            // The next refusal tries to log it again.
            budget.clear_exhausted();
        }
    });
}

/// The charge of a request; `None` if it is free.
fn price_request(
    budget: &SandboxBudget,
    route: &GatewayRoute,
    chosen: &ResolvedModel<'_>,
    request_body: &RequestBody,
    bytes: usize,
) -> Result<Option<ChargeItem>, GatewayRefusal> {
    match route.purpose {
        RequestPurpose::Generate => {}
        RequestPurpose::CountTokens | RequestPurpose::ListModels => return Ok(None),
    }
    let model = chosen.name.as_deref().unwrap_or("unnamed");
    let (input, output) = request_body.estimate_tokens(bytes, chosen.context);
    let reserved = match chosen.price {
        // The worst case: all input is written to the cache.
        Some(price) => {
            let fresh = price.cost_micros(&ModelTokens { input, output, ..ModelTokens::default() });
            fresh.max(price.cost_micros(&ModelTokens { cache_write: input, output, ..ModelTokens::default() }))
        }
        None => match budget.cost_limit_kind() {
            Some(by) => return Err(GatewayRefusal::Unpriced { model: model.chars().take(200).collect(), by }),
            None => 0,
        },
    };
    let (upstream, model) = (chosen.upstream.name.clone(), budget.metered_name(model));
    Ok(Some(ChargeItem { upstream, model, price: chosen.price, input, reserved }))
}
