-- How far a sandbox that works until it is done has come, as JSON.
CREATE TABLE continuous (
    sandbox_id TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    record TEXT NOT NULL
);
