//! List prices of the models that the supported agents offer, in US dollars per million tokens. Configured prices take
//! precedence.
//!
//! Sources: the catalogues inside the tested versions of Claude Code and OpenCode, and the vendors' price pages of
//! November 2026 for models that are newer than OpenCode's catalogue.

use crate::model::{LongPromptPrice, ModelApi, Price};

struct ListedModel {
    api: ModelApi,
    name: &'static str,
    price: Price,
}

const fn price(input: f64, output: f64, cache_read: f64, cache_write: f64) -> Price {
    Price { input, output, cache_read: Some(cache_read), cache_write: Some(cache_write), long_prompt: None }
}

/// A price that is multiplied for prompts above `above` tokens: input and cache by `input_factor`.
const fn tiered(base: Price, above: u64, input_factor: f64, output_factor: f64) -> Price {
    let cache_read = match base.cache_read {
        Some(price) => Some(price * input_factor),
        None => None,
    };
    let cache_write = match base.cache_write {
        Some(price) => Some(price * input_factor),
        None => None,
    };
    let (input, output) = (base.input * input_factor, base.output * output_factor);
    Price { long_prompt: Some(LongPromptPrice { above, input, output, cache_read, cache_write }), ..base }
}

const fn claude(name: &'static str, input: f64, output: f64, cache_read: f64) -> ListedModel {
    ListedModel { api: ModelApi::Anthropic, name, price: price(input, output, cache_read, input * 1.25) }
}

const fn gpt(name: &'static str, input: f64, output: f64, cache_read: f64, cache_write: f64) -> ListedModel {
    ListedModel { api: ModelApi::OpenAi, name, price: price(input, output, cache_read, cache_write) }
}

/// A model whose prompts above 272,000 tokens cost twice as much, and their output half as much again.
const fn long_gpt(name: &'static str, input: f64, output: f64, cache_read: f64, cache_write: f64) -> ListedModel {
    let base = price(input, output, cache_read, cache_write);
    ListedModel { api: ModelApi::OpenAi, name, price: tiered(base, 272_000, 2.0, 1.5) }
}

const fn gemini(name: &'static str, input: f64, output: f64, cache_read: f64) -> ListedModel {
    ListedModel { api: ModelApi::Gemini, name, price: price(input, output, cache_read, input) }
}

const fn long_gemini(name: &'static str, input: f64, output: f64, cache_read: f64) -> ListedModel {
    let base = price(input, output, cache_read, input);
    ListedModel { api: ModelApi::Gemini, name, price: tiered(base, 200_000, 2.0, 1.5) }
}

const HAIKU_5_5: ListedModel = ListedModel {
    api: ModelApi::Anthropic,
    name: "claude-haiku-5-5",
    price: tiered(price(0.1, 0.5, 0.01, 0.125), 100_000, 5.0, 5.0),
};

