//! Reads the token usage from a response while it passes. Every API reports it as an object under one of two field
//! names, in streams and in plain responses. Only that object is buffered.

use atoll_core::model::{ModelApi, ModelTokens};
use serde_json::Value;

const USAGE_FIELDS: [&[u8]; 2] = [b"usage", b"usageMetadata"];
const MAX_FIELD_BYTES: usize = 16;
/// No API sends a larger usage object.
const MAX_USAGE_BYTES: usize = 16 << 10;
/// Caps a reported count, since a response may contain any number.
const MAX_TOKENS: u64 = 100_000_000;

pub struct UsageScanner {
    api: ModelApi,
    state: ScanState,
    /// The field name or object that is being read.
    buffer: Vec<u8>,
    tokens: Option<ModelTokens>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScanState {
    Outside,
    String {
        escaped: bool,
    },
    /// After one of the field names.
    AfterField,
    /// After the colon.
    AfterColon,
    Object {
        depth: u32,
        in_text: bool,
        escaped: bool,
    },
}

impl UsageScanner {
    pub const fn new(api: ModelApi) -> Self {
        Self { api, state: ScanState::Outside, buffer: Vec::new(), tokens: None }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.scan_byte(*byte));
    }

    /// The usage reported so far.
    pub const fn tokens(&self) -> Option<ModelTokens> {
        self.tokens
    }

    fn scan_byte(&mut self, byte: u8) {
        self.state = match self.state {
            ScanState::Outside => self.scan_outside(byte),
            ScanState::String { escaped: true } => {
                self.buffer_byte(byte);
                ScanState::String { escaped: false }
            }
            ScanState::String { escaped: false } => match byte {
                b'"' if USAGE_FIELDS.contains(&self.buffer.as_slice()) => ScanState::AfterField,
                b'"' => ScanState::Outside,
                // A JSON string has no line break, so the quotation mark was something else.
                b'\n' => ScanState::Outside,
                _ => {
                    self.buffer_byte(byte);
                    ScanState::String { escaped: byte == b'\\' }
                }
            },
            ScanState::AfterField => match byte {
                b' ' | b'\t' | b'\r' | b'\n' => ScanState::AfterField,
                b':' => ScanState::AfterColon,
                _ => self.scan_outside(byte),
            },
            ScanState::AfterColon => match byte {
                b' ' | b'\t' | b'\r' | b'\n' => ScanState::AfterColon,
                b'{' => {
                    self.buffer.clear();
                    self.buffer.push(byte);
                    ScanState::Object { depth: 1, in_text: false, escaped: false }
                }
                _ => self.scan_outside(byte),
            },
            ScanState::Object { depth, in_text, escaped } => self.scan_object(byte, depth, in_text, escaped),
        };
    }

    fn scan_outside(&mut self, byte: u8) -> ScanState {
        if byte == b'"' {
            self.buffer.clear();
            return ScanState::String { escaped: false };
        }
        ScanState::Outside
    }

    /// Buffers a byte, up to one more than the longest field name.
    fn buffer_byte(&mut self, byte: u8) {
        if self.buffer.len() < MAX_FIELD_BYTES {
            self.buffer.push(byte);
        }
    }

    fn scan_object(&mut self, byte: u8, depth: u32, in_text: bool, escaped: bool) -> ScanState {
        if self.buffer.len() >= MAX_USAGE_BYTES {
            self.buffer = Vec::new();
            return ScanState::Outside;
        }
        self.buffer.push(byte);
        if in_text {
            return ScanState::Object { depth, in_text: escaped || byte != b'"', escaped: !escaped && byte == b'\\' };
        }
        match byte {
            b'"' => ScanState::Object { depth, in_text: true, escaped: false },
            b'{' => ScanState::Object { depth: depth + 1, in_text, escaped },
            b'}' if depth == 1 => {
                self.record_usage();
                ScanState::Outside
            }
            b'}' => ScanState::Object { depth: depth - 1, in_text, escaped },
            _ => ScanState::Object { depth, in_text, escaped },
        }
    }

