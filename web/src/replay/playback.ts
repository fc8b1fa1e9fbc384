import type { StoredEvent } from "@/api/types";

/** Longer pauses of the run are shortened to this, before the speed applies. */
export const MAX_PAUSE_MS = 3_000;

/** The events of a run on a time line without long pauses. */
export interface Playback {
  events: readonly StoredEvent[];
  /** Position of each event, in milliseconds from the start. */
  offsets: readonly number[];
  duration: number;
}

export function createPlayback(events: readonly StoredEvent[]): Playback {
  const offsets: number[] = [];
  let at = 0;
  let before: number | null = null;
  for (const event of events) {
    const time = Date.parse(event.at);
    // Clocks of worker and server differ: time never runs backwards.
    if (before !== null && time > before) at += Math.min(time - before, MAX_PAUSE_MS);
    if (!Number.isNaN(time)) before = before === null ? time : Math.max(before, time);
    offsets.push(at);
  }
  return { events, offsets, duration: at };
}

/** The number of events that have happened at a position. */
export function countAt({ offsets }: Playback, position: number): number {
  let low = 0;
  let high = offsets.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if ((offsets[middle] ?? 0) <= position) low = middle + 1;
    else high = middle;
  }
  return low;
}

export type MarkKind = "turn" | "approval" | "problem" | "end";

export interface PlaybackMark {
  position: number;
  kind: MarkKind;
  label: string;
}

/** Points of the run that people look for. */
export function findMarks({ events, offsets }: Playback): PlaybackMark[] {
  return events.flatMap((event, index) => {
    const mark = markOf(event.type);
    return mark === null ? [] : [{ position: offsets[index] ?? 0, ...mark }];
  });
}

function markOf(type: string): Omit<PlaybackMark, "position"> | null {
  switch (type) {
    case "agent.started":
      return { kind: "turn", label: "Turn" };
    case "approval.requested":
      return { kind: "approval", label: "Approval" };
    case "agent.failed":
    case "agent.error":
    case "agent.interrupted":
    case "guardian.denied":
    case "sandbox.failed":
      return { kind: "problem", label: "Problem" };
    case "sandbox.completed":
      return { kind: "end", label: "End" };
    default:
      return null;
  }
}
