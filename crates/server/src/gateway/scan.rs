//! What an answer says that it used, read while it passes. In streams and in plain answers of every API this is an
//! object under one of two names; everything else goes by. Nothing is kept but that object.

use atoll_core::model::{Api, Tokens};
use serde_json::Value;

const NAMES: [&[u8]; 2] = [b"usage", b"usageMetadata"];
const LONGEST_NAME: usize = 16;
/// Larger ones are none that any API sends.
const LONGEST: usize = 16 << 10;
/// No answer uses more; a model can be made to say anything.
const MOST: u64 = 100_000_000;

pub struct Scanner {
    api: Api,
    state: State,
    /// The name or the object that is being read.
    held: Vec<u8>,
    tokens: Option<Tokens>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Between,
    Text {
        escaped: bool,
    },
    /// After a name that is one of ours.
    Named,
    /// And its colon.
    Valued,
    Object {
        depth: u32,
        in_text: bool,
        escaped: bool,
    },
}

impl Scanner {
    pub const fn new(api: Api) -> Self {
        Self { api, state: State::Between, held: Vec::new(), tokens: None }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.step(*byte));
    }

    /// What was said so far, if anything was.
    pub const fn tokens(&self) -> Option<Tokens> {
        self.tokens
    }

    fn step(&mut self, byte: u8) {
        self.state = match self.state {
            State::Between => self.between(byte),
            State::Text { escaped: true } => {
                self.hold(byte);
                State::Text { escaped: false }
            }
            State::Text { escaped: false } => match byte {
                b'"' if NAMES.contains(&self.held.as_slice()) => State::Named,
                b'"' => State::Between,
                // No text of JSON has one: it was a quotation mark of something else.
                b'\n' => State::Between,
                _ => {
                    self.hold(byte);
                    State::Text { escaped: byte == b'\\' }
                }
            },
            State::Named => match byte {
                b' ' | b'\t' | b'\r' | b'\n' => State::Named,
                b':' => State::Valued,
                _ => self.between(byte),
            },
            State::Valued => match byte {
                b' ' | b'\t' | b'\r' | b'\n' => State::Valued,
                b'{' => {
                    self.held.clear();
                    self.held.push(byte);
                    State::Object { depth: 1, in_text: false, escaped: false }
                }
                _ => self.between(byte),
            },
            State::Object { depth, in_text, escaped } => self.object(byte, depth, in_text, escaped),
        };
    }

    fn between(&mut self, byte: u8) -> State {
        if byte == b'"' {
            self.held.clear();
            return State::Text { escaped: false };
        }
        State::Between
    }

    /// One byte more than the longest name is enough to know that it is none.
    fn hold(&mut self, byte: u8) {
        if self.held.len() < LONGEST_NAME {
            self.held.push(byte);
        }
    }

    fn object(&mut self, byte: u8, depth: u32, in_text: bool, escaped: bool) -> State {
        if self.held.len() >= LONGEST {
            self.held = Vec::new();
            return State::Between;
        }
        self.held.push(byte);
        if in_text {
            return State::Object { depth, in_text: escaped || byte != b'"', escaped: !escaped && byte == b'\\' };
        }
        match byte {
            b'"' => State::Object { depth, in_text: true, escaped: false },
            b'{' => State::Object { depth: depth + 1, in_text, escaped },
            b'}' if depth == 1 => {
                self.take();
                State::Between
            }
            b'}' => State::Object { depth: depth - 1, in_text, escaped },
            _ => State::Object { depth, in_text, escaped },
        }
    }

    fn take(&mut self) {
        let object = serde_json::from_slice::<Value>(&self.held);
        self.held.clear();
        if let Some(said) = object.ok().and_then(|object| read(self.api, &object)) {
            self.tokens = Some(self.tokens.unwrap_or_default().max(said));
        }
    }
}

