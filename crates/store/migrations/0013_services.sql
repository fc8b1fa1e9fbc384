-- The state of a sandbox's services, as JSON.
CREATE TABLE services (
    sandbox_id TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    statuses TEXT NOT NULL
);