    fn record_usage(&mut self) {
        let object = serde_json::from_slice::<Value>(&self.buffer);
        self.buffer.clear();
        if let Some(reported) = object.ok().and_then(|object| parse_usage(self.api, &object)) {
            self.tokens = Some(self.tokens.unwrap_or_default().max_per_field(reported));
        }
    }
}

/// Parses a usage object; `None` if it has none of the API's fields.
fn parse_usage(api: ModelApi, object: &Value) -> Option<ModelTokens> {
    let of = |value: &Value| value.as_u64().map(|count| count.min(MAX_TOKENS));
    let any = |names: &[&str]| names.iter().find_map(|name| of(object.get(*name)?));
    let inner = |outer: &[&str], name: &str| outer.iter().find_map(|outer| of(object.get(*outer)?.get(name)?));
    let (input, output, cache_read, cache_write) = match api {
        ModelApi::Anthropic => (
            any(&["input_tokens"]),
            any(&["output_tokens"]),
            any(&["cache_read_input_tokens"]),
            any(&["cache_creation_input_tokens"]),
        ),
        // OpenAI's input includes cached tokens.
        ModelApi::OpenAi => {
            let input = any(&["prompt_tokens", "input_tokens"]);
            let cached = inner(&["prompt_tokens_details", "input_tokens_details"], "cached_tokens");
            let output = any(&["completion_tokens", "output_tokens"]);
            (input.map(|all| all.saturating_sub(cached.unwrap_or(0))), output, cached, None)
        }
        ModelApi::Gemini => {
            let cached = any(&["cachedContentTokenCount"]);
            let input = any(&["promptTokenCount"]).map(|all| all.saturating_sub(cached.unwrap_or(0)));
            let input = add_counts(input, any(&["toolUsePromptTokenCount"]));
            (input, add_counts(any(&["candidatesTokenCount"]), any(&["thoughtsTokenCount"])), cached, None)
        }
    };
    let all = [input, output, cache_read, cache_write];
    all.iter().any(Option::is_some).then(|| ModelTokens {
        input: input.unwrap_or(0),
        output: output.unwrap_or(0),
        cache_read: cache_read.unwrap_or(0),
        cache_write: cache_write.unwrap_or(0),
    })
}

