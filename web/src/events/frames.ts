import type { StoredEvent } from "@/api/types";

/** A frame of the server on `/events/ws`. */
export type EventsFrame =
  | { type: "events"; events: StoredEvent[] }
  | { type: "live"; sandbox_id: string; after_seq: number; data: Record<string, unknown> }
  | { type: "caught_up"; sandbox_id: string; seq: number }
  | { type: "lagged"; resume: Record<string, number> }
  | { type: "truncated"; sandbox_id: string; first_seq: number }
  | { type: "ping" }
  | { type: "problem"; code: string; detail: string };

/** Parses a frame; `null` for a frame of a newer server. */
export function parseFrame(text: string): EventsFrame | null {
  let frame: unknown;
  try {
    frame = JSON.parse(text);
  } catch {
    return null;
  }
  if (typeof frame !== "object" || frame === null || !("type" in frame)) return null;
  switch (frame.type) {
    case "events":
    case "live":
    case "caught_up":
    case "lagged":
    case "truncated":
    case "ping":
    case "problem":
      return frame as EventsFrame;
    default:
      return null;
  }
}
