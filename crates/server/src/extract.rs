//! Extractors for requests. Every failure is a problem document.

use crate::problem::{Code, Problem, Result};
use crate::state::App;
use atoll_core::bounds;
use axum::body::{Body as RawBody, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Path, Query, RawPathParams, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures_util::StreamExt;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Reads the whole body, up to `most` bytes.
pub async fn read_body(request: Request, most: usize) -> Result<Bytes> {
    let mut body = request.into_body();
    let too_large = || Problem::new(Code::TooLarge, format!("the body has more than {most} bytes"));
    if body.size_hint().lower() > most as u64 {
        drain_body(body).await;
        return Err(too_large());
    }
    match Limited::new(&mut body, most).collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) if error.downcast_ref::<LengthLimitError>().is_some() => {
            drain_body(body).await;
            Err(too_large())
        }
        Err(_) => Err(Problem::new(Code::BadRequest, "the body ended early or cannot be decoded")),
    }
}

const MAX_DRAINED_BYTES: usize = 64 * bounds::MB;
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads and discards the rest of a refused body, within limits. Otherwise a client that is still sending sees a broken
/// connection instead of the response.
pub async fn drain_body(body: RawBody) {
    let mut chunks = body.into_data_stream();
    let reading = async {
        let mut drained_bytes = 0;
        while let Some(Ok(chunk)) = chunks.next().await {
            drained_bytes += chunk.len();
            if drained_bytes > MAX_DRAINED_BYTES {
                break;
            }
        }
    };
    drop(tokio::time::timeout(DRAIN_TIMEOUT, reading).await);
}

/// Parses a JSON object. Arrays are rejected, although serde accepts them for structs.
pub fn parse_object<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    if text.iter().find(|byte| !byte.is_ascii_whitespace()).is_some_and(|byte| *byte == b'[') {
        return Err("must be an object".into());
    }
    serde_json::from_slice(text).map_err(|error| describe_parse_error(&error.to_string()))
}

const MAX_DETAIL_CHARS: usize = 500;

/// Rewrites a parser's error without the names of Rust types.
pub fn describe_parse_error(error: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut rest = error.split(' ').peekable();
    while let Some(word) = rest.next() {
        let after_expected = words.last() == Some(&"expected");
        match word {
            "struct" | "enum" => {
                while words.last().is_some_and(|last| ["tuple", "untagged", "internally", "tagged"].contains(last)) {
                    words.pop();
                }
                words.push(if word == "struct" { "an object" } else { "what is allowed" });
                rest.next();
                if rest.peek() == Some(&"with") {
                    rest.nth(2);
                }
            }
            "u8" | "u16" | "u32" | "u64" | "usize" if after_expected => words.push("a whole number from 0"),
            "i8" | "i16" | "i32" | "i64" if after_expected => words.push("a whole number"),
            "f32" | "f64" if after_expected => words.push("a number"),
            _ => words.push(word),
        }
    }
    words.join(" ").chars().take(MAX_DETAIL_CHARS).collect()
}

pub fn require_json(headers: &HeaderMap) -> Result<()> {
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

pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<Self> {
        let typed = require_json(request.headers());
        let bytes = read_body(request, bounds::MAX_REQUEST_BYTES).await?;
        let text: &[u8] = if bytes.is_empty() {
            b"{}"
        } else {
            typed?;
            &bytes
        };
        let value = parse_object(text).map_err(Problem::invalid)?;
        Ok(Self { value, hash: sha256_hex(&bytes) })
    }
}

/// The id in a path. Text that is not an id is "not found".
#[derive(Debug, Clone, Copy)]
pub struct Id<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<Arc<App>> for Id<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let not_found = |_| Problem::not_found("id");
        let Path(text) = Path::<String>::from_request_parts(parts, app).await.map_err(not_found)?;
        text.parse().map(Self).map_err(|_| Problem::not_found("id"))
    }
}

