-- What each sandbox used of each model. Sums by session, project and user are drawn from it.
CREATE TABLE model_usage (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    upstream TEXT NOT NULL,
    model TEXT NOT NULL,
    requests BIGINT NOT NULL,
    input BIGINT NOT NULL,
    output BIGINT NOT NULL,
    cache_read BIGINT NOT NULL,
    cache_write BIGINT NOT NULL,
    cost_micros BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, upstream, model)
);
