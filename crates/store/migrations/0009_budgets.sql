-- What a project may spend on models, as JSON.
ALTER TABLE projects ADD COLUMN budget TEXT;

-- What models cost a project on each day (days since 1970, UTC). It outlasts the sandboxes.
CREATE TABLE project_costs (
    project_id TEXT NOT NULL REFERENCES projects (id) ON DELETE CASCADE,
    day BIGINT NOT NULL,
    cost_micros BIGINT NOT NULL,
    PRIMARY KEY (project_id, day)
);

-- What was spent before days were kept counts for budgets without an end.
INSERT INTO project_costs (project_id, day, cost_micros)
SELECT s.project_id, 0, CAST(SUM(u.cost_micros) AS BIGINT)
FROM model_usage u JOIN sandboxes s ON s.id = u.sandbox_id
GROUP BY s.project_id;

-- Sandboxes whose agents are held back by their project's budget, with the budget as it was then.
CREATE TABLE budget_holds (
    sandbox_id TEXT PRIMARY KEY REFERENCES sandboxes (id) ON DELETE CASCADE,
    held TEXT NOT NULL
);
