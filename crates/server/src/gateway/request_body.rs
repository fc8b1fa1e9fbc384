//! Parses the model and the maximum output from a request body.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;

/// Assumed maximum output of a request that sets none.
const DEFAULT_MAX_OUTPUT_TOKENS: u64 = 8192;
/// Assumed context window of an unlisted model.
const DEFAULT_CONTEXT_TOKENS: u64 = 200_000;
/// Text has about four bytes per token; the JSON around it covers the difference.
const BYTES_PER_TOKEN: u64 = 4;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct RequestBody {
    pub model: Option<String>,
    /// Byte range of the model's name, with its quotation marks.
    model_span: Option<Range<usize>>,
    max_output: Option<u64>,
    candidates: u64,
    /// The upstream would respond later, outside of this request.
    pub in_background: bool,
}

// serde rejects duplicate fields: gateway and upstream might each take another one.
#[derive(Deserialize)]
struct RawRequest<'a> {
    #[serde(borrow, default)]
    model: Option<&'a RawValue>,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    max_completion_tokens: Option<u64>,
    #[serde(default)]
    max_output_tokens: Option<u64>,
    #[serde(default)]
    n: Option<u64>,
    #[serde(borrow, default)]
    background: Option<&'a RawValue>,
    #[serde(default, rename = "generationConfig", alias = "generation_config")]
    generation: Option<GenerationConfig>,
}

#[derive(Deserialize)]
struct GenerationConfig {
    #[serde(default, rename = "maxOutputTokens", alias = "max_output_tokens")]
    most: Option<u64>,
    #[serde(default, rename = "candidateCount", alias = "candidate_count")]
    count: Option<u64>,
}

/// Parses a body; `None` if it is not a JSON object with the fields of the APIs.
pub fn parse_request_body(body: &[u8]) -> Option<RequestBody> {
    // serde would accept a list, too.
    body.iter().find(|byte| !byte.is_ascii_whitespace()).filter(|byte| **byte == b'{')?;
    let shape: RawRequest<'_> = serde_json::from_slice(body).ok()?;
    let model = match shape.model {
        Some(raw) => Some(serde_json::from_str::<Cow<'_, str>>(raw.get()).ok()?.into_owned()),
        None => None,
    };
    let span = shape.model.and_then(|raw| {
        let start = (raw.get().as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        Some(start..start + raw.get().len())
    });
    let generation = shape.generation.as_ref();
    let output_limits = [shape.max_tokens, shape.max_completion_tokens, shape.max_output_tokens];
    let most_output = output_limits.into_iter().chain([generation.and_then(|it| it.most)]).flatten().max();
    let answers = shape.n.or_else(|| generation.and_then(|it| it.count)).unwrap_or(1).max(1);
    // Anything that an upstream may treat as true.
    let in_background = shape.background.is_some_and(|raw| !matches!(raw.get(), "null" | "false"));
    Some(RequestBody { model, model_span: span, max_output: most_output, candidates: answers, in_background })
}

impl RequestBody {
    /// Upper bounds of the input and output tokens.
    pub fn estimate_tokens(&self, body_bytes: usize, context: Option<u64>) -> (u64, u64) {
        let context = context.unwrap_or(DEFAULT_CONTEXT_TOKENS);
        let input = (body_bytes as u64).div_ceil(BYTES_PER_TOKEN).min(context);
        (input, self.max_output.unwrap_or(DEFAULT_MAX_OUTPUT_TOKENS).saturating_mul(self.candidates))
    }

    /// Replaces the model's name and changes no other byte.
    pub fn replace_model(&self, body: &Bytes, name: &str) -> Option<Bytes> {
        let span = self.model_span.clone()?;
        let name = serde_json::to_string(name).ok()?;
        let (before, after) = (body.get(..span.start)?, body.get(span.end..)?);
        Some([before, name.as_bytes(), after].concat().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_model_and_the_maximum_output() {
        let body = Bytes::from_static(br#"{"messages": [{"model": "no"}], "max_tokens": 100, "model" : "gl\u006d-4"}"#);
        let request = parse_request_body(&body).unwrap();
        assert_eq!(request.model.as_deref(), Some("glm-4"));
        assert_eq!(request.estimate_tokens(400, None), (100, 100));
        let renamed = request.replace_model(&body, "a \"b\"").unwrap();
        assert_eq!(renamed, &br#"{"messages": [{"model": "no"}], "max_tokens": 100, "model" : "a \"b\""}"#[..]);
    }

    #[test]
    fn parses_the_maximum_output_of_each_api() {
        let most = |text: &str| parse_request_body(text.as_bytes()).unwrap().estimate_tokens(0, None).1;
        assert_eq!(most(r#"{"max_completion_tokens": 5}"#), 5);
        assert_eq!(most(r#"{"max_output_tokens": 6}"#), 6);
        assert_eq!(most(r#"{"max_tokens": 5, "max_completion_tokens": 9, "n": 3}"#), 27);
        assert_eq!(most(r#"{"generationConfig": {"maxOutputTokens": 7, "candidateCount": 2}}"#), 14);
        assert_eq!(most("{}"), DEFAULT_MAX_OUTPUT_TOKENS);
        assert_eq!(parse_request_body(b"{}").unwrap().estimate_tokens(10_000_000, Some(1000)).0, 1000);
    }

    #[test]
    fn detects_background_requests() {
        let later = |text: &str| parse_request_body(text.as_bytes()).unwrap().in_background;
        for yes in ["true", " true ", "1", "\"true\"", "{}"] {
            assert!(later(&format!("{{\"background\": {yes}}}")), "{yes}");
        }
        for no in ["{}", r#"{"background": false}"#, r#"{"background":null}"#, r#"{"x": {"background": true}}"#] {
            assert!(!later(no), "{no}");
        }
    }

    #[test]
    fn rejects_ambiguous_bodies() {
        for bad in [
            r#"{"model": "a", "model": "b"}"#,
            "",
            "[]",
            r#"{"model": 5}"#,
            r#"{"model": "a"} x"#,
            "{\"model\": \"\u{fffd}",
        ] {
            assert_eq!(parse_request_body(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(parse_request_body(b"{\"model\": \"\xff\"}"), None);
        assert_eq!(parse_request_body(br#"{"model": "a", "max_tokens": 1, "max_tokens": 100000}"#), None);
    }
}
