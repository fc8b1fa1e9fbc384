import type { StoredEvent } from "@/api/types";
import type { LiveText } from "./event-log";

/** A longer text shows only its end until its event arrives. */
const MAX_LIVE_CHARACTERS = 64_000;

export const NO_LIVE_TEXT: LiveText = { text: "", thinking: "", afterSeq: 0 };

/** Adds a piece of text that the agent is writing. A piece from before the finished text belongs to that text. */
export function addLiveData(live: LiveText, afterSeq: number, data: Record<string, unknown>): LiveText {
  if (afterSeq < live.afterSeq) return live;
  const text = typeof data.text === "string" ? data.text : "";
  const thinking = typeof data.thinking === "string" ? data.thinking : "";
  if (text === "" && thinking === "") return live;
  return {
    text: (live.text + text).slice(-MAX_LIVE_CHARACTERS),
    thinking: (live.thinking + thinking).slice(-MAX_LIVE_CHARACTERS),
    afterSeq: live.afterSeq,
  };
}

/** The event holds the finished text, or the agent does something else now. */
export function isFinishedBy(event: StoredEvent): boolean {
  switch (event.type) {
    case "agent.message":
    case "agent.tool_use":
    case "agent.started":
    case "agent.interrupted":
    case "agent.completed":
    case "agent.failed":
      return true;
    default:
      return false;
  }
}
