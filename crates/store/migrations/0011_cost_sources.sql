-- How the cost of each model is known: requests charged at an upper bound, and requests without a known cost.
ALTER TABLE model_usage ADD COLUMN estimated BIGINT NOT NULL DEFAULT 0;
ALTER TABLE model_usage ADD COLUMN unpriced BIGINT NOT NULL DEFAULT 0;

-- The cost that a sandbox's agent reported itself.
CREATE TABLE agent_costs (
    sandbox_id TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    cost_micros BIGINT NOT NULL
);