fn add_counts(one: Option<u64>, other: Option<u64>) -> Option<u64> {
    match (one, other) {
        (None, None) => None,
        (one, other) => Some(one.unwrap_or(0) + other.unwrap_or(0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ANTHROPIC: &str = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":\
        {\"input_tokens\":12,\"cache_creation_input_tokens\":5,\"cache_read_input_tokens\":100,\"output_tokens\":1,\
        \"cache_creation\":{\"ephemeral_5m_input_tokens\":5},\"service_tier\":\"standard\"}}}\n\n\
        : a \"comment\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":\
        {\"type\":\"text_delta\",\"text\":\"\\\"usage\\\": {\\\"output_tokens\\\": 999999}\"}}\n\n\
        event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{},\"usage\": {\"output_tokens\":42}}\n\n";
    const CHAT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"usage\"}}],\"usage\":null}\n\n\
        data: {\"choices\":[],\"usage\":{\"prompt_tokens\":30,\"completion_tokens\":7,\"total_tokens\":37,\
        \"prompt_tokens_details\":{\"cached_tokens\":10}}}\n\ndata: [DONE]\n\n";
    const RESPONSES: &str = "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"usage\":\
        {\"input_tokens\":50,\"input_tokens_details\":{\"cached_tokens\":20},\"output_tokens\":9,\
        \"output_tokens_details\":{\"reasoning_tokens\":4},\"total_tokens\":59}}}\n\n";
    const GEMINI: &str = "data: {\"usageMetadata\": {\"promptTokenCount\": 8,\"candidatesTokenCount\": 1}}\r\n\r\n\
        data: {\"usageMetadata\" : {\"promptTokenCount\": 8,\"cachedContentTokenCount\": 3,\"candidatesTokenCount\": 6,\
        \"thoughtsTokenCount\": 2}}\r\n\r\n";
    const PLAIN: &str = "{\n  \"content\": [{\"type\": \"text\", \"text\": \"the \\\\\\\"usage\\\" of }{\"}],\n  \
        \"usage\": {\n    \"input_tokens\": 3, \"note\": \"a } and a \\\" {\", \"output_tokens\": 4\n  }\n}";

    fn tokens(input: u64, output: u64, cache_read: u64, cache_write: u64) -> Option<ModelTokens> {
        Some(ModelTokens { input, output, cache_read, cache_write })
    }

    fn cases() -> [(ModelApi, &'static str, Option<ModelTokens>); 5] {
        [
            (ModelApi::Anthropic, ANTHROPIC, tokens(12, 42, 100, 5)),
            (ModelApi::OpenAi, CHAT, tokens(20, 7, 10, 0)),
            (ModelApi::OpenAi, RESPONSES, tokens(30, 9, 20, 0)),
            (ModelApi::Gemini, GEMINI, tokens(5, 8, 3, 0)),
            (ModelApi::Anthropic, PLAIN, tokens(3, 4, 0, 0)),
        ]
    }

    #[test]
    fn reads_the_usage_of_every_api() {
        for (api, text, expected) in cases() {
            let mut scanner = UsageScanner::new(api);
            scanner.feed(text.as_bytes());
            // Gemini's first chunk reports all input as uncached.
            let expected = if text == GEMINI { tokens(8, 8, 3, 0) } else { expected };
            assert_eq!(scanner.tokens(), expected, "{text}");
        }
    }

    #[test]
    fn ignores_usage_in_the_text_of_a_response() {
        for text in [
            r#"{"text": "\"usage\":{\"input_tokens\":5}"}"#,
            r#"{"text": "usage", "other": {"input_tokens": 5}}"#,
            r#"{"usage": null, "x": {"input_tokens": 5}}"#,
            r#"{"usage": [{"input_tokens": 5}]}"#,
            r#"{"usage": {"input_tokens": "5"}}"#,
            r#"{"usages": {"input_tokens": 5}}"#,
            r#"{"a usage": {"input_tokens": 5}}"#,
        ] {
            let mut scanner = UsageScanner::new(ModelApi::Anthropic);
            scanner.feed(text.as_bytes());
            assert_eq!(scanner.tokens(), None, "{text}");
        }
    }

    #[test]
    fn an_endless_object_is_bounded() {
        let mut scanner = UsageScanner::new(ModelApi::Anthropic);
        scanner.feed(br#"{"usage": {"x": ""#);
        for _ in 0..100 {
            scanner.feed(&[b'x'; 4096]);
            assert!(scanner.buffer.capacity() <= 2 * MAX_USAGE_BYTES);
        }
        scanner.feed(b"\n\"}} \n{\"usage\": {\"input_tokens\": 7}}");
        assert_eq!(scanner.tokens(), tokens(7, 0, 0, 0));
        scanner.feed(br#"{"usage": {"input_tokens": 18446744073709551615}}"#);
        assert_eq!(scanner.tokens(), tokens(MAX_TOKENS, 0, 0, 0));
    }

    proptest! {
        #[test]
        fn chunk_boundaries_do_not_matter(case in 0..5_usize, mut cuts in prop::collection::vec(0..2000_usize, 0..40)) {
            let (api, text, _) = cases()[case];
            let mut whole = UsageScanner::new(api);
            whole.feed(text.as_bytes());
            let bytes = text.as_bytes();
            cuts.sort_unstable();
            let (mut pieces, mut from) = (UsageScanner::new(api), 0);
            for cut in cuts.into_iter().map(|cut| cut.min(bytes.len())) {
                pieces.feed(&bytes[from..cut]);
                from = cut;
            }
            pieces.feed(&bytes[from..]);
            prop_assert_eq!(pieces.tokens(), whole.tokens());
        }

        #[test]
        fn accepts_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let mut scanner = UsageScanner::new(ModelApi::OpenAi);
            scanner.feed(&bytes);
            prop_assert!(scanner.buffer.len() <= MAX_USAGE_BYTES);
        }
    }
}
