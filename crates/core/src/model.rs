//! Models: their APIs, token usage, prices and costs.

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
    /// Replaces the price of a request with a long prompt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long_prompt: Option<LongPromptPrice>,
}

/// Price of a whole request whose prompt is longer than `above`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LongPromptPrice {
    /// In tokens, with those read from and written to a cache.
    pub above: u64,
    pub input: f64,
    pub output: f64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_read: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_write: Option<f64>,
}

impl Price {
    pub fn is_valid(&self) -> bool {
        let long =
            self.long_prompt.map_or([None; 4], |it| [Some(it.input), Some(it.output), it.cache_read, it.cache_write]);
        let all = [Some(self.input), Some(self.output), self.cache_read, self.cache_write];
        all.into_iter().chain(long).flatten().all(|price| (0.0..=1e6).contains(&price))
    }

    /// The price for usage that may be the sum of several requests: the length of a single prompt is unknown.
    pub fn for_sums(self) -> Self {
        Self { long_prompt: None, ..self }
    }

    fn for_prompt(self, tokens: u64) -> Self {
        match self.long_prompt {
            Some(LongPromptPrice { above, input, output, cache_read, cache_write }) if tokens > above => {
                Self { input, output, cache_read, cache_write, long_prompt: None }
            }
            Some(_) | None => self,
        }
    }

    /// Returns the cost in millionths of a dollar, rounded up so that small usage is never free.
    pub fn cost_micros(&self, tokens: &ModelTokens) -> i64 {
        let prompt = tokens.input.saturating_add(tokens.cache_read).saturating_add(tokens.cache_write);
        let price = self.for_prompt(prompt);
        // Dollars per million tokens equal millionths of a dollar per token.
        let parts = [
            (tokens.input, price.input),
            (tokens.output, price.output),
            (tokens.cache_read, price.cache_read.unwrap_or(price.input)),
            (tokens.cache_write, price.cache_write.unwrap_or(price.input)),
        ];
        let micros: f64 = parts.iter().map(|(count, price)| *count as f64 * price).sum();
        // Subtract a billionth to absorb floating-point error before rounding up. The cast saturates.
        (micros - 1e-9).ceil().max(0.0) as i64
    }

    /// Returns the highest cost of a request with this much input and output: all input may be written to the cache.
    pub fn max_cost_micros(&self, input: u64, output: u64) -> i64 {
        let fresh = self.cost_micros(&ModelTokens { input, output, ..ModelTokens::default() });
        fresh.max(self.cost_micros(&ModelTokens { cache_write: input, output, ..ModelTokens::default() }))
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

string_enum! {
    /// The origin of a model cost.
    "cost source"
    CostSource {
        /// Reported usage at known prices.
        Prices = "prices",
        /// At least one request was charged an upper bound: its price or its usage is unknown.
        Estimate = "estimate",
        /// The agent's own figure: the price of a model is unknown, or the agent does not use the gateway.
        Agent = "agent",
        /// Neither a price nor a figure of the agent is known.
        Unknown = "unknown",
    }
}

/// The parts from which the model cost of a sandbox follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CostParts {
    /// Charged by the gateway, in millionths of a dollar.
    pub metered_micros: i64,
    /// Reported by the agent.
    pub agent_micros: i64,
    /// Requests through the gateway.
    pub requests: i64,
    /// Requests that were charged an upper bound.
    pub estimated: i64,
    /// Requests without a known cost.
    pub unpriced: i64,
}

/// A cost in millionths of a dollar; an unknown cost has no amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelCost {
    pub micros: Option<i64>,
    pub source: CostSource,
}

impl CostParts {
    /// Returns the cost. The gateway's figure wins where it is complete, because a sandbox cannot forge it.
    pub fn resolve(&self) -> ModelCost {
        let is_metered = self.unpriced == 0 && (self.requests > 0 || self.metered_micros > 0 || self.agent_micros == 0);
        if is_metered {
            let source = if self.estimated > 0 { CostSource::Estimate } else { CostSource::Prices };
            return ModelCost { micros: Some(self.metered_micros), source };
        }
        if self.agent_micros > 0 {
            return ModelCost { micros: Some(self.agent_micros.max(self.metered_micros)), source: CostSource::Agent };
        }
        ModelCost { micros: None, source: CostSource::Unknown }
    }
}

