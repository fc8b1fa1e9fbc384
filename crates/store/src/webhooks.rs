//! Deliveries of webhooks, each processed once.

use crate::error::Result;
use crate::sql::{Tx, time_param};
use atoll_core::time::Timestamp;

/// Records a delivery. Returns false if it was processed before.
pub async fn record_delivery(tx: &mut dyn Tx, delivery: &str, now: Timestamp) -> Result<bool> {
    let sql =
        "INSERT INTO webhook_deliveries (delivery, received_at) VALUES (?1, ?2) ON CONFLICT (delivery) DO NOTHING";
    Ok(tx.execute(sql, &[delivery.into(), time_param(now)]).await? > 0)
}

pub async fn delete_old_deliveries(tx: &mut dyn Tx, before: Timestamp) -> Result<u64> {
    tx.execute("DELETE FROM webhook_deliveries WHERE received_at < ?1", &[time_param(before)]).await
}
