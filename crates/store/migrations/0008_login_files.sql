-- The file below the agent's home that a secret is in a sandbox. One that has it is no variable.
ALTER TABLE secrets ADD COLUMN expose_file TEXT;
