//! Renders model costs. An unknown cost is never shown as zero.

use atoll_core::model::CostSource;

/// The cost in dollars, with a note if it does not follow from reported usage and known prices.
pub fn format_cost(dollars: Option<f64>, source: CostSource) -> String {
    match (dollars, source) {
        (Some(dollars), CostSource::Prices | CostSource::Unknown) => format!("${dollars:.4}"),
        (Some(dollars), CostSource::Estimate) => format!("at most ${dollars:.4}"),
        (Some(dollars), CostSource::Agent) => format!("${dollars:.4} (the agent's figure)"),
        (None, _) => "unknown".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_cost_is_not_zero() {
        assert_eq!(format_cost(Some(0.0), CostSource::Prices), "$0.0000");
        assert_eq!(format_cost(Some(1.25), CostSource::Estimate), "at most $1.2500");
        assert_eq!(format_cost(Some(1.25), CostSource::Agent), "$1.2500 (the agent's figure)");
        assert_eq!(format_cost(None, CostSource::Unknown), "unknown");
    }
}
