//! What is looked at in the body of a request: the model, and how much it may answer.

use axum::body::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::ops::Range;

/// What a request that says nothing may answer, in tokens.
const USUAL_OUTPUT: u64 = 8192;
/// What a model takes in at once where nothing is known.
const USUAL_CONTEXT: u64 = 200_000;
/// Text has about four bytes a token, and what stands around it in a request more than makes up for the rest.
const BYTES_PER_TOKEN: u64 = 4;

#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Asked {
    pub model: Option<String>,
    /// Where the model's name stands, with its quotation marks.
    span: Option<Range<usize>>,
    most_output: Option<u64>,
    answers: u64,
    /// The answer is not for whoever asks, and is made later.
    pub in_background: bool,
}

// A name that is there twice is refused: the two ends might each take another one.
#[derive(Deserialize)]
struct Shape<'a> {
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
    generation: Option<Generation>,
}

#[derive(Deserialize)]
struct Generation {
    #[serde(default, rename = "maxOutputTokens", alias = "max_output_tokens")]
    most: Option<u64>,
    #[serde(default, rename = "candidateCount", alias = "candidate_count")]
    count: Option<u64>,
}

/// Nothing if it is not an object of JSON with what the APIs have in one.
pub fn look(body: &[u8]) -> Option<Asked> {
    // A list would do as well for the reader below.
    body.iter().find(|byte| !byte.is_ascii_whitespace()).filter(|byte| **byte == b'{')?;
    let shape: Shape<'_> = serde_json::from_slice(body).ok()?;
    let model = match shape.model {
        Some(raw) => Some(serde_json::from_str::<Cow<'_, str>>(raw.get()).ok()?.into_owned()),
        None => None,
    };
    let span = shape.model.and_then(|raw| {
        let start = (raw.get().as_ptr() as usize).checked_sub(body.as_ptr() as usize)?;
        Some(start..start + raw.get().len())
    });
    let generation = shape.generation.as_ref();
    let said = [shape.max_tokens, shape.max_completion_tokens, shape.max_output_tokens];
    let most_output = said.into_iter().chain([generation.and_then(|it| it.most)]).flatten().max();
    let answers = shape.n.or_else(|| generation.and_then(|it| it.count)).unwrap_or(1).max(1);
    // Whatever an upstream may take for a yes.
    let in_background = shape.background.is_some_and(|raw| !matches!(raw.get(), "null" | "false"));
    Some(Asked { model, span, most_output, answers, in_background })
}

impl Asked {
    /// The most that it can use: input and output.
    pub fn most(&self, body_bytes: usize, context: Option<u64>) -> (u64, u64) {
        let context = context.unwrap_or(USUAL_CONTEXT);
        let input = (body_bytes as u64).div_ceil(BYTES_PER_TOKEN).min(context);
        (input, self.most_output.unwrap_or(USUAL_OUTPUT).saturating_mul(self.answers))
    }

    /// The body with another name of the model, every other byte as it was.
    pub fn renamed(&self, body: &Bytes, name: &str) -> Option<Bytes> {
        let span = self.span.clone()?;
        let name = serde_json::to_string(name).ok()?;
        let (before, after) = (body.get(..span.start)?, body.get(span.end..)?);
        Some([before, name.as_bytes(), after].concat().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_and_the_most_are_found() {
        let body = Bytes::from_static(br#"{"messages": [{"model": "no"}], "max_tokens": 100, "model" : "gl\u006d-4"}"#);
        let asked = look(&body).unwrap();
        assert_eq!(asked.model.as_deref(), Some("glm-4"));
        assert_eq!(asked.most(400, None), (100, 100));
        let renamed = asked.renamed(&body, "a \"b\"").unwrap();
        assert_eq!(renamed, &br#"{"messages": [{"model": "no"}], "max_tokens": 100, "model" : "a \"b\""}"#[..]);
    }

    #[test]
    fn each_api_says_the_most_in_its_own_way() {
        let most = |text: &str| look(text.as_bytes()).unwrap().most(0, None).1;
        assert_eq!(most(r#"{"max_completion_tokens": 5}"#), 5);
        assert_eq!(most(r#"{"max_output_tokens": 6}"#), 6);
        assert_eq!(most(r#"{"max_tokens": 5, "max_completion_tokens": 9, "n": 3}"#), 27);
        assert_eq!(most(r#"{"generationConfig": {"maxOutputTokens": 7, "candidateCount": 2}}"#), 14);
        assert_eq!(most("{}"), USUAL_OUTPUT);
        assert_eq!(look(b"{}").unwrap().most(10_000_000, Some(1000)).0, 1000);
    }

    #[test]
    fn what_is_answered_later_is_noticed() {
        let later = |text: &str| look(text.as_bytes()).unwrap().in_background;
        for yes in ["true", " true ", "1", "\"true\"", "{}"] {
            assert!(later(&format!("{{\"background\": {yes}}}")), "{yes}");
        }
        for no in ["{}", r#"{"background": false}"#, r#"{"background":null}"#, r#"{"x": {"background": true}}"#] {
            assert!(!later(no), "{no}");
        }
    }

    #[test]
    fn what_two_readers_could_read_differently_is_not_read() {
        for bad in [
            r#"{"model": "a", "model": "b"}"#,
            "",
            "[]",
            r#"{"model": 5}"#,
            r#"{"model": "a"} x"#,
            "{\"model\": \"\u{fffd}",
        ] {
            assert_eq!(look(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(look(b"{\"model\": \"\xff\"}"), None);
        assert_eq!(look(br#"{"model": "a", "max_tokens": 1, "max_tokens": 100000}"#), None);
    }
}
