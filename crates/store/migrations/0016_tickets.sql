-- The prefix of a project's ticket keys, and the number of its next ticket.
ALTER TABLE projects ADD COLUMN ticket_prefix TEXT;
ALTER TABLE projects ADD COLUMN next_ticket BIGINT NOT NULL DEFAULT 1;
CREATE UNIQUE INDEX projects_ticket_prefix ON projects (ticket_prefix) WHERE ticket_prefix IS NOT NULL;

-- A ticket owns at most one branch and one pull request, which is JSON.
CREATE TABLE tickets (
    id TEXT PRIMARY KEY,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    title TEXT NOT NULL,
    description TEXT,
    type TEXT NOT NULL,
    priority TEXT NOT NULL,
    status TEXT NOT NULL,
    blocked BIGINT NOT NULL,
    branch TEXT,
    pull_request TEXT,
    session_id TEXT REFERENCES sessions (id) ON DELETE SET NULL,
    created_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
CREATE UNIQUE INDEX tickets_key ON tickets (project_id, key);
CREATE UNIQUE INDEX tickets_branch ON tickets (project_id, branch) WHERE branch IS NOT NULL;

CREATE TABLE ticket_dependencies (
    ticket_id TEXT NOT NULL REFERENCES tickets (id) ON DELETE CASCADE,
    depends_on TEXT NOT NULL REFERENCES tickets (id) ON DELETE CASCADE,
    PRIMARY KEY (ticket_id, depends_on)
);
CREATE INDEX ticket_dependencies_depends_on ON ticket_dependencies (depends_on);

-- Names by which events of other systems find a session, such as `git:branch:REPOSITORY:BRANCH`.
CREATE TABLE session_keys (
    key TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    created_at BIGINT NOT NULL
);
CREATE INDEX session_keys_session ON session_keys (session_id);
