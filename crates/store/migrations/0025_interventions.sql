-- What the guardian found and did. `finding` is JSON, and `outcome` is null while it is open. `restart` is `due` until
-- the session continues in `next_sandbox_id`.
CREATE TABLE interventions (
    id TEXT PRIMARY KEY,
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    session_id TEXT NOT NULL,
    project_id TEXT NOT NULL,
    detector TEXT NOT NULL,
    seq BIGINT NOT NULL,
    finding TEXT NOT NULL,
    action TEXT NOT NULL,
    held_back TEXT,
    text TEXT,
    message_id TEXT,
    outcome TEXT,
    outcome_seq BIGINT,
    restart TEXT,
    next_sandbox_id TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX interventions_finding ON interventions (sandbox_id, detector, seq);
CREATE INDEX interventions_project ON interventions (project_id, id);
CREATE INDEX interventions_session ON interventions (session_id);
CREATE INDEX interventions_restart ON interventions (restart) WHERE restart = 'due';

-- The judge's requests for a sandbox, their cost, and its last report, which is JSON.
CREATE TABLE judgements (
    sandbox_id TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    requests BIGINT NOT NULL,
    bad_responses BIGINT NOT NULL,
    input BIGINT NOT NULL,
    output BIGINT NOT NULL,
    cost_micros BIGINT NOT NULL,
    report TEXT,
    judged_at BIGINT
);
