import { describe, expect, it } from "vitest";
import type { Abilities, Sandbox } from "@/api/types";
import { planSend } from "./send-plan";

const ALL: Abilities = { steer: true, queue: true, interrupt: true, approvals: true, questions: true, hooks: true, resume: true, fork: true, usage: true, plan: true };

function sandbox(more: Partial<Sandbox>): Sandbox {
  const at = "2026-01-01T00:00:00Z";
  return {
    id: "sbx_1", session_id: "ses_1", project_id: "prj_1", state: "running", activity: "working", results: "none", end: "keep", provider: "local",
    agent: "claude", labels: {}, settings: {}, exposed_secrets: [], first_seq: 1, last_seq: 1, cost: { compute: 0, model_source: "unknown" },
    created_at: at, updated_at: at, state_since: at, ...more,
  };
}

describe("planSend", () => {
  it("steers during a turn, if the agent can", () => {
    expect(planSend(sandbox({}), ALL)).toMatchObject({ label: "Steer", delivery: "steer", canQueue: true, canInterrupt: true });
    expect(planSend(sandbox({}), { ...ALL, steer: false, interrupt: false })).toMatchObject({ label: "Queue", delivery: "queue", canInterrupt: false });
  });

  it("sends between turns and queues while the agent cannot take messages", () => {
    expect(planSend(sandbox({ activity: "waiting_message" }), ALL).label).toBe("Send");
    expect(planSend(sandbox({ activity: "paused" }), ALL)).toMatchObject({ label: "Queue", canInterrupt: false });
    expect(planSend(sandbox({ state: "creating", activity: "starting" }), ALL).label).toBe("Queue");
  });

  it("continues the session after the end, and blocks while results are exported", () => {
    expect(planSend(sandbox({ state: "completed" }), ALL)).toMatchObject({ label: "Continue", startsSandbox: true });
    expect(planSend(sandbox({ state: "completing" }), ALL).blocked).not.toBeNull();
  });
});
