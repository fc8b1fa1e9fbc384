-- Bytes of the sandbox's events and blobs, and the events that its quota did not admit.
ALTER TABLE sandboxes ADD COLUMN log_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN blob_bytes BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN dropped_events BIGINT NOT NULL DEFAULT 0;
UPDATE sandboxes SET
    log_bytes = (SELECT COALESCE(SUM(LENGTH(e.data) + 256), 0) FROM events e WHERE e.sandbox_id = sandboxes.id),
    blob_bytes = (SELECT COALESCE(SUM(b.size + 4096), 0) FROM blobs b WHERE b.sandbox_id = sandboxes.id);

-- When a rate-limited agent may continue, if its model said so.
ALTER TABLE sandboxes ADD COLUMN rate_limited_until BIGINT;

-- Measured by the provider, like the other figures of a sample.
ALTER TABLE heartbeat_samples ADD COLUMN pids BIGINT;
ALTER TABLE heartbeat_samples ADD COLUMN network_bytes BIGINT;

-- Fencing of claims: each claim and each new schedule of a job has a higher number.
ALTER TABLE jobs ADD COLUMN claim BIGINT NOT NULL DEFAULT 0;
