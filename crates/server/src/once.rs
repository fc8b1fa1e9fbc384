//! Writes that happen once: an `Idempotency-Key` is kept with its answer in the same transaction.

use crate::app::Work;
use crate::auth::Caller;
use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::BoxFuture;
use atoll_store::idempotency::{self, Claim, Found};
use axum::Json;
use axum::extract::FromRequestParts;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use std::sync::Arc;

const LONGEST_KEY: usize = 200;

/// The request's key, if it has one, and the route that it counts for.
#[derive(Debug, Clone)]
pub struct Once {
    key: Option<String>,
    route: String,
}

impl FromRequestParts<Arc<App>> for Once {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Self> {
        let route = format!("{} {}", parts.method, parts.uri.path());
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(Self { key: None, route }) };
        let key = value.to_str().ok().filter(|key| (1..=LONGEST_KEY).contains(&key.len()));
        let key = key.ok_or_else(|| {
            Problem::new(Code::BadRequest, format!("Idempotency-Key: 1 to {LONGEST_KEY} visible ASCII characters"))
        })?;
        Ok(Self { key: Some(key.to_owned()), route })
    }
}

/// What a write answers.
#[derive(Debug)]
pub struct Answer {
    pub status: StatusCode,
    pub body: Value,
}

impl Answer {
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

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

/// The answer as it is given a second time: without its secrets.
fn for_replay(mut body: Value) -> Value {
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

/// The answer that the same request had.
fn said(found: Found) -> Result<Option<Answer>> {
    match found {
        Found::New => Ok(None),
        Found::OtherBody => {
            let detail = "this key was used for another request; take a new one";
            Err(Problem::new(Code::IdempotencyMismatch, detail))
        }
        Found::Replay { status, answer } => {
            let status = u16::try_from(status).ok().and_then(|code| StatusCode::from_u16(code).ok());
            let body = serde_json::from_str(&answer).map_err(Problem::internal)?;
            Ok(Some(Answer { status: status.unwrap_or(StatusCode::OK), body }))
        }
    }
}

impl App {
    /// What the same request was answered before, for work that does something beside the transaction.
    pub async fn answered_before(&self, caller: &Caller, once: &Once, body_hash: &str) -> Result<Option<Answer>> {
        let Some(key) = once.key.clone() else { return Ok(None) };
        let claim =
            Claim { principal: caller.actor(), route: once.route.clone(), key, body_hash: body_hash.to_owned() };
        let not_before = self.clock.now() - self.policy.retain_idempotency;
        let found = self.read(move |tx| Box::pin(async move { Ok(idempotency::find(tx, &claim, not_before).await?) }));
        said(found.await?)
    }

    /// Does the work in one transaction, or gives the answer that the same request had before.
    pub async fn write_once<F>(&self, caller: &Caller, once: Once, body_hash: String, work: F) -> Result<Answer>
    where
        F: for<'w, 't> FnOnce(&'w mut Work<'t>) -> BoxFuture<'w, Result<Answer>> + Send + 'static,
    {
        let Some(key) = once.key else { return self.write(work).await };
        let claim = Claim { principal: caller.actor(), route: once.route, key, body_hash };
        self.write(move |begun| {
            Box::pin(async move {
                let not_before = begun.now - begun.policy.retain_idempotency;
                if let Some(answer) = said(idempotency::claim(begun.tx, &claim, begun.now, not_before).await?)? {
                    return Ok(answer);
                }
                let answer = work(begun).await?;
                let kept = for_replay(answer.body.clone()).to_string();
                idempotency::keep(begun.tx, &claim, answer.status.as_u16().into(), &kept).await?;
                Ok(answer)
            })
        })
        .await
    }
}
