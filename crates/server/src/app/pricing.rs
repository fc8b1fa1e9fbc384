//! Adds the cost to usage events of agents that report only tokens. Without a known price there is no cost: zero would be
//! wrong.

use super::Work;
use atoll_core::event::{NewEvent, kind};
use atoll_core::json::to_raw_json;
use atoll_core::model::{ModelTokens, Price};
use atoll_core::sandbox::Settings;
use serde_json::Value;

/// Adds `cost_usd` to a usage event that lacks it.
pub fn price_usage(work: &Work<'_>, settings: &Settings, event: &mut NewEvent) {
    if event.event_type.as_str() != kind::AGENT_USAGE {
        return;
    }
    let Ok(mut data) = serde_json::from_str::<Value>(event.data.get()) else { return };
    let model = data["model"].as_str().or(settings.model.as_deref()).map(str::to_owned);
    let price = model.and_then(|model| work.gateway.price_of(&model));
    if let Some(price) = price
        && set_cost(&mut data, price)
    {
        event.data = to_raw_json(&data);
    }
}

fn set_cost(data: &mut Value, price: Price) -> bool {
    if !data.is_object() || !data["cost_usd"].is_null() {
        return false;
    }
    let of = |name: &str| data[name].as_u64().unwrap_or(0);
    let tokens = ModelTokens {
        input: of("input_tokens"),
        output: of("output_tokens"),
        cache_read: of("cache_read_tokens"),
        cache_write: of("cache_write_tokens"),
    };
    data["cost_usd"] = (price.cost_micros(&tokens) as f64 / 1e6).into();
    // Marks the figure as not reported by the agent.
    data["cost_by"] = "price_table".into();
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn prices_tokens_but_keeps_the_agents_own_cost() {
        let price = Price { input: 1.0, output: 10.0, cache_read: Some(0.5), cache_write: None };
        let mut data = json!({ "input_tokens": 100, "output_tokens": 10, "cache_read_tokens": 200 });
        assert!(set_cost(&mut data, price));
        assert_eq!((&data["cost_usd"], &data["cost_by"]), (&json!(0.0003), &json!("price_table")));
        assert!(!set_cost(&mut data, price), "once");
        let mut own = json!({ "input_tokens": 100, "cost_usd": 0.5 });
        assert!(!set_cost(&mut own, price) && own["cost_usd"] == 0.5);
        assert!(!set_cost(&mut json!([]), price) && !set_cost(&mut json!("x"), price));
    }
}
