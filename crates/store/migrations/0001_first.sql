-- One text for both databases: BIGINT and TEXT only. Times are microseconds since the epoch,
-- truth values 0 and 1, structures JSON text.
CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE projects (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    is_default BIGINT NOT NULL,
    repo TEXT,
    defaults TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);

CREATE TABLE members (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    user_id TEXT NOT NULL REFERENCES users (id) ON DELETE CASCADE,
    role TEXT NOT NULL,
    PRIMARY KEY (project_id, user_id)
);

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    hash TEXT NOT NULL,
    user_id TEXT REFERENCES users (id) ON DELETE CASCADE,
    role TEXT,
    project_id TEXT REFERENCES projects (id) ON DELETE CASCADE,
    sandbox_id TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT
);
CREATE INDEX tokens_sandbox ON tokens (sandbox_id);

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id),
    agent TEXT,
    title TEXT NOT NULL,
    branch TEXT,
    state TEXT NOT NULL,
    sandbox_id TEXT,
    last_sandbox_id TEXT,
    native_id TEXT,
    transcript TEXT,
    forked_from TEXT,
    cost_micros BIGINT NOT NULL,
    next_position BIGINT NOT NULL,
    created_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX sessions_project ON sessions (project_id, id);

CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    project_id TEXT NOT NULL REFERENCES projects (id),
    provider TEXT NOT NULL,
    provider_id TEXT,
    server_id TEXT,
    agent TEXT,
    settings TEXT NOT NULL,
    end_rule TEXT NOT NULL,
    state TEXT NOT NULL,
    ending TEXT,
    outcome TEXT,
    reason_code TEXT,
    reason_detail TEXT,
    results TEXT NOT NULL,
    activity TEXT NOT NULL,
    turn BIGINT,
    turn_state TEXT NOT NULL,
    version BIGINT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    noise BIGINT NOT NULL,
    heartbeats BIGINT NOT NULL,
    first_heartbeat BIGINT,
    last_heartbeat BIGINT,
    last_sample BIGINT,
    stream TEXT,
    boot BIGINT,
    worker_left BIGINT NOT NULL,
    drained BIGINT NOT NULL,
    cost_model_micros BIGINT NOT NULL,
    cost_compute_micros BIGINT NOT NULL,
    created_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    state_since BIGINT NOT NULL,
    ended_at BIGINT
);
CREATE INDEX sandboxes_project ON sandboxes (project_id, id);
CREATE INDEX sandboxes_session ON sandboxes (session_id, id);
CREATE INDEX sandboxes_state ON sandboxes (state, id);

CREATE TABLE labels (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, key)
);
CREATE INDEX labels_value ON labels (key, value);

CREATE TABLE streams (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    stream TEXT NOT NULL,
    boot BIGINT,
    last_key BIGINT NOT NULL,
    registered_at BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, stream)
);

CREATE TABLE events (
    sandbox_id TEXT NOT NULL,
    seq BIGINT NOT NULL,
    id TEXT NOT NULL,
    type TEXT NOT NULL,
    source TEXT NOT NULL,
    actor TEXT,
    at BIGINT NOT NULL,
    received_at BIGINT NOT NULL,
    turn BIGINT,
    data TEXT NOT NULL,
    PRIMARY KEY (sandbox_id, seq)
);

CREATE TABLE heartbeat_samples (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    cpu_milli BIGINT,
    memory_bytes BIGINT,
    disk_bytes BIGINT,
    PRIMARY KEY (sandbox_id, at)
);

CREATE TABLE messages (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    position BIGINT NOT NULL,
    type TEXT NOT NULL,
    delivery TEXT NOT NULL,
    content TEXT NOT NULL,
    sender TEXT,
    state TEXT NOT NULL,
    lease TEXT,
    lease_stream TEXT,
    lease_until BIGINT,
    how TEXT,
    turn BIGINT,
    reason TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX messages_position ON messages (session_id, position);
CREATE INDEX messages_state ON messages (session_id, state, position);
CREATE INDEX messages_lease ON messages (lease);

CREATE TABLE jobs (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    sandbox_id TEXT NOT NULL,
    due_at BIGINT NOT NULL,
    attempts BIGINT NOT NULL,
    claimed_until BIGINT,
    created_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX jobs_kind ON jobs (sandbox_id, kind);
CREATE INDEX jobs_due ON jobs (due_at);

CREATE TABLE blobs (
    sandbox_id TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    sha256 TEXT NOT NULL,
    size BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (sandbox_id, sha256)
);
CREATE INDEX blobs_sha256 ON blobs (sha256);

CREATE TABLE idempotency (
    principal TEXT NOT NULL,
    route TEXT NOT NULL,
    key TEXT NOT NULL,
    body_hash TEXT NOT NULL,
    status BIGINT NOT NULL,
    answer TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    PRIMARY KEY (principal, route, key)
);
CREATE INDEX idempotency_age ON idempotency (created_at);
