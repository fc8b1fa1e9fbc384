-- Progress and use of a sandbox, by the steady clock, and why it is paused.
ALTER TABLE sandboxes ADD COLUMN work_at BIGINT;
ALTER TABLE sandboxes ADD COLUMN used_at BIGINT;
ALTER TABLE sandboxes ADD COLUMN pause_cause TEXT;
UPDATE sandboxes SET work_at = updated_at WHERE state = 'running';

-- Why a person has to look at a session, as JSON.
ALTER TABLE sessions ADD COLUMN attention TEXT;

-- Restarts of a session within the last hour, by the steady clock: of its workers and of its sandboxes.
CREATE TABLE session_restarts (
    session_id TEXT NOT NULL REFERENCES sessions (id) ON DELETE CASCADE,
    restarted_at BIGINT NOT NULL
);
CREATE INDEX session_restarts_session ON session_restarts (session_id, restarted_at);
