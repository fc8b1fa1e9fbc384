-- The trace of a sandbox: the request that created it, and the times at which its open spans began.
CREATE TABLE traces (
    sandbox_id TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    trace_id TEXT NOT NULL,
    span_id TEXT NOT NULL,
    sampled BIGINT NOT NULL,
    provider_ended_at BIGINT,
    turn_started_at BIGINT
);
