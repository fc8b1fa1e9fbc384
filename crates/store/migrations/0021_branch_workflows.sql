-- The branch workflow of a session. Its job belongs to `sandbox_id`, the sandbox that began the workflow. `record` is JSON;
-- `pr_state` repeats the state of its pull request, for lists.
CREATE TABLE branch_workflows (
    session_id TEXT PRIMARY KEY REFERENCES sessions (id) ON DELETE CASCADE,
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    sandbox_id TEXT NOT NULL,
    requested_by TEXT,
    pr_state TEXT,
    record TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL
);
