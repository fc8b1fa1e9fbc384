import { expect, it } from "vitest";
import type { StoredEvent } from "@/api/types";
import { startSteps } from "./start-progress";

const events = (...types: string[]): StoredEvent[] =>
  types.map((type, index) => ({ id: type, sandbox_id: "sbx_1", seq: index + 1, type, source: "system", at: "", received_at: "", data: {} }));

it("names the running step, and the step that failed", () => {
  const settings = { repo: { path: "/srv/a" } };
  const running = startSteps(events("sandbox.pending", "git.cloned"), { state: "creating", settings, agent: "demo" });
  expect(running.map(({ label, state }) => `${label}: ${state}`)).toEqual([
    "Request stored: done", "Sandbox created: done", "Repository copied: done", "Worker started: running", "Agent started: open",
  ]);
  const failed = startSteps(events("git.cloned", "setup.started", "setup.failed"), { state: "failed", settings, agent: "demo" });
  expect(failed.find(({ label }) => label === "Set-up")?.state).toBe("failed");
});
