import { useSyncExternalStore } from "react";
import { readStored, writeStored } from "./stored";

const NAME = "seen";
const MAX_ENTRIES = 300;
const listeners = new Set<() => void>();
let seen = parse(readStored(NAME));

function parse(text: string | null): Record<string, number> {
  try {
    const value: unknown = JSON.parse(text ?? "{}");
    if (typeof value !== "object" || value === null) return {};
    return Object.fromEntries(Object.entries(value).filter((entry): entry is [string, number] => typeof entry[1] === "number"));
  } catch {
    return {};
  }
}

/** Records the newest event of a sandbox that was on the screen. */
export function markSeen(id: string, seq: number): void {
  if (document.hidden || (seen[id] ?? 0) >= seq) return;
  const entries = Object.entries({ ...seen, [id]: seq }).sort(([a], [b]) => (a < b ? -1 : 1));
  seen = Object.fromEntries(entries.slice(-MAX_ENTRIES));
  writeStored(NAME, JSON.stringify(seen));
  for (const listener of listeners) listener();
}

/** The sandbox has events that this browser has not shown, since it last showed the sandbox. */
export function useIsUnread(id: string, lastSeq: number): boolean {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => seen[id] !== undefined && seen[id] < lastSeq,
  );
}
