-- The limit that a sandbox's agent is held back by, until a person raises it.
ALTER TABLE sandboxes ADD COLUMN limit_paused TEXT;
