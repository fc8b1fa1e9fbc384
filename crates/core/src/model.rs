//! Models: their APIs, token usage and prices.

use crate::string_enum;
use serde::{Deserialize, Serialize};

string_enum! {
    /// API of a model.
    "model API"
    ModelApi { Anthropic = "anthropic", OpenAi = "openai", Gemini = "gemini" }
}

string_enum! {
    /// Authentication scheme of an upstream.
    "authentication scheme"
    AuthScheme {
        /// The API's own header for keys.
        ApiKey = "api_key",
        Bearer = "bearer",
    }
}

string_enum! {
    /// Body format of a login renewal request.
    "body encoding"
    BodyEncoding { Json = "json", Form = "form" }
}

/// Endpoint that renews the logins of an upstream.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LoginRenewal {
    pub token_url: String,
    /// OAuth client id that the login belongs to.
    pub client_id: String,
    #[serde(default = "form")]
    pub body: BodyEncoding,
}

const fn form() -> BodyEncoding {
    BodyEncoding::Form
}

/// Price in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    /// Defaults to `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
}

impl Price {
    pub fn is_valid(&self) -> bool {
        let all = [Some(self.input), Some(self.output), self.cache_read, self.cache_write];
        all.into_iter().flatten().all(|price| (0.0..=1e6).contains(&price))
    }

    /// Returns the cost in millionths of a dollar, rounded up so that small usage is never free.
    pub fn cost_micros(&self, tokens: &ModelTokens) -> i64 {
        // Dollars per million tokens equal millionths of a dollar per token.
        let parts = [
            (tokens.input, self.input),
            (tokens.output, self.output),
            (tokens.cache_read, self.cache_read.unwrap_or(self.input)),
            (tokens.cache_write, self.cache_write.unwrap_or(self.input)),
        ];
        let micros: f64 = parts.iter().map(|(count, price)| *count as f64 * price).sum();
        // Subtract a billionth to absorb floating-point error before rounding up. The cast saturates.
        (micros - 1e-9).ceil().max(0.0) as i64
    }
}

/// Token usage of one or more responses. No token counts twice: `input` excludes cache reads and writes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelTokens {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

impl ModelTokens {
    /// Returns the maximum per field: streamed responses report cumulative counts.
    pub fn max_per_field(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cache_read: self.cache_read.max(other.cache_read),
            cache_write: self.cache_write.max(other.cache_write),
        }
    }
}

/// Returns the list price of a common model. Configured prices take precedence.
pub fn list_price(model: &str) -> Option<Price> {
    const PRICES: &[(&[&str], f64, f64)] = &[
        (&["claude-opus-4-5"], 5.0, 25.0),
        (&["claude-opus-4-1", "claude-opus-4-0", "claude-opus-4"], 15.0, 75.0),
        (&["claude-sonnet-4-5", "claude-sonnet-4-0", "claude-sonnet-4", "claude-3-7-sonnet"], 3.0, 15.0),
        (&["claude-haiku-4-5"], 1.0, 5.0),
        (&["claude-3-5-haiku"], 0.8, 4.0),
    ];
    let is = |name: &&str| model.strip_prefix(*name).is_some_and(is_release_suffix);
    let (_, input, output) = PRICES.iter().find(|(names, ..)| names.iter().any(is))?;
    Some(Price { input: *input, output: *output, cache_read: Some(input * 0.1), cache_write: Some(input * 1.25) })
}

/// Accepts an empty suffix, `-latest` or a date. Any other suffix may be a different model.
fn is_release_suffix(rest: &str) -> bool {
    let is_date = |date: &str| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
    rest.is_empty() || rest == "-latest" || rest.strip_prefix('-').is_some_and(is_date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_in_millionths_and_rounded_up() {
        let price = Price { input: 3.0, output: 15.0, cache_read: Some(0.3), cache_write: Some(3.75) };
        let tokens = ModelTokens { input: 10, output: 2, cache_read: 100, cache_write: 8 };
        assert_eq!(price.cost_micros(&tokens), 30 + 30 + 30 + 30);
        assert_eq!(price.cost_micros(&ModelTokens::default()), 0);
        assert_eq!(price.cost_micros(&ModelTokens { cache_read: 1, ..ModelTokens::default() }), 1);
        let plain = Price { input: 1.0, output: 2.0, cache_read: None, cache_write: None };
        assert_eq!(plain.cost_micros(&tokens), 10 + 4 + 100 + 8);
        assert_eq!(price.cost_micros(&ModelTokens { input: u64::MAX, ..ModelTokens::default() }), i64::MAX);
    }

    #[test]
    fn rejects_invalid_prices() {
        let of = |input| Price { input, output: 1.0, cache_read: None, cache_write: Some(0.0) };
        assert!(of(0.0).is_valid() && of(3.0).is_valid());
        assert!(!of(-1.0).is_valid() && !of(f64::NAN).is_valid() && !of(f64::INFINITY).is_valid());
    }

    #[test]
    fn only_known_names_have_a_list_price() {
        for (model, input) in [
            ("claude-sonnet-4-5", 3.0),
            ("claude-sonnet-4-5-20250929", 3.0),
            ("claude-opus-4-1-20250805", 15.0),
            ("claude-opus-4-5-20251101", 5.0),
            ("claude-haiku-4-5", 1.0),
            ("claude-3-5-haiku-latest", 0.8),
        ] {
            assert_eq!(list_price(model).map(|price| price.input), Some(input), "{model}");
        }
        for unknown in
            ["claude-sonnet-40", "claude-opus-4-9", "claude-sonnet-4x", "claude-sonnet-4-mini", "gpt-5", "claude-", ""]
        {
            assert_eq!(list_price(unknown), None, "{unknown}");
        }
    }
}
