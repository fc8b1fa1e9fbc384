//! Forwards one request to its upstream: price, reserve, send with the real key, meter the response.

use super::charge::{Charge, ChargeItem, LIMITED_REST_TIMEOUT, RequestPricing};
use super::credential::UpstreamKey;
use super::gateway_refusal::GatewayRefusal;
use super::gateway_routes::{self, GatewayRoute, RequestPurpose};
use super::key_mask::KeyMask;
use super::refusal_report::report_assumed_price;
use super::request_body::{self, BodyChanges, RequestBody};
use super::response_body::{self, ResponseBody};
use super::sandbox_budget::SandboxBudget;
use super::usage_scanner::UsageScanner;
use super::{Body, Gateway, ResolvedModel, body_buffer, upstream_client, upstream_headers};
use crate::egress::hop_headers::strip_hop_headers;
use crate::state::App;
use atoll_config as config;
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::model::ModelApi;
use axum::body::Bytes;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use axum::http::{Request, Response, StatusCode, Uri, Version, request};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::client::legacy::Error as ClientError;
use std::sync::Arc;
use tokio::sync::oneshot;

pub async fn forward_request(
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
    let item = price_request(gateway, &budget, &route, &chosen, &request_body, body.len());
    if let Some(item) = &item {
        gateway.reserve_cost(app, &budget, item.pricing.reserved).await?;
        if let (Some(price), true) = (item.pricing.price, item.pricing.is_assumed)
            && budget.is_first_assumption(&item.model)
        {
            report_assumed_price(app, &budget, &item.model, &chosen.upstream.name, price);
        }
    }
    let is_limited = item.as_ref().is_some_and(|item| item.pricing.is_limited);
    let charge = item.map(|item| Charge::new(app, Arc::clone(&budget), item));

    let changes = BodyChanges {
        model: chosen.upstream_model.filter(|_| route.path_model.is_none()),
        include_usage: is_limited && route.reports_usage_on_request(),
    };
    let body = request_body.apply_changes(&body, changes).unwrap_or(body);
    let query = gateway_routes::query_without_key(head.uri.query().unwrap_or_default());
    let mark = if query.is_empty() { "" } else { "?" };
    let uri = format!("{}{}{mark}{query}", chosen.upstream.url, route.upstream_path(chosen.upstream_model));
    head.uri = uri.parse::<Uri>().map_err(|_| unreachable_upstream(chosen.upstream, "invalid URL".to_owned()))?;
    budget.clear_exhausted();

    let exchange = Exchange {
        app: Arc::clone(app),
        project: budget.project.project,
        upstream: chosen.upstream.clone(),
        key,
        head,
        body,
        permit,
        charge,
    };
    if is_limited { exchange.run_detached(budget).await } else { exchange.run().await }
}

fn unreachable_upstream(upstream: &config::Upstream, detail: String) -> GatewayRefusal {
    GatewayRefusal::Unreachable { upstream: upstream.name.clone(), detail }
}

/// A request that is ready to be sent.
struct Exchange {
    app: Arc<App>,
    project: ProjectId,
    upstream: config::Upstream,
    key: Option<UpstreamKey>,
    head: request::Parts,
    body: Bytes,
    /// Memory of the body.
    permit: body_buffer::BufferPermit,
    charge: Option<Charge>,
}

impl Exchange {
    /// Sends the request and meters its response.
    async fn run(mut self) -> Result<Response<Body>, GatewayRefusal> {
        if let Some(charge) = &mut self.charge {
            charge.mark_sent();
        }
        let (answered, key) = self.send_with_valid_key().await;
        let Self { upstream, mut charge, body, permit, .. } = self;
        drop((body, permit));
        let mut response = match answered {
            Ok(response) => response,
            Err(error) => {
                // An upstream that accepted the connection may have processed the request, so it stays charged.
                if let Some(charge) = charge.as_mut().filter(|_| error.is_connect()) {
                    charge.mark_free();
                }
                return Err(unreachable_upstream(&upstream, upstream_client::root_cause(&error)));
            }
        };
        if let Some(charge) = &mut charge {
            if response.status().is_success() {
                let kind = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
                let is_stream = kind.is_some_and(|kind| kind.starts_with("text/event-stream"));
                charge.mark_answered(UsageScanner::new(upstream.api), is_stream);
            } else {
                charge.mark_free();
            }
        }
        // The client cannot correct the key, so it must not retry.
        if response.status() == StatusCode::UNAUTHORIZED && key.is_some() {
            return Err(GatewayRefusal::KeyRefused { upstream: upstream.name, secret: upstream.secret });
        }
        // The response to the sandbox is HTTP/1.1, whatever the upstream's version is.
        *response.version_mut() = Version::HTTP_11;
        strip_hop_headers(response.headers_mut(), None);
        let mask = KeyMask::new(key.as_ref().map(|key| &key.text));
        mask.mask_headers(response.headers_mut());
        Ok(response.map(|body| ResponseBody::new(body, charge, mask).boxed()))
    }

