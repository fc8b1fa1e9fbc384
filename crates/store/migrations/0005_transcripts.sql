-- Which sessions would go on from what a sandbox kept.
CREATE INDEX sessions_last_sandbox ON sessions (last_sandbox_id);
