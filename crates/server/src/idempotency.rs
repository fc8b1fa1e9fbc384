//! Idempotent writes: an `Idempotency-Key` is stored with its response in the same transaction.

use crate::app::Work;
use crate::auth::Caller;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_store::idempotency::{self, IdempotencyClaim, IdempotencyLookup};
use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::sync::Arc;

const MAX_KEY_CHARS: usize = 200;

/// The request's idempotency key, if any, and its route.
#[derive(Debug, Clone)]
pub struct IdempotencyKey {
    key: Option<String>,
    route: String,
    body_hash: String,
}

impl IdempotencyKey {
    /// Binds the key to the request's body: the same key with another body is an error.
    pub fn with_body(mut self, hash: String) -> Self {
        self.body_hash = hash;
        self
    }
}

impl FromRequestParts<Arc<App>> for IdempotencyKey {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self> {
        let (route, body_hash) = (format!("{} {}", parts.method, parts.uri.path()), String::new());
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(Self { key: None, route, body_hash }) };
        let key = value.to_str().ok().filter(|key| (1..=MAX_KEY_CHARS).contains(&key.len()));
        let key = key.ok_or_else(|| {
            Problem::new(Code::BadRequest, format!("Idempotency-Key: 1 to {MAX_KEY_CHARS} visible ASCII characters"))
        })?;
        Ok(Self { key: Some(key.to_owned()), route, body_hash })
    }
}

/// A JSON response that can be stored and replayed.
#[derive(Debug)]
pub struct JsonResponse {
    pub status: StatusCode,
    pub body: Value,
}

impl JsonResponse {
    pub fn new(status: StatusCode, body: impl serde::Serialize) -> Result<Self> {
        Ok(Self { status, body: serde_json::to_value(body).map_err(Problem::internal)? })
    }

    pub fn ok(body: impl serde::Serialize) -> Result<Self> {
        Self::new(StatusCode::OK, body)
    }

    pub fn created(body: impl serde::Serialize) -> Result<Self> {
        Self::new(StatusCode::CREATED, body)
    }
}

impl IntoResponse for JsonResponse {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

/// Removes tokens from a response before it is stored for replay.
fn without_secrets(mut body: Value) -> Value {
    let hide = |holder: Option<&mut Value>| {
        if let Some(Value::Object(fields)) = holder
            && fields.get("token").is_some_and(Value::is_string)
        {
            fields.insert("token".into(), Value::Null);
            fields.insert("replayed".into(), true.into());
        }
    };
    hide(body.get_mut("worker"));
    hide(body.pointer_mut("/sandbox/worker"));
    hide(Some(&mut body));
    body
}

/// The stored response, if the same request was already answered.
fn replayed_response(found: IdempotencyLookup) -> Result<Option<JsonResponse>> {
    match found {
        IdempotencyLookup::New => Ok(None),
        IdempotencyLookup::DifferentRequest => {
            let detail = "this key was used for another request; use a new one";
            Err(Problem::new(Code::IdempotencyMismatch, detail))
        }
        IdempotencyLookup::Replay { status, response_body: answer } => {
            let status = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
            let body = serde_json::from_str(&answer).map_err(Problem::internal)?;
            Ok(Some(JsonResponse { status: status.unwrap_or(StatusCode::OK), body }))
        }
    }
}

impl IdempotencyKey {
    fn claim(&self, caller: &Caller) -> Option<IdempotencyClaim> {
        let Self { key, route, body_hash } = self.clone();
        key.map(|key| IdempotencyClaim { principal: caller.actor(), route, key, body_hash })
    }
}

impl App {
    /// Finds the stored response of the same request, for operations with side effects outside of the transaction.
    pub async fn find_replay(&self, caller: &Caller, key: &IdempotencyKey) -> Result<Option<JsonResponse>> {
        let Some(claim) = key.claim(caller) else { return Ok(None) };
        let not_before = self.clock.now() - self.config.retention.idempotency;
        let found = self.read(async move |tx| Ok(idempotency::find_response(tx, &claim, not_before).await?));
        replayed_response(found.await?)
    }

    /// Runs the work in one transaction, or returns the stored response of the same request.
    pub async fn write_once<F>(&self, caller: &Caller, key: IdempotencyKey, work: F) -> Result<JsonResponse>
    where
        F: AsyncFnOnce(&mut Work<'_>) -> Result<JsonResponse> + Send + 'static,
    {
        let Some(claim) = key.claim(caller) else { return self.write(work).await };
        self.write(async move |transaction| {
            let not_before = transaction.now - transaction.config.retention.idempotency;
            let claimed = idempotency::claim_key(transaction.tx, &claim, transaction.now, not_before).await?;
            if let Some(response) = replayed_response(claimed)? {
                return Ok(response);
            }
            let response = work(transaction).await?;
            let stored = without_secrets(response.body.clone()).to_string();
            idempotency::store_response(transaction.tx, &claim, response.status.as_u16().into(), &stored).await?;
            Ok(response)
        })
        .await
    }
}
