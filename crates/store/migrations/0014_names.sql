-- The name that a person gave a sandbox, and what lists omit.
ALTER TABLE sandboxes ADD COLUMN name TEXT;
ALTER TABLE sandboxes ADD COLUMN archived BIGINT NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN archived BIGINT NOT NULL DEFAULT 0;

-- A name is free again when its sandbox ends.
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (project_id, name)
    WHERE name IS NOT NULL AND state IN ('pending', 'creating', 'running');
