import { describe, expect, it } from "vitest";
import type { StoredEvent } from "@/api/types";
import { describeStep, describeTool } from "./steps";

function event(type: string, data: Record<string, unknown>): StoredEvent {
  const at = "2026-01-01T00:00:00Z";
  return { id: "e", sandbox_id: "sbx_1", seq: 1, type, source: "agent", at, received_at: at, data };
}

describe("describeStep", () => {
  it("names the command of a tool call", () => {
    expect(describeStep(event("agent.tool_use", { tool: "Bash", input: { command: "make test" } }))).toBe("Runs make test");
    expect(describeTool("shell", { command: ["ls", "-la"] })).toBe("shell: ls -la");
  });

  it("survives data of another shape", () => {
    for (const type of ["agent.message", "agent.tool_use", "agent.failed", "approval.requested", "sandbox.failed", "setup.failed"]) {
      expect(() => describeStep(event(type, { text: 5, tool: null, input: [1], error: {}, reason: 7 }))).not.toThrow();
    }
  });

  it("ignores events that are no step", () => {
    expect(describeStep(event("agent.usage", {}))).toBeNull();
    expect(describeStep(event("custom.thing", {}))).toBeNull();
  });
});