/// Reads the path parameter `id`: the resource that the request is about.
pub async fn path_id<T: FromStr>(parts: &mut Parts, app: &Arc<App>) -> Result<T> {
    let params = RawPathParams::from_request_parts(parts, app).await.map_err(|_| Problem::not_found("id"))?;
    let text = params.iter().find(|(name, _)| *name == "id").map(|(_, value)| value);
    text.and_then(|text| text.parse().ok()).ok_or_else(|| Problem::not_found("id"))
}

/// The last id in a path, which names a part of the resource `id`.
#[derive(Debug, Clone, Copy)]
pub struct SubId<T>(pub T);

impl<T: FromStr + Send> FromRequestParts<Arc<App>> for SubId<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        let params = RawPathParams::from_request_parts(parts, app).await.map_err(|_| Problem::not_found("id"))?;
        let text = params.iter().last().map(|(_, value)| value);
        text.and_then(|text| text.parse().ok()).map(Self).ok_or_else(|| Problem::not_found("id"))
    }
}

/// The query string.
#[derive(Debug)]
pub struct Params<T>(pub T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self> {
        if !is_utf8(parts.uri.query().unwrap_or_default()) {
            return Err(Problem::new(Code::BadRequest, "the query is not UTF-8"));
        }
        let query = Query::<T>::from_request_parts(parts, app).await;
        let Query(value) = query.map_err(|error| {
            let text = error.body_text();
            let text = text.split_once("query string: ").map_or(text.as_str(), |(_, reason)| reason);
            Problem::new(Code::BadRequest, describe_parse_error(text))
        })?;
        Ok(Self(value))
    }
}

/// True if percent-encoded text decodes to UTF-8.
fn is_utf8(encoded: &str) -> bool {
    let mut decoded = Vec::with_capacity(encoded.len());
    let mut rest = encoded.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        let digits = tail.get(..2).and_then(|pair| std::str::from_utf8(pair).ok());
        match digits.and_then(|pair| u8::from_str_radix(pair, 16).ok()).filter(|_| *first == b'%') {
            Some(byte) => {
                decoded.push(byte);
                rest = &tail[2..];
            }
            None => {
                decoded.push(*first);
                rest = tail;
            }
        }
    }
    std::str::from_utf8(&decoded).is_ok()
}

/// Checks the requested page size.
pub fn page_size(limit: Option<i64>, default: i64, most: i64) -> Result<i64> {
    let limit = limit.unwrap_or(default);
    if (1..=most).contains(&limit) {
        return Ok(limit);
    }
    Err(Problem::new(Code::BadRequest, format!("limit: a whole number from 1 to {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    struct Inner {
        #[allow(dead_code, reason = "only parsed")]
        count: u32,
    }

    #[derive(Debug, serde::Deserialize)]
    struct Outer {
        #[allow(dead_code, reason = "only parsed")]
        inner: Inner,
    }

    #[test]
    fn parse_errors_name_no_rust_types() {
        for (text, expected) in [
            ("[]", "must be an object"),
            ("5", "invalid type: integer `5`, expected an object"),
            (r#"{"inner":[]}"#, "invalid length 0, expected an object at line"),
            (r#"{"inner":{"count":"x"}}"#, "invalid type: string \"x\", expected a whole number from 0 at line"),
            ("{}", "missing field `inner`"),
        ] {
            let refusal = parse_object::<Outer>(text.as_bytes()).unwrap_err();
            assert!(refusal.starts_with(expected), "{refusal}");
        }
        assert_eq!(
            describe_parse_error("did not match any variant of untagged enum Foo"),
            "did not match any variant of what is allowed"
        );
    }

    #[test]
    fn detects_invalid_utf8() {
        for good in ["", "a=%C3%A4", "a=%", "a=%zz", "a=%2", "a=%%41"] {
            assert!(is_utf8(good), "{good}");
        }
        for bad in ["a=%ff", "%C3", "a=%C3%28"] {
            assert!(!is_utf8(bad), "{bad}");
        }
    }
}