/// Nothing if it has none of the figures that the API has there.
fn read(api: Api, object: &Value) -> Option<Tokens> {
    let of = |value: &Value| value.as_u64().map(|count| count.min(MOST));
    let any = |names: &[&str]| names.iter().find_map(|name| of(object.get(*name)?));
    let inner = |outer: &[&str], name: &str| outer.iter().find_map(|outer| of(object.get(*outer)?.get(name)?));
    let (input, output, cache_read, cache_write) = match api {
        Api::Anthropic => (
            any(&["input_tokens"]),
            any(&["output_tokens"]),
            any(&["cache_read_input_tokens"]),
            any(&["cache_creation_input_tokens"]),
        ),
        // What came from a cache is part of the input here.
        Api::OpenAi => {
            let input = any(&["prompt_tokens", "input_tokens"]);
            let cached = inner(&["prompt_tokens_details", "input_tokens_details"], "cached_tokens");
            let output = any(&["completion_tokens", "output_tokens"]);
            (input.map(|all| all.saturating_sub(cached.unwrap_or(0))), output, cached, None)
        }
        Api::Gemini => {
            let cached = any(&["cachedContentTokenCount"]);
            let input = any(&["promptTokenCount"]).map(|all| all.saturating_sub(cached.unwrap_or(0)));
            let input = plus(input, any(&["toolUsePromptTokenCount"]));
            (input, plus(any(&["candidatesTokenCount"]), any(&["thoughtsTokenCount"])), cached, None)
        }
    };
    let all = [input, output, cache_read, cache_write];
    all.iter().any(Option::is_some).then(|| Tokens {
        input: input.unwrap_or(0),
        output: output.unwrap_or(0),
        cache_read: cache_read.unwrap_or(0),
        cache_write: cache_write.unwrap_or(0),
    })
}

fn plus(one: Option<u64>, other: Option<u64>) -> Option<u64> {
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

    fn tokens(input: u64, output: u64, cache_read: u64, cache_write: u64) -> Option<Tokens> {
        Some(Tokens { input, output, cache_read, cache_write })
    }

    fn cases() -> [(Api, &'static str, Option<Tokens>); 5] {
        [
            (Api::Anthropic, ANTHROPIC, tokens(12, 42, 100, 5)),
            (Api::OpenAi, CHAT, tokens(20, 7, 10, 0)),
            (Api::OpenAi, RESPONSES, tokens(30, 9, 20, 0)),
            (Api::Gemini, GEMINI, tokens(5, 8, 3, 0)),
            (Api::Anthropic, PLAIN, tokens(3, 4, 0, 0)),
        ]
    }

    #[test]
    fn every_api_says_what_it_used() {
        for (api, text, expected) in cases() {
            let mut scanner = Scanner::new(api);
            scanner.feed(text.as_bytes());
            // The first figure of Gemini's stream had all of the input as new.
            let expected = if text == GEMINI { tokens(8, 8, 3, 0) } else { expected };
            assert_eq!(scanner.tokens(), expected, "{text}");
        }
    }

    #[test]
    fn what_the_text_of_an_answer_says_is_not_believed() {
        for text in [
            r#"{"text": "\"usage\":{\"input_tokens\":5}"}"#,
            r#"{"text": "usage", "other": {"input_tokens": 5}}"#,
            r#"{"usage": null, "x": {"input_tokens": 5}}"#,
            r#"{"usage": [{"input_tokens": 5}]}"#,
            r#"{"usage": {"input_tokens": "5"}}"#,
            r#"{"usages": {"input_tokens": 5}}"#,
            r#"{"a usage": {"input_tokens": 5}}"#,
        ] {
            let mut scanner = Scanner::new(Api::Anthropic);
            scanner.feed(text.as_bytes());
            assert_eq!(scanner.tokens(), None, "{text}");
        }
    }

    #[test]
    fn an_endless_object_costs_no_more_than_it_may() {
        let mut scanner = Scanner::new(Api::Anthropic);
        scanner.feed(br#"{"usage": {"x": ""#);
        for _ in 0..100 {
            scanner.feed(&[b'x'; 4096]);
            assert!(scanner.held.capacity() <= 2 * LONGEST);
        }
        scanner.feed(b"\n\"}} \n{\"usage\": {\"input_tokens\": 7}}");
        assert_eq!(scanner.tokens(), tokens(7, 0, 0, 0));
        scanner.feed(br#"{"usage": {"input_tokens": 18446744073709551615}}"#);
        assert_eq!(scanner.tokens(), tokens(MOST, 0, 0, 0));
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_split_does_not_matter(case in 0..5_usize, mut cuts in prop::collection::vec(0..2000_usize, 0..40)) {
            let (api, text, _) = cases()[case];
            let mut whole = Scanner::new(api);
            whole.feed(text.as_bytes());
            let bytes = text.as_bytes();
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Scanner::new(api), 0);
            for cut in cuts.into_iter().map(|cut| cut.min(bytes.len())) {
                pieces.feed(&bytes[from..cut]);
                from = cut;
            }
            pieces.feed(&bytes[from..]);
            prop_assert_eq!(pieces.tokens(), whole.tokens());
        }

        #[test]
        fn no_bytes_are_too_strange(bytes in prop::collection::vec(any::<u8>(), 0..4096)) {
            let mut scanner = Scanner::new(Api::OpenAi);
            scanner.feed(&bytes);
            prop_assert!(scanner.held.len() <= LONGEST);
        }
    }
}
