//! What a handler takes out of a request; every failure is a problem document.

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::str::FromStr;
use std::sync::Arc;

/// The whole body, if it is not larger than `most`.
pub async fn read_body(request: Request, most: usize) -> Result<Bytes> {
    let collected = Limited::new(request.into_body(), most).collect().await;
    collected.map(http_body_util::Collected::to_bytes).map_err(|error| {
        if error.downcast_ref::<LengthLimitError>().is_some() {
            Problem::new(Code::TooLarge, format!("the body has more than {most} bytes"))
        } else {
            Problem::new(Code::BadRequest, "the body broke off or can't be decoded")
        }
    })
}

pub fn must_be_json(headers: &HeaderMap) -> Result<()> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")) {
        return Ok(());
    }
    Err(Problem::new(Code::UnsupportedMediaType, "send JSON with `Content-Type: application/json`"))
}

/// A JSON body, with a hash of its bytes for idempotency. An empty body is `{}`.
#[derive(Debug)]
pub struct Body<T> {
    pub value: T,
    pub hash: String,
}

pub fn hash_of(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self> {
        let typed = must_be_json(request.headers());
        let bytes = read_body(request, bounds::REQUEST_BYTES).await?;
        let text: &[u8] = if bytes.is_empty() {
            b"{}"
        } else {
            typed?;
            &bytes
        };
        let value = serde_json::from_slice(text).map_err(|error| Problem::invalid(error.to_string()))?;
        Ok(Self { value, hash: hash_of(&bytes) })
    }
}

/// The one id in a path. Something that can't be an id can't exist either.
#[derive(Debug, Clone, Copy)]
pub struct Id<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<Arc<App>> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let gone = |_| Problem::not_found("id");
        let Path(text) = Path::<String>::from_request_parts(parts, app).await.map_err(gone)?;
        text.parse().map(Self).map_err(|_| Problem::not_found("id"))
    }
}

/// The two ids in a path.
#[derive(Debug, Clone, Copy)]
pub struct Ids<A, B>(pub A, pub B);

impl<A: FromStr + Send, B: FromStr + Send> FromRequestParts<Arc<App>> for Ids<A, B> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let gone = || Problem::not_found("id");
        let found = Path::<(String, String)>::from_request_parts(parts, app).await;
        let Path((first, second)) = found.map_err(|_| gone())?;
        let first = first.parse().map_err(|_| gone())?;
        let second = second.parse().map_err(|_| gone())?;
        Ok(Self(first, second))
    }
}

/// The query string.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let query = Query::<T>::from_request_parts(parts, app).await;
        let Query(value) = query.map_err(|error| Problem::new(Code::BadRequest, error.body_text()))?;
        Ok(Self(value))
    }
}

/// How many items a page has.
pub fn page_size(limit: Option<i64>, default: i64, most: i64) -> Result<i64> {
    let limit = limit.unwrap_or(default);
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::new(Code::BadRequest, format!("limit: a whole number from 1 to {most}")))
}
