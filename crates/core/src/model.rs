//! Models: which API one is spoken to by, what it used, and what that costs.

use crate::words;
use serde::{Deserialize, Serialize};

words! {
    /// How a model is spoken to.
    "model API"
    Api { Anthropic = "anthropic", OpenAi = "openai", Gemini = "gemini" }
}

words! {
    /// How the key is shown to an upstream.
    "way to show a key"
    Auth {
        /// In the API's own header for keys.
        ApiKey = "api_key",
        Bearer = "bearer",
    }
}

words! {
    /// How a server that renews logins wants to be asked.
    "form of a request"
    Encoding { Json = "json", Form = "form" }
}

/// Where the logins of an upstream are renewed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Renewal {
    pub token_url: String,
    /// Who asks, as the login was made for.
    pub client_id: String,
    #[serde(default = "form")]
    pub body: Encoding,
}

const fn form() -> Encoding {
    Encoding::Form
}

/// In US dollars for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    pub input: f64,
    pub output: f64,
    /// Absent: as `input`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
}

impl Price {
    pub fn is_sound(&self) -> bool {
        let all = [Some(self.input), Some(self.output), self.cache_read, self.cache_write];
        all.into_iter().flatten().all(|price| (0.0..=1e6).contains(&price))
    }

    /// In millionths of a dollar, rounded up: what is used is never free by being little.
    pub fn cost(&self, tokens: &Tokens) -> i64 {
        // Dollars for a million tokens are millionths of a dollar for one.
        let parts = [
            (tokens.input, self.input),
            (tokens.output, self.output),
            (tokens.cache_read, self.cache_read.unwrap_or(self.input)),
            (tokens.cache_write, self.cache_write.unwrap_or(self.input)),
        ];
        let micros: f64 = parts.iter().map(|(count, price)| *count as f64 * price).sum();
        // A billionth less than a whole is the whole: 0.1 is no sum of halves. Beyond what fits it saturates.
        (micros - 1e-9).ceil().max(0.0) as i64
    }
}

/// What one or more answers used. No token is counted twice: `input` is what came neither from a cache nor into one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tokens {
    pub input: u64,
    pub output: u64,
    pub cache_read: u64,
    pub cache_write: u64,
}

impl Tokens {
    /// The larger of each: answers that are told bit by bit count up.
    pub fn max(self, other: Self) -> Self {
        Self {
            input: self.input.max(other.input),
            output: self.output.max(other.output),
            cache_read: self.cache_read.max(other.cache_read),
            cache_write: self.cache_write.max(other.cache_write),
        }
    }
}

/// The list prices of models that most people use, for those whose configuration names none. What the configuration
/// says counts before it.
pub fn list_price(model: &str) -> Option<Price> {
    const PRICES: &[(&[&str], f64, f64)] = &[
        (&["claude-opus-4-5"], 5.0, 25.0),
        (&["claude-opus-4-1", "claude-opus-4-0", "claude-opus-4"], 15.0, 75.0),
        (&["claude-sonnet-4-5", "claude-sonnet-4-0", "claude-sonnet-4", "claude-3-7-sonnet"], 3.0, 15.0),
        (&["claude-haiku-4-5"], 1.0, 5.0),
        (&["claude-3-5-haiku"], 0.8, 4.0),
    ];
    let is = |name: &&str| model.strip_prefix(*name).is_some_and(is_release);
    let (_, input, output) = PRICES.iter().find(|(names, ..)| names.iter().any(is))?;
    Some(Price { input: *input, output: *output, cache_read: Some(input * 0.1), cache_write: Some(input * 1.25) })
}

/// Nothing, `-latest` or a date; anything else after a name may be another model.
fn is_release(rest: &str) -> bool {
    let is_date = |date: &str| date.len() == 8 && date.bytes().all(|byte| byte.is_ascii_digit());
    rest.is_empty() || rest == "-latest" || rest.strip_prefix('-').is_some_and(is_date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn money_is_counted_in_millionths_and_rounded_up() {
        let price = Price { input: 3.0, output: 15.0, cache_read: Some(0.3), cache_write: Some(3.75) };
        let tokens = Tokens { input: 10, output: 2, cache_read: 100, cache_write: 8 };
        assert_eq!(price.cost(&tokens), 30 + 30 + 30 + 30);
        assert_eq!(price.cost(&Tokens::default()), 0);
        assert_eq!(price.cost(&Tokens { cache_read: 1, ..Tokens::default() }), 1);
        let plain = Price { input: 1.0, output: 2.0, cache_read: None, cache_write: None };
        assert_eq!(plain.cost(&tokens), 10 + 4 + 100 + 8);
        assert_eq!(price.cost(&Tokens { input: u64::MAX, ..Tokens::default() }), i64::MAX);
    }

    #[test]
    fn a_price_is_a_number_of_dollars() {
        let of = |input| Price { input, output: 1.0, cache_read: None, cache_write: Some(0.0) };
        assert!(of(0.0).is_sound() && of(3.0).is_sound());
        assert!(!of(-1.0).is_sound() && !of(f64::NAN).is_sound() && !of(f64::INFINITY).is_sound());
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
