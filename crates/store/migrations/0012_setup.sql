-- The progress of the sandbox's set-up, and what its plan gives to commands and to the agent, as JSON.
ALTER TABLE sandboxes ADD COLUMN setup TEXT NOT NULL DEFAULT 'none';
ALTER TABLE sandboxes ADD COLUMN setup_environment TEXT NOT NULL DEFAULT '{}';
