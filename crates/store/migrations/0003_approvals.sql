-- What agents have asked for and what became of it, `data` as in the event that said so.
CREATE TABLE approvals (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    approval_id TEXT NOT NULL,
    data TEXT NOT NULL,
    state TEXT NOT NULL,
    decision TEXT,
    reason TEXT,
    answers TEXT,
    answered_by TEXT,
    requested_at BIGINT NOT NULL,
    answered_at BIGINT,
    PRIMARY KEY (sandbox_id, approval_id)
);
CREATE INDEX approvals_state ON approvals (state, requested_at);