    /// Like `run`, but continues for a while if the client disconnects, because the response reports the usage.
    async fn run_detached(self, budget: Arc<SandboxBudget>) -> Result<Response<Body>, GatewayRefusal> {
        let (mut sender, receiver) = oneshot::channel();
        let stop = self.app.gateway.stop_signal();
        tokio::spawn(async move {
            let mut running = std::pin::pin!(self.run());
            let response = tokio::select! {
                response = &mut running => response,
                () = sender.closed() => {
                    let Some(_slot) = budget.unclaimed_slot() else { return };
                    tokio::select! {
                        response = tokio::time::timeout(LIMITED_REST_TIMEOUT, running) => match response {
                            Ok(response) => response,
                            Err(_) => return,
                        },
                        () = response_body::wait_for_stop(Some(stop)) => return,
                    }
                }
            };
            // The body of a response without a client reads its own rest.
            let _ = sender.send(response);
        });
        receiver.await.unwrap_or(Err(GatewayRefusal::Busy))
    }

    /// Sends the request. If the upstream rejects a login, renews it and sends the request again.
    async fn send_with_valid_key(&self) -> (Result<Response<Incoming>, ClientError>, Option<UpstreamKey>) {
        let gateway = &self.app.gateway;
        let answered = self.send(self.key.as_ref()).await;
        // A login may be revoked before it expires. A rejected request costs nothing.
        if let (Ok(response), Some(refused)) = (&answered, &self.key)
            && response.status() == StatusCode::UNAUTHORIZED
            && let Some(next) =
                gateway.credentials.key_after_rejection(&self.app, self.project, &self.upstream, refused).await
        {
            return (self.send(Some(&next)).await, Some(next));
        }
        (answered, self.key.clone())
    }

    /// Sends the request with the real key in place of the placeholder.
    async fn send(&self, key: Option<&UpstreamKey>) -> Result<Response<Incoming>, ClientError> {
        let mut headers = self.head.headers.clone();
        upstream_headers::prepare_headers(&mut headers, self.upstream.api, self.upstream.auth, key);
        let mut request = Request::new(Full::new(self.body.clone()));
        (*request.method_mut(), *request.uri_mut()) = (self.head.method.clone(), self.head.uri.clone());
        *request.headers_mut() = headers;
        self.app.gateway.client.request(request).await
    }
}

/// The charge of a request; `None` if it is free.
fn price_request(
    gateway: &Gateway,
    budget: &SandboxBudget,
    route: &GatewayRoute,
    chosen: &ResolvedModel<'_>,
    request_body: &RequestBody,
    bytes: usize,
) -> Option<ChargeItem> {
    match route.purpose {
        RequestPurpose::Generate => {}
        RequestPurpose::CountTokens | RequestPurpose::ListModels => return None,
    }
    let (input, output) = request_body.estimate_tokens(bytes, chosen.context);
    let is_limited = budget.cost_limit_kind().is_some();
    let is_assumed = chosen.price.is_none() && is_limited;
    let price = if is_assumed { gateway.highest_price(chosen.upstream, input, output) } else { chosen.price };
    let reserved = price.map_or(0, |price| price.max_cost_micros(input, output));
    let (upstream, model) =
        (chosen.upstream.name.clone(), budget.metered_name(chosen.name.as_deref().unwrap_or("unnamed")));
    let pricing = RequestPricing { price, is_assumed, is_limited, reserved, estimated_input: input };
    Some(ChargeItem { upstream, model, context: chosen.context, pricing })
}