const LISTED_MODELS: &[ListedModel] = &[
    claude("claude-fable-5-2", 8.0, 40.0, 0.2),
    claude("claude-fable-5-1", 10.0, 50.0, 0.25),
    claude("claude-fable-5", 10.0, 50.0, 1.0),
    claude("claude-mythos-5-2", 8.0, 40.0, 0.2),
    claude("claude-mythos-5-1", 10.0, 50.0, 0.25),
    claude("claude-mythos-5", 10.0, 50.0, 1.0),
    claude("claude-opus-5-5", 4.0, 20.0, 0.2),
    claude("claude-opus-5", 5.0, 25.0, 0.5),
    claude("claude-opus-4-8", 5.0, 25.0, 0.5),
    claude("claude-opus-4-7", 5.0, 25.0, 0.5),
    claude("claude-opus-4-6", 5.0, 25.0, 0.5),
    claude("claude-opus-4-5", 5.0, 25.0, 0.5),
    claude("claude-opus-4-1", 15.0, 75.0, 1.5),
    claude("claude-opus-4-0", 15.0, 75.0, 1.5),
    claude("claude-opus-4", 15.0, 75.0, 1.5),
    claude("claude-sonnet-5-5", 2.0, 10.0, 0.1),
    claude("claude-sonnet-5", 2.0, 10.0, 0.2),
    claude("claude-sonnet-4-6", 3.0, 15.0, 0.3),
    claude("claude-sonnet-4-5", 3.0, 15.0, 0.3),
    claude("claude-sonnet-4-0", 3.0, 15.0, 0.3),
    claude("claude-sonnet-4", 3.0, 15.0, 0.3),
    claude("claude-3-7-sonnet", 3.0, 15.0, 0.3),
    claude("claude-3-5-sonnet", 3.0, 15.0, 0.3),
    HAIKU_5_5,
    claude("claude-haiku-4-5", 1.0, 5.0, 0.1),
    claude("claude-3-5-haiku", 0.8, 4.0, 0.08),
    long_gpt("gpt-6.1-sol", 2.0, 10.0, 0.1, 2.5),
    long_gpt("gpt-6.1-terra", 1.0, 5.0, 0.05, 1.25),
    long_gpt("gpt-6-astra", 10.0, 50.0, 1.0, 12.5),
    long_gpt("gpt-6-sol", 2.0, 10.0, 0.2, 2.5),
    long_gpt("gpt-6-luna", 0.1, 0.5, 0.01, 0.125),
    long_gpt("gpt-5.6", 4.0, 20.0, 0.4, 5.0),
    long_gpt("gpt-5.6-sol", 4.0, 20.0, 0.4, 5.0),
    long_gpt("gpt-5.6-terra", 2.0, 12.0, 0.2, 2.5),
    long_gpt("gpt-5.6-luna", 0.2, 1.2, 0.02, 0.25),
    long_gpt("gpt-daybreak-blue", 4.0, 20.0, 0.4, 5.0),
    gpt("gpt-daybreak-red", 12.5, 75.0, 1.25, 15.625),
    long_gpt("gpt-5.5", 5.0, 30.0, 0.5, 5.0),
    long_gpt("gpt-5.5-pro", 30.0, 180.0, 30.0, 30.0),
    long_gpt("gpt-5.4", 2.5, 15.0, 0.25, 2.5),
    long_gpt("gpt-5.4-pro", 30.0, 180.0, 30.0, 30.0),
    gpt("gpt-5.4-mini", 0.75, 4.5, 0.075, 0.75),
    gpt("gpt-5.4-nano", 0.2, 1.25, 0.02, 0.2),
    gpt("gpt-5.3-codex", 1.75, 14.0, 0.175, 1.75),
    gpt("gpt-5.3-codex-spark", 1.75, 14.0, 0.175, 1.75),
    gpt("gpt-5.2", 1.75, 14.0, 0.175, 1.75),
    gpt("gpt-5.2-pro", 21.0, 168.0, 21.0, 21.0),
    gpt("gpt-5.1", 1.25, 10.0, 0.125, 1.25),
    gpt("gpt-5", 1.25, 10.0, 0.125, 1.25),
    gpt("gpt-5-mini", 0.25, 2.0, 0.025, 0.25),
    gpt("gpt-5-nano", 0.05, 0.4, 0.005, 0.05),
    gpt("gpt-5-pro", 15.0, 120.0, 15.0, 15.0),
    gpt("gpt-4.1", 2.0, 8.0, 0.5, 2.0),
    gpt("gpt-4.1-mini", 0.4, 1.6, 0.1, 0.4),
    gpt("gpt-4o", 2.5, 10.0, 1.25, 2.5),
    gpt("gpt-4o-mini", 0.15, 0.6, 0.075, 0.15),
    gpt("o3", 2.0, 8.0, 0.5, 2.0),
    gemini("gemini-3.8-flash", 0.75, 3.75, 0.075),
    gemini("gemini-3.7-flash", 0.75, 3.75, 0.075),
    gemini("gemini-3.6-flash", 0.75, 3.75, 0.075),
    gemini("gemini-3.5-flash", 1.5, 9.0, 0.15),
    gemini("gemini-3.5-flash-lite", 0.3, 2.5, 0.03),
    long_gemini("gemini-3.1-pro-preview", 2.0, 12.0, 0.2),
    long_gemini("gemini-3.1-pro-preview-customtools", 2.0, 12.0, 0.2),
    gemini("gemini-3.1-flash-lite", 0.25, 1.5, 0.025),
    gemini("gemini-3.1-flash-lite-preview", 0.25, 1.5, 0.025),
    gemini("gemini-3-flash-preview", 0.5, 3.0, 0.05),
    gemini("gemini-flash", 0.75, 3.75, 0.075),
    gemini("gemini-flash-lite", 0.3, 2.5, 0.03),
    long_gemini("gemini-2.5-pro", 1.25, 10.0, 0.125),
    gemini("gemini-2.5-flash", 0.3, 2.5, 0.03),
    gemini("gemini-2.5-flash-lite", 0.1, 0.4, 0.01),
];

