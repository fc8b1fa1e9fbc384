//! Parses the model and the maximum output from a request body, and edits the few fields that the gateway changes.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
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
    is_stream: bool,
    stream_options: Option<StreamOptions>,
    /// Position of the first field.
    first_field: usize,
}

/// The field `stream_options` with its byte range.
#[derive(Debug, Clone, PartialEq, Eq)]
struct StreamOptions {
    span: Range<usize>,
    /// The options with `include_usage: true`; `None` if they already request usage.
    with_usage: Option<String>,
}

/// Changes to a request body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BodyChanges<'a> {
    /// Name of the model at the upstream.
    pub model: Option<&'a str>,
    /// Request the usage at the end of a stream of chat completions.
    pub include_usage: bool,
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
    #[serde(borrow, default)]
    stream: Option<&'a RawValue>,
    // An option would not tell `null` from an absent field.
    #[serde(borrow, default = "absent_field")]
    stream_options: &'a RawValue,
    #[serde(default, rename = "generationConfig", alias = "generation_config")]
    generation: Option<GenerationConfig>,
}

const fn absent_field() -> &'static RawValue {
    RawValue::NULL
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
    let start = body.iter().position(|byte| !byte.is_ascii_whitespace()).filter(|start| body[*start] == b'{')?;
    let shape: RawRequest<'_> = serde_json::from_slice(body).ok()?;
    let model = match shape.model {
        Some(raw) => Some(serde_json::from_str::<Cow<'_, str>>(raw.get()).ok()?.into_owned()),
        None => None,
    };
    // A value that is not part of the body has no range.
    let span_of = |raw: &RawValue| {
        let start = (raw.get().as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        let end = start.checked_add(raw.get().len()).filter(|end| *end <= body.len())?;
        Some(start..end)
    };
    let span = shape.model.and_then(span_of);
    let stream_options = span_of(shape.stream_options).map(|span| {
        let mut options: Map<String, Value> = serde_json::from_str(shape.stream_options.get()).unwrap_or_default();
        let is_requested = options.insert("include_usage".to_owned(), true.into()) == Some(true.into());
        let with_usage = (!is_requested).then(|| Value::Object(options).to_string());
        StreamOptions { span, with_usage }
    });
    let generation = shape.generation.as_ref();
    let output_limits = [shape.max_tokens, shape.max_completion_tokens, shape.max_output_tokens];
    let most_output = output_limits.into_iter().chain([generation.and_then(|it| it.most)]).flatten().max();
    let answers = shape.n.or_else(|| generation.and_then(|it| it.count)).unwrap_or(1).max(1);
    // Anything that an upstream may treat as true.
    let is_true = |field: Option<&RawValue>| field.is_some_and(|raw| !matches!(raw.get(), "null" | "false"));
    Some(RequestBody {
        model,
        model_span: span,
        max_output: most_output,
        candidates: answers,
        in_background: is_true(shape.background),
        is_stream: is_true(shape.stream),
        stream_options,
        first_field: start + 1,
    })
}

impl RequestBody {
    /// Upper bounds of the input and output tokens.
    pub fn estimate_tokens(&self, body_bytes: usize, context: Option<u64>) -> (u64, u64) {
        let context = context.unwrap_or(DEFAULT_CONTEXT_TOKENS);
        let input = (body_bytes as u64).div_ceil(BYTES_PER_TOKEN).min(context);
        (input, self.max_output.unwrap_or(DEFAULT_MAX_OUTPUT_TOKENS).saturating_mul(self.candidates))
    }

    /// Changes these fields and no other byte. Returns `None` if there is nothing to change.
    pub fn apply_changes(&self, body: &Bytes, changes: BodyChanges<'_>) -> Option<Bytes> {
        let name = changes.model.and_then(|name| Some((self.model_span.clone()?, serde_json::to_string(name).ok()?)));
        let usage = match &self.stream_options {
            _ if !changes.include_usage || !self.is_stream => None,
            Some(options) => options.with_usage.clone().map(|text| (options.span.clone(), text)),
            None => {
                let insertion = r#""stream_options":{"include_usage":true},"#.to_owned();
                Some((self.first_field..self.first_field, insertion))
            }
        };
        let mut edits: Vec<(Range<usize>, String)> = name.into_iter().chain(usage).collect();
        if edits.is_empty() {
            return None;
        }
        edits.sort_by_key(|(span, _)| span.start);
        let (mut changed, mut copied) = (Vec::with_capacity(body.len() + 64), 0);
        for (span, text) in edits {
            changed.extend_from_slice(body.get(copied..span.start)?);
            changed.extend_from_slice(text.as_bytes());
            copied = span.end;
        }
        changed.extend_from_slice(body.get(copied..)?);
        Some(changed.into())
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
        let renamed =
            request.apply_changes(&body, BodyChanges { model: Some("a \"b\""), include_usage: true }).unwrap();
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
    fn requests_the_usage_of_a_stream() {
        let changed = |text: &'static str, model| {
            let body = Bytes::from_static(text.as_bytes());
            let changes = BodyChanges { model, include_usage: true };
            let changed = parse_request_body(&body).unwrap().apply_changes(&body, changes)?;
            assert!(serde_json::from_slice::<Value>(&changed).is_ok(), "{changed:?}");
            Some(String::from_utf8(changed.to_vec()).unwrap())
        };
        for (body, expected) in [
            (r#" {"stream": true}"#, r#" {"stream_options":{"include_usage":true},"stream": true}"#),
            (
                r#"{"stream_options": null, "stream":true}"#,
                r#"{"stream_options": {"include_usage":true}, "stream":true}"#,
            ),
            (r#"{"stream":true,"stream_options":[1]}"#, r#"{"stream":true,"stream_options":{"include_usage":true}}"#),
            (
                r#"{"stream":true,"stream_options":{"include_usage":false,"x":1}}"#,
                r#"{"stream":true,"stream_options":{"include_usage":true,"x":1}}"#,
            ),
        ] {
            assert_eq!(changed(body, None).as_deref(), Some(expected));
        }
        for same in [r#"{"stream":false}"#, "{}", r#"{"stream":true,"stream_options":{"include_usage":true}}"#] {
            assert_eq!(changed(same, None), None, "{same}");
        }
        let both = changed(r#"{"model":"a","stream":1,"stream_options":{}}"#, Some("b"));
        assert_eq!(both.as_deref(), Some(r#"{"model":"b","stream":1,"stream_options":{"include_usage":true}}"#));
        assert_eq!(parse_request_body(br#"{"stream_options":{},"stream_options":{}}"#), None);
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
