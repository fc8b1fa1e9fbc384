import type { Limit, Sandbox } from "@/api/types";

export type StatusGroup = "needs_you" | "working" | "waiting" | "done";

export type StatusIcon =
  | "approval" | "limit" | "stalled" | "unreachable"
  | "working"
  | "message" | "rate" | "paused"
  | "succeeded" | "cancelled" | "failed";

export interface Status {
  group: StatusGroup;
  icon: StatusIcon;
  /** The state in one or two words. */
  word: string;
  /** A sentence with the reason, where there is one. */
  detail: string | null;
}

export const GROUP_TITLES: Record<StatusGroup, string> = {
  needs_you: "Needs you",
  working: "Working",
  waiting: "Waiting",
  done: "Done",
};

const LIMIT_WORDS: Record<Limit, string> = {
  turns: "turns",
  cost_usd: "cost",
  turn_s: "time of a turn",
  no_progress_s: "time without progress",
  project_budget: "project budget",
};

export function limitWord(limit: Limit): string {
  return LIMIT_WORDS[limit];
}

type StatusFields = Pick<Sandbox, "state" | "activity" | "outcome" | "reason" | "limit_paused" | "rate_limited_until">;

/** Derives what people see of a sandbox's state from its row. */
export function statusOf(sandbox: StatusFields): Status {
  const detail = sandbox.reason?.detail ?? null;
  switch (sandbox.state) {
    case "pending":
    case "creating":
      return { group: "working", icon: "working", word: "Starting", detail };
    case "completing":
      return { group: "working", icon: "working", word: "Taking results", detail };
    case "completed":
      if (sandbox.outcome === "cancelled") return { group: "done", icon: "cancelled", word: "Cancelled", detail };
      if (sandbox.outcome === "failed") return { group: "done", icon: "failed", word: "Failed", detail };
      return { group: "done", icon: "succeeded", word: "Done", detail };
    case "failed":
      return { group: "done", icon: "failed", word: "Failed", detail };
    case "running":
      return runningStatus(sandbox);
  }
}

function runningStatus(sandbox: StatusFields): Status {
  switch (sandbox.activity) {
    case "starting":
      return { group: "working", icon: "working", word: "Starting", detail: null };
    case "working":
      return { group: "working", icon: "working", word: "Working", detail: null };
    case "taking_results":
      return { group: "working", icon: "working", word: "Taking results", detail: null };
    case "waiting_approval":
      return { group: "needs_you", icon: "approval", word: "Approval", detail: "The agent waits for your decision." };
    case "limit_paused": {
      const limit = sandbox.limit_paused == null ? "a limit" : `the limit on ${limitWord(sandbox.limit_paused)}`;
      return { group: "needs_you", icon: "limit", word: "Limit reached", detail: `Paused by ${limit}. Raise it to continue.` };
    }
    case "stalled":
      return { group: "needs_you", icon: "stalled", word: "Stalled", detail: "The agent makes no progress. Send it a message or interrupt it." };
    case "unreachable":
      return { group: "needs_you", icon: "unreachable", word: "Unreachable", detail: "The worker sends no heartbeat. Its events arrive when it is back." };
    case "waiting_message":
      return { group: "waiting", icon: "message", word: "Waiting for a message", detail: null };
    case "rate_limited":
      return { group: "waiting", icon: "rate", word: "Rate limited", detail: "The model asked the agent to wait." };
    case "paused":
      return { group: "waiting", icon: "paused", word: "Paused", detail: "Resume it to continue." };
    case "ended":
      return { group: "done", icon: "succeeded", word: "Ended", detail: null };
  }
}

export function hasEnded(sandbox: Pick<Sandbox, "state">): boolean {
  return sandbox.state === "completed" || sandbox.state === "failed";
}

/** The agent works on a turn, so a message can steer it. */
export function isInTurn(sandbox: Pick<Sandbox, "state" | "activity">): boolean {
  if (sandbox.state !== "running") return false;
  switch (sandbox.activity) {
    case "working":
    case "waiting_approval":
    case "stalled":
    case "rate_limited":
    case "unreachable":
      return true;
    case "starting":
    case "waiting_message":
    case "paused":
    case "limit_paused":
    case "taking_results":
    case "ended":
      return false;
  }
}
