import type { Abilities, Delivery, Sandbox } from "@/api/types";
import { hasEnded, isInTurn } from "@/sandboxes/status";

/** What the send button and Enter do now, and why. */
export interface SendPlan {
  label: "Send" | "Steer" | "Queue" | "Continue";
  delivery: Delivery;
  hint: string;
  /** Alt+Enter queues for after the turn. */
  canQueue: boolean;
  canInterrupt: boolean;
  /** The sandbox has ended: the message starts the session's next one. */
  startsSandbox: boolean;
  /** No message can be sent now. */
  blocked: string | null;
}

/** Derives what the composer does from the sandbox's state and the agent's abilities. */
export function planSend(sandbox: Sandbox, abilities: Abilities | null): SendPlan {
  const base: SendPlan = { label: "Send", delivery: "steer", hint: "", canQueue: false, canInterrupt: false, startsSandbox: false, blocked: null };
  if (hasEnded(sandbox)) {
    return { ...base, label: "Continue", startsSandbox: true, hint: "The sandbox has ended. Your message starts the session's next sandbox." };
  }
  if (sandbox.state === "completing") {
    return { ...base, blocked: "The sandbox ends. Wait until its results are exported, then continue the session." };
  }
  if (sandbox.agent == null && sandbox.provider !== "external") return { ...base, blocked: "This sandbox has no agent." };
  if (sandbox.state !== "running" || sandbox.activity === "starting") {
    return { ...base, label: "Queue", hint: "The agent gets it when it has started." };
  }
  if (sandbox.activity === "paused") return { ...base, label: "Queue", hint: "The agent gets it when you resume the sandbox." };
  if (sandbox.activity === "limit_paused") return { ...base, label: "Queue", hint: "The agent gets it when you raise the limit." };
  if (!isInTurn(sandbox)) return { ...base, hint: "The agent waits for a message." };
  const canInterrupt = abilities?.interrupt ?? true;
  if (abilities !== null && !abilities.steer) {
    return { ...base, label: "Queue", delivery: "queue", canQueue: true, canInterrupt, hint: "This agent takes messages only between turns." };
  }
  return { ...base, label: "Steer", canQueue: true, canInterrupt, hint: "The agent gets it during its turn, without an interrupt." };
}
