-- The progress of the sandbox's set-up, and the variables that its plan gives to commands and to the agent.
ALTER TABLE sandboxes ADD COLUMN setup TEXT NOT NULL DEFAULT 'none';
ALTER TABLE sandboxes ADD COLUMN setup_env TEXT NOT NULL DEFAULT '{}';
