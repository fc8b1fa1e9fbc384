import { describe, expect, it } from "vitest";
import type { Activity, SandboxState } from "@/api/types";
import { isInTurn, statusOf } from "./status";

const row = (state: SandboxState, activity: Activity, more: object = {}) => ({ state, activity, ...more });

describe("statusOf", () => {
  it("says who is blocked and why", () => {
    for (const activity of ["waiting_approval", "limit_paused", "stalled", "unreachable"] as const) {
      expect(statusOf(row("running", activity)).group).toBe("needs_you");
    }
    expect(statusOf(row("running", "limit_paused", { limit_paused: "cost_usd" })).detail).toContain("cost");
  });

  it("reports a failed end as failed", () => {
    expect(statusOf(row("completed", "ended", { outcome: "failed" })).word).toBe("Failed");
    expect(statusOf(row("failed", "ended", { reason: { code: "x", detail: "no heartbeat" } })).detail).toBe("no heartbeat");
    expect(statusOf(row("completed", "ended", { outcome: "cancelled" })).icon).toBe("cancelled");
  });
});

it("knows when a message can steer", () => {
  expect(isInTurn(row("running", "working"))).toBe(true);
  expect(isInTurn(row("running", "waiting_message"))).toBe(false);
  expect(isInTurn(row("creating", "starting"))).toBe(false);
});
