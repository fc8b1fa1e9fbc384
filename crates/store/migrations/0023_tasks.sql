-- Tasks of the orchestrator. `details` and `owned_files` are JSON. Times with a limit (`queued_since`, `available_at`,
-- `claim_expires_at`) are on the steady clock, the others on the wall clock.
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    ticket_id TEXT REFERENCES tickets (id) ON DELETE SET NULL,
    owner TEXT NOT NULL,
    type TEXT NOT NULL,
    priority TEXT NOT NULL,
    state TEXT NOT NULL,
    -- What a queued task waits for. NULL if it is not queued.
    wait TEXT,
    -- The task whose files it waits for.
    holder_id TEXT,
    standing BIGINT NOT NULL,
    level_due_at BIGINT,
    queued_since BIGINT NOT NULL,
    available_at BIGINT,
    deadline BIGINT,
    open_dependencies BIGINT NOT NULL,
    blocked_tasks BIGINT NOT NULL,
    is_active BIGINT NOT NULL,
    -- Number of the newest claim, which alone may give the task a sandbox.
    claim BIGINT NOT NULL,
    claimed_by TEXT,
    claim_expires_at BIGINT,
    provider TEXT NOT NULL,
    sandbox_id TEXT REFERENCES sandboxes (id) ON DELETE SET NULL,
    session_id TEXT REFERENCES sessions (id) ON DELETE SET NULL,
    owned_files TEXT NOT NULL,
    details TEXT NOT NULL,
    version BIGINT NOT NULL,
    state_since BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE INDEX tasks_project ON tasks (project_id, id);
CREATE INDEX tasks_state ON tasks (state, id);
CREATE INDEX tasks_ticket ON tasks (ticket_id) WHERE ticket_id IS NOT NULL;
CREATE INDEX tasks_session ON tasks (session_id) WHERE session_id IS NOT NULL;
CREATE UNIQUE INDEX tasks_sandbox ON tasks (sandbox_id) WHERE sandbox_id IS NOT NULL;
-- The dispatcher reads the first task of each (project, owner, standing), and nothing behind it.
CREATE INDEX tasks_ready ON tasks (project_id, owner, standing, queued_since, id) WHERE wait = 'slot';
CREATE INDEX tasks_active ON tasks (id) WHERE is_active = 1;
CREATE INDEX tasks_available ON tasks (available_at) WHERE available_at IS NOT NULL;
CREATE INDEX tasks_level ON tasks (level_due_at) WHERE level_due_at IS NOT NULL;
CREATE INDEX tasks_holder ON tasks (holder_id, standing) WHERE holder_id IS NOT NULL;

CREATE TABLE task_dependencies (
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    depends_on TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    PRIMARY KEY (task_id, depends_on)
);
CREATE INDEX task_dependencies_depends_on ON task_dependencies (depends_on);

-- One row per sandbox that worked on a task.
CREATE TABLE task_attempts (
    task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
    number BIGINT NOT NULL,
    sandbox_id TEXT,
    started_at BIGINT NOT NULL,
    ended_at BIGINT,
    outcome TEXT,
    class TEXT,
    reason TEXT,
    PRIMARY KEY (task_id, number)
);
CREATE INDEX task_attempts_sandbox ON task_attempts (sandbox_id) WHERE sandbox_id IS NOT NULL;

-- Providers whose quota is used up, until a time on the steady clock.
CREATE TABLE task_quotas (
    provider TEXT PRIMARY KEY,
    until_at BIGINT NOT NULL,
    detail TEXT NOT NULL
);

INSERT INTO meta (key, value) VALUES ('task_dispatch', '1');
