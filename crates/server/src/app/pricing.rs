//! The cost in usage events: the agent's own figure, or else one from the price table. Without a known price there is no
//! cost: zero would be wrong.

use super::Work;
use crate::problem::Result;
use atoll_core::event::{NewEvent, kind};
use atoll_core::json::to_raw_json;
use atoll_core::model::{ModelTokens, Price};
use atoll_store::model_usage;
use atoll_store::sandboxes::SandboxRow;
use serde_json::Value;

/// The largest cost of one usage event: an agent may report any number.
const MAX_REPORTED_USD: f64 = 10_000.0;

/// Adds `cost_usd` to a usage event that lacks it, or else records the agent's own figure.
pub async fn observe_usage(work: &mut Work<'_>, sandbox: &SandboxRow, event: &mut NewEvent) -> Result<()> {
    if event.event_type.as_str() != kind::AGENT_USAGE {
        return Ok(());
    }
    let Ok(mut data) = serde_json::from_str::<Value>(event.data.get()) else { return Ok(()) };
    if let Some(micros) = reported_micros(&data) {
        model_usage::add_agent_cost(work.tx, sandbox.id, micros).await?;
        return Ok(());
    }
    let model = data["model"].as_str().or(sandbox.settings.model.as_deref()).map(str::to_owned);
    let price = model.and_then(|model| work.gateway.price_of(&model));
    if let Some(price) = price
        && set_cost(&mut data, price)
    {
        event.data = to_raw_json(&data);
    }
    Ok(())
}

/// The agent's own figure in millionths of a dollar. Zero is no figure.
fn reported_micros(data: &Value) -> Option<i64> {
    let dollars = data["cost_usd"].as_f64().filter(|dollars| *dollars > 0.0)?;
    Some((dollars.min(MAX_REPORTED_USD) * 1e6).ceil() as i64)
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
    data["cost_usd"] = (price.for_sums().cost_micros(&tokens) as f64 / 1e6).into();
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
        let price = Price { input: 1.0, output: 10.0, cache_read: Some(0.5), cache_write: None, long_prompt: None };
        let mut data = json!({ "input_tokens": 100, "output_tokens": 10, "cache_read_tokens": 200 });
        assert!(set_cost(&mut data, price));
        assert_eq!((&data["cost_usd"], &data["cost_by"]), (&json!(0.0003), &json!("price_table")));
        assert!(!set_cost(&mut data, price), "once");
        let mut own = json!({ "input_tokens": 100, "cost_usd": 0.5 });
        assert!(!set_cost(&mut own, price) && own["cost_usd"] == 0.5);
        assert_eq!(reported_micros(&own), Some(500_000));
        for none in
            [json!({}), json!({ "cost_usd": 0 }), json!({ "cost_usd": -1.0 }), json!({ "cost_usd": "1" }), json!(1)]
        {
            assert_eq!(reported_micros(&none), None, "{none}");
        }
        assert_eq!(reported_micros(&json!({ "cost_usd": 1e300 })), Some(10_000_000_000));
        assert!(!set_cost(&mut json!([]), price) && !set_cost(&mut json!("x"), price));
    }
}
