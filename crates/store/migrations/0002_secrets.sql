-- Secrets: `sealed` can be opened only with the key that `key_id` names, which is not in the database.
CREATE TABLE secrets (
    id TEXT PRIMARY KEY,
    project_id TEXT REFERENCES projects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    sealed TEXT NOT NULL,
    key_id TEXT NOT NULL,
    upstreams TEXT NOT NULL,
    expose TEXT,
    created_by TEXT,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
-- Without a project it belongs to the deployment, which has each name once as well.
CREATE UNIQUE INDEX secrets_name ON secrets (COALESCE(project_id, ''), name);

-- The file that a blob is in, where secrets were taken out of it and it has another hash.
ALTER TABLE blobs ADD COLUMN stored TEXT;
CREATE INDEX blobs_stored ON blobs (stored);
