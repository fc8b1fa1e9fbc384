import { expect, it } from "vitest";
import type { Sandbox } from "@/api/types";
import { groupSandboxes } from "./grouping";

function row(id: string, more: Partial<Sandbox>): Sandbox {
  const at = "2026-01-01T00:00:00Z";
  return {
    id, session_id: "ses_1", project_id: "prj_1", state: "running", activity: "working", results: "none", end: "keep", provider: "fake",
    labels: {}, settings: {}, exposed_secrets: [], first_seq: 1, last_seq: 1, cost: { compute: 0, model_source: "unknown" },
    created_at: at, updated_at: at, state_since: at, ...more,
  };
}

it("groups by what a person has to do", () => {
  const groups = groupSandboxes(
    [row("a", {}), row("b", { activity: "waiting_approval" }), row("c", { activity: "paused" }), row("d", { state: "failed" })],
    {},
  );
  expect(Object.values(groups).map((rows) => rows.map(({ id }) => id))).toEqual([["b"], ["a"], ["c"], ["d"]]);
});

it("filters by words of the title, branch and labels", () => {
  const rows = [row("a", { title: "Fix the parser", labels: { team: "core" } }), row("b", { title: "Docs", project_id: "prj_2" })];
  expect(groupSandboxes(rows, { q: "PARSER team=core" }).working).toHaveLength(1);
  expect(groupSandboxes(rows, { project: "prj_2" }).working.map(({ id }) => id)).toEqual(["b"]);
});

it("lists who has waited longest first", () => {
  const rows = [
    row("late", { activity: "stalled", state_since: "2026-01-02T00:00:00Z" }),
    row("early", { activity: "stalled", state_since: "2026-01-01T00:00:00Z" }),
  ];
  expect(groupSandboxes(rows, {}).needs_you.map(({ id }) => id)).toEqual(["early", "late"]);
});
