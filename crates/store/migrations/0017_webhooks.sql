-- Deliveries of webhooks that were processed: a forge repeats them.
CREATE TABLE webhook_deliveries (
    delivery TEXT PRIMARY KEY,
    received_at BIGINT NOT NULL
);
CREATE INDEX webhook_deliveries_received ON webhook_deliveries (received_at);