fn find_listed(model: &str) -> Option<&'static ListedModel> {
    LISTED_MODELS.iter().find(|listed| model.strip_prefix(listed.name).is_some_and(is_release_suffix))
}

/// Returns the list price of a model that an agent offers.
pub fn list_price(model: &str) -> Option<Price> {
    find_listed(model).map(|listed| listed.price)
}

/// Returns the list's name of a model, without its release.
pub fn listed_name(model: &str) -> Option<&'static str> {
    find_listed(model).map(|listed| listed.name)
}

/// The API of a model with a list price.
pub fn find_api(model: &str) -> Option<ModelApi> {
    let is_named = |listed: &&ListedModel| model.strip_prefix(listed.name).is_some_and(is_release_suffix);
    LISTED_MODELS.iter().find(is_named).map(|listed| listed.api)
}

/// The list prices of all models of an API.
pub fn list_prices(api: ModelApi) -> impl Iterator<Item = Price> {
    LISTED_MODELS.iter().filter(move |listed| listed.api == api).map(|listed| listed.price)
}

/// Accepts an empty suffix, `-latest` or a date. Any other suffix may be a different model.
fn is_release_suffix(rest: &str) -> bool {
    let is_date = |date: &str| {
        let digits = date.bytes().filter(u8::is_ascii_digit).count();
        let has_form = match date.as_bytes() {
            [_, _, _, _, b'-', _, _, b'-', _, _] => true,
            bytes => bytes.len() == 8,
        };
        digits == 8 && has_form
    };
    rest.is_empty() || rest == "-latest" || rest.strip_prefix('-').is_some_and(is_date)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_names_have_a_list_price() {
        for (model, input) in [
            ("claude-sonnet-4-5", 3.0),
            ("claude-sonnet-4-5-20250929", 3.0),
            ("claude-opus-4-1-20250805", 15.0),
            ("claude-opus-4-5-20251101", 5.0),
            ("claude-haiku-4-5", 1.0),
            ("claude-3-5-haiku-latest", 0.8),
            ("gpt-6.1-sol-2026-09-29", 2.0),
            ("gpt-5", 1.25),
            ("gemini-flash-latest", 0.75),
        ] {
            assert_eq!(list_price(model).map(|price| price.input), Some(input), "{model}");
        }
        for unknown in [
            "claude-sonnet-40",
            "claude-opus-4-9",
            "claude-sonnet-4x",
            "claude-sonnet-4-mini",
            "gpt-5-2026-1-111",
            "gpt-5-2026x09-29",
            "gpt-7",
            "claude-",
            "",
        ] {
            assert_eq!(list_price(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn every_price_is_valid_and_found_by_its_own_name() {
        for listed in LISTED_MODELS {
            assert!(listed.price.is_valid(), "{}", listed.name);
            assert_eq!(list_price(listed.name), Some(listed.price), "{}", listed.name);
        }
        for api in ModelApi::ALL {
            assert!(list_prices(*api).count() > 10, "{api}");
        }
    }

    #[test]
    fn long_prompts_cost_more() {
        let long = |model: &str| list_price(model).and_then(|price| price.long_prompt).unwrap();
        let haiku = long("claude-haiku-5-5");
        assert_eq!((haiku.above, haiku.input, haiku.output), (100_000, 0.5, 2.5));
        let sol = long("gpt-6.1-sol");
        assert_eq!((sol.above, sol.input, sol.output, sol.cache_read), (272_000, 4.0, 15.0, Some(0.2)));
    }
}
