//! What models were used for, as part of other answers.

use super::sandboxes::dollars;
use crate::problem::Result;
use atoll_core::model::Tokens;
use atoll_store::Tx;
use atoll_store::model_usage::{self, Of};
use serde::Serialize;

/// What went through the model gateway, in tokens.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct Usage {
    requests: i64,
    /// Neither from a cache nor into one.
    input: u64,
    output: u64,
    cache_read: u64,
    cache_write: u64,
    /// In US dollars, as far as prices are known.
    cost: f64,
}

impl Usage {
    pub async fn of(tx: &mut dyn Tx, whose: Of<'_>) -> Result<Option<Self>> {
        let total = model_usage::of(tx, whose).await?;
        let Tokens { input, output, cache_read, cache_write } = total.tokens;
        let cost = dollars(total.cost_micros);
        Ok(Some(Self { requests: total.requests, input, output, cache_read, cache_write, cost }))
    }
}
