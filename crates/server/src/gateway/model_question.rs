//! One question of the server itself to a configured model, without a sandbox. Its cost counts for the project's budget.

use super::gateway_refusal::GatewayRefusal;
use super::usage_scanner::UsageScanner;
use super::{Gateway, upstream_client, upstream_headers};
use crate::state::App;
use atoll_config::Upstream;
use atoll_core::id::ProjectId;
use atoll_core::model::{ModelApi, ModelTokens, Price};
use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use http_body_util::{BodyExt, Full, Limited};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);
const MAX_RESPONSE_BYTES: usize = 256 << 10;
const MAX_OUTPUT_TOKENS: u64 = 1000;
/// Estimated bytes per token of a question.
const BYTES_PER_TOKEN: u64 = 3;
const ANTHROPIC_VERSION: HeaderName = HeaderName::from_static("anthropic-version");

#[derive(Debug, Clone, Copy)]
pub struct ModelQuestion<'a> {
    pub model: &'a str,
    pub instructions: &'a str,
    pub text: &'a str,
}

#[derive(Debug)]
pub struct ModelAnswer {
    pub text: String,
    pub tokens: ModelTokens,
    /// `None` if the model's price is unknown.
    pub cost_micros: Option<i64>,
}

impl Gateway {
    /// Asks a model. Refuses if the project's budget does not cover the question.
    pub async fn ask_model(
        &self,
        app: &Arc<App>,
        project: ProjectId,
        question: ModelQuestion<'_>,
    ) -> Result<ModelAnswer, String> {
        let (upstream, name) = self.find_model(question.model)?;
        let price = self.price_of(question.model);
        let input = (question.instructions.len() + question.text.len()) as u64 / BYTES_PER_TOKEN;
        let reserved = price.map_or(0, |price| price.max_cost_micros(input, MAX_OUTPUT_TOKENS));
        let refused = |refusal: GatewayRefusal| format!("the gateway refused the question: {}", refusal.message());
        let budget = self.projects.project_budget(app, project).await.map_err(refused)?;
        {
            let mut ledger = budget.lock_ledger();
            if ledger.current_balance(app.clock.now()).find_shortage(reserved).is_some() {
                return Err("the project's budget does not cover the question".to_owned());
            }
            ledger.reserve(reserved);
        }
        let answer = tokio::time::timeout(TIMEOUT, self.send_question(app, project, (upstream, name), question)).await;
        let answer = answer.unwrap_or_else(|_| Err("the model did not answer in time".to_owned()));
        let answer = answer.map(|(text, tokens)| ModelAnswer { text, tokens, cost_micros: cost_of(price, &tokens) });
        let cost = answer.as_ref().ok().and_then(|answer| answer.cost_micros).unwrap_or(0);
        budget.lock_ledger().settle(reserved, cost, app.clock.now());
        answer
    }

    /// The upstream of a model and the model's name there. A model that is not configured belongs to the built-in
    /// upstream whose price list has it.
    fn find_model<'a>(&'a self, name: &'a str) -> Result<(&'a Upstream, &'a str), String> {
        if let Some(model) = self.find_listed(name) {
            let upstream = self.upstreams.iter().find(|upstream| upstream.name == model.upstream);
            let upstream = upstream.ok_or_else(|| format!("the upstream {} does not exist", model.upstream))?;
            return Ok((upstream, model.model.as_deref().unwrap_or(name)));
        }
        let api = atoll_core::price_table::find_api(name)
            .ok_or_else(|| format!("the model {name} is not configured; add it to `models`"))?;
        let upstream = self.find_upstream(api, None).ok_or_else(|| format!("there is no upstream for {name}"))?;
        Ok((upstream, name))
    }

    async fn send_question(
        &self,
        app: &Arc<App>,
        project: ProjectId,
        (upstream, model): (&Upstream, &str),
        question: ModelQuestion<'_>,
    ) -> Result<(String, ModelTokens), String> {
        let key = self.credentials.find_key(app, project, upstream).await;
        let key = key.map_err(|refusal| format!("there is no usable key: {}", refusal.message()))?;
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if upstream.api == ModelApi::Anthropic {
            headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
        }
        upstream_headers::prepare_headers(&mut headers, upstream.api, upstream.auth, key.as_ref());
        let (path, body) = encode_question(upstream, model, question);
        let uri = format!("{}{path}", upstream.url).parse().map_err(|_| "the upstream's URL is invalid".to_owned())?;
        let mut request = Request::new(Full::new(Bytes::from(body.to_string())));
        (*request.method_mut(), *request.uri_mut(), *request.headers_mut()) = (Method::POST, uri, headers);
        let response = self.client.request(request).await.map_err(|error| upstream_client::root_cause(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|error| format!("failed to read the response: {error}"))?.to_bytes();
        if !status.is_success() {
            return Err(format!("the model API responded with {status}"));
        }
        let mut scanner = UsageScanner::new(upstream.api);
        scanner.feed(&body);
        let response: Value =
            serde_json::from_slice(&body).map_err(|_| "the model API's response is not JSON".to_owned())?;
        Ok((read_text(upstream.api, &response), scanner.tokens().unwrap_or_default()))
    }
}

fn cost_of(price: Option<Price>, tokens: &ModelTokens) -> Option<i64> {
    price.map(|price| price.cost_micros(tokens))
}

/// The path and the body of a question.
fn encode_question(upstream: &Upstream, model: &str, question: ModelQuestion<'_>) -> (String, Value) {
    let ModelQuestion { instructions, text, .. } = question;
    match upstream.api {
        ModelApi::Anthropic => {
            let messages = json!([{"role": "user", "content": text}]);
            let body = json!({
                "model": model, "max_tokens": MAX_OUTPUT_TOKENS, "system": instructions, "messages": messages,
            });
            ("/v1/messages".to_owned(), body)
        }
        ModelApi::OpenAi => {
            let messages = json!([{"role": "system", "content": instructions}, {"role": "user", "content": text}]);
            // Vendors with a compatible API know only the older field.
            let is_built_in = upstream.name == ModelApi::OpenAi.as_str();
            let limit = if is_built_in { "max_completion_tokens" } else { "max_tokens" };
            let body = json!({"model": model, "messages": messages, limit: MAX_OUTPUT_TOKENS});
            ("/chat/completions".to_owned(), body)
        }
        ModelApi::Gemini => {
            let body = json!({
                "systemInstruction": {"parts": [{"text": instructions}]},
                "contents": [{"role": "user", "parts": [{"text": text}]}],
                "generationConfig": {"maxOutputTokens": MAX_OUTPUT_TOKENS, "responseMimeType": "application/json"},
            });
            (format!("/v1beta/models/{model}:generateContent"), body)
        }
    }
}

/// The text of a response, without the model's reasoning.
fn read_text(api: ModelApi, response: &Value) -> String {
    let joined = |parts: &Value| -> String {
        let parts = parts.as_array().into_iter().flatten().filter(|part| part["thought"] != true);
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    match api {
        ModelApi::Anthropic => joined(&response["content"]),
        ModelApi::OpenAi => response["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned(),
        ModelApi::Gemini => joined(&response["candidates"][0]["content"]["parts"]),
    }
}
