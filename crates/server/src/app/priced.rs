//! What an agent used, in money, where it says it in tokens only and the price of its model is known. Without a price
//! there is no figure: zero would be a lie.

use super::Work;
use atoll_core::event::{NewEvent, kind};
use atoll_core::json::raw;
use atoll_core::model::{Price, Tokens};
use atoll_core::sandbox::Settings;
use serde_json::Value;

/// Puts `cost_usd` into an agent's usage that lacks it.
pub fn price(work: &Work<'_>, settings: &Settings, event: &mut NewEvent) {
    if event.event_type.as_str() != kind::AGENT_USAGE {
        return;
    }
    let Ok(mut data) = serde_json::from_str::<Value>(event.data.get()) else { return };
    let model = data["model"].as_str().or(settings.model.as_deref()).map(str::to_owned);
    let price = model.and_then(|model| work.gateway.price_of(&model));
    if let Some(price) = price
        && add(&mut data, price)
    {
        event.data = raw(&data);
    }
}

fn add(data: &mut Value, price: Price) -> bool {
    if !data.is_object() || !data["cost_usd"].is_null() {
        return false;
    }
    let of = |name: &str| data[name].as_u64().unwrap_or(0);
    let tokens = Tokens {
        input: of("input_tokens"),
        output: of("output_tokens"),
        cache_read: of("cache_read_tokens"),
        cache_write: of("cache_write_tokens"),
    };
    data["cost_usd"] = (price.cost(&tokens) as f64 / 1e6).into();
    // So that nobody takes it for the agent's own word.
    data["cost_by"] = "price_table".into();
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn tokens_are_priced_and_an_agent_s_own_figure_stays() {
        let price = Price { input: 1.0, output: 10.0, cache_read: Some(0.5), cache_write: None };
        let mut data = json!({ "input_tokens": 100, "output_tokens": 10, "cache_read_tokens": 200 });
        assert!(add(&mut data, price));
        assert_eq!((&data["cost_usd"], &data["cost_by"]), (&json!(0.0003), &json!("price_table")));
        assert!(!add(&mut data, price), "once");
        let mut own = json!({ "input_tokens": 100, "cost_usd": 0.5 });
        assert!(!add(&mut own, price) && own["cost_usd"] == 0.5);
        assert!(!add(&mut json!([]), price) && !add(&mut json!("x"), price));
    }
}