impl ModelCost {
    /// The cost of nothing.
    pub const NONE: Self = Self { micros: Some(0), source: CostSource::Prices };

    /// Adds another cost. A sum with an unknown part is unknown.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let micros = self.micros.zip(other.micros).map(|(one, other)| one.saturating_add(other));
        Self { micros, source: self.source.max(other.source) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_in_millionths_and_rounded_up() {
        let price =
            Price { input: 3.0, output: 15.0, cache_read: Some(0.3), cache_write: Some(3.75), long_prompt: None };
        let tokens = ModelTokens { input: 10, output: 2, cache_read: 100, cache_write: 8 };
        assert_eq!(price.cost_micros(&tokens), 30 + 30 + 30 + 30);
        assert_eq!(price.cost_micros(&ModelTokens::default()), 0);
        assert_eq!(price.cost_micros(&ModelTokens { cache_read: 1, ..ModelTokens::default() }), 1);
        let plain = Price { input: 1.0, output: 2.0, cache_read: None, cache_write: None, long_prompt: None };
        assert_eq!(plain.cost_micros(&tokens), 10 + 4 + 100 + 8);
        assert_eq!(price.cost_micros(&ModelTokens { input: u64::MAX, ..ModelTokens::default() }), i64::MAX);
    }

    #[test]
    fn rejects_invalid_prices() {
        let of = |input| Price { input, output: 1.0, cache_read: None, cache_write: Some(0.0), long_prompt: None };
        assert!(of(0.0).is_valid() && of(3.0).is_valid());
        assert!(!of(-1.0).is_valid() && !of(f64::NAN).is_valid() && !of(f64::INFINITY).is_valid());
    }

    #[test]
    fn a_long_prompt_has_its_own_price() {
        let long = LongPromptPrice { above: 100, input: 5.0, output: 20.0, cache_read: Some(0.5), cache_write: None };
        let price =
            Price { input: 1.0, output: 10.0, cache_read: Some(0.1), cache_write: None, long_prompt: Some(long) };
        let tokens = |input, cache_read| ModelTokens { input, output: 10, cache_read, cache_write: 0 };
        assert_eq!(price.cost_micros(&tokens(50, 50)), 50 + 100 + 5);
        assert_eq!(price.cost_micros(&tokens(51, 50)), 255 + 200 + 25, "cached input counts");
        assert_eq!(price.for_sums().cost_micros(&tokens(1000, 0)), 1000 + 100);
        let writes = Price { cache_write: Some(2.0), long_prompt: None, ..price };
        assert_eq!((writes.max_cost_micros(100, 1), price.max_cost_micros(100, 1)), (210, 110));
    }

    #[test]
    fn an_unknown_cost_is_never_zero() {
        let resolve = |parts: CostParts| {
            let ModelCost { micros, source } = parts.resolve();
            (micros, source)
        };
        let none = CostParts::default();
        assert_eq!(resolve(none), (Some(0), CostSource::Prices), "no request");
        let metered = CostParts { metered_micros: 7, agent_micros: 9, requests: 1, ..none };
        assert_eq!(resolve(metered), (Some(7), CostSource::Prices));
        assert_eq!(resolve(CostParts { metered_micros: 0, ..metered }), (Some(0), CostSource::Prices), "a free model");
        assert_eq!(resolve(CostParts { estimated: 1, ..metered }), (Some(7), CostSource::Estimate));
        assert_eq!(resolve(CostParts { requests: 0, metered_micros: 0, ..metered }), (Some(9), CostSource::Agent));
        assert_eq!(resolve(CostParts { unpriced: 1, ..metered }), (Some(9), CostSource::Agent));
        assert_eq!(resolve(CostParts { unpriced: 1, agent_micros: 5, ..metered }), (Some(7), CostSource::Agent));
        let unknown = CostParts { unpriced: 1, agent_micros: 0, ..metered };
        assert_eq!(resolve(unknown), (None, CostSource::Unknown));
        let sum = metered.resolve().plus(unknown.resolve());
        assert_eq!((sum.micros, sum.source), (None, CostSource::Unknown));
        assert_eq!(ModelCost::NONE.plus(metered.resolve()), metered.resolve());
    }
}
