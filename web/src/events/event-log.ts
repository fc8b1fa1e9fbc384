import type { StoredEvent } from "@/api/types";

/** Loaded pages above this size are dropped from the oldest on; scrolling up loads them again. */
export const MAX_LOG_BYTES = 32 * 1024 * 1024;

/** Where the events before a loaded page can be fetched again. */
interface PageBoundary {
  firstSeq: number;
  olderCursor: string | null;
}

/** What the page knows about text that the agent is writing. */
export interface LiveText {
  text: string;
  thinking: string;
  afterSeq: number;
}

/**
 * The loaded part of one sandbox's event log: contiguous, each event once.
 *
 * `events` is replaced on each change, so that React can compare it.
 */
export interface EventLog {
  readonly events: readonly StoredEvent[];
  readonly isLoaded: boolean;
  readonly lastSeq: number;
  /** Cursor of the page before the first loaded event. */
  readonly olderCursor: string | null;
  /** Retention has removed the events before this one. */
  readonly truncatedBefore: number | null;
  /** The server has skipped ahead and sends these events again: a gap is being filled. */
  readonly isFillingGap: boolean;
  readonly boundaries: readonly PageBoundary[];
  readonly bytes: number;
}

export const EMPTY_LOG: EventLog = {
  events: [],
  isLoaded: false,
  lastSeq: 0,
  olderCursor: null,
  truncatedBefore: null,
  isFillingGap: false,
  boundaries: [],
  bytes: 0,
};

export interface AppendResult {
  log: EventLog;
  applied: StoredEvent[];
  /** An event is missing before the remaining ones: the reader must resume from `log.lastSeq`. */
  hasGap: boolean;
}

/** Appends events that follow the log; drops those it has; stops at a gap. */
export function appendEvents(log: EventLog, events: readonly StoredEvent[]): AppendResult {
  const applied: StoredEvent[] = [];
  let lastSeq = log.lastSeq;
  let hasGap = false;
  for (const event of events) {
    if (event.seq <= lastSeq) continue;
    if (event.seq !== lastSeq + 1) {
      hasGap = true;
      break;
    }
    applied.push(event);
    lastSeq = event.seq;
  }
  if (applied.length === 0) {
    return { log: hasGap === log.isFillingGap ? log : { ...log, isFillingGap: hasGap }, applied, hasGap };
  }
  const bytes = log.bytes + sizeOf(applied);
  const next: EventLog = { ...log, events: [...log.events, ...applied], lastSeq, bytes, isFillingGap: hasGap };
  return { log: dropOldPages(next), applied, hasGap };
}

/** Starts the log with its newest page. */
export function loadNewest(page: readonly StoredEvent[], olderCursor: string | null, lastSeq: number): EventLog {
  const firstSeq = page[0]?.seq ?? lastSeq + 1;
  return {
    ...EMPTY_LOG,
    events: page,
    isLoaded: true,
    lastSeq: page.at(-1)?.seq ?? lastSeq,
    olderCursor,
    boundaries: [{ firstSeq, olderCursor }],
    bytes: sizeOf(page),
  };
}

/** Puts an older page before the loaded events. */
export function prependPage(log: EventLog, page: readonly StoredEvent[], olderCursor: string | null): EventLog {
  const firstSeq = log.events[0]?.seq ?? log.lastSeq + 1;
  const older = page.filter((event) => event.seq < firstSeq);
  const boundary = { firstSeq: older[0]?.seq ?? firstSeq, olderCursor };
  return {
    ...log,
    events: [...older, ...log.events],
    olderCursor,
    boundaries: [boundary, ...log.boundaries],
    bytes: log.bytes + sizeOf(older),
  };
}

/** Records that retention removed the events before `firstSeq`; the log continues there. */
export function truncateLog(log: EventLog, firstSeq: number): EventLog {
  const resumesAt = Math.max(log.lastSeq, firstSeq - 1);
  return { ...log, truncatedBefore: firstSeq, lastSeq: resumesAt };
}

/** Drops whole pages from the oldest on, while the log is over its limit. A dropped page can be fetched again. */
function dropOldPages(log: EventLog): EventLog {
  let { boundaries, bytes } = log;
  let start = 0;
  while (bytes > MAX_LOG_BYTES && boundaries.length > 1) {
    const next = boundaries[1];
    if (next === undefined) break;
    const end = log.events.findIndex((event) => event.seq >= next.firstSeq);
    if (end < 0) break;
    bytes -= sizeOf(log.events.slice(start, end));
    start = end;
    boundaries = boundaries.slice(1);
  }
  if (start === 0) return log;
  return { ...log, events: log.events.slice(start), boundaries, bytes, olderCursor: boundaries[0]?.olderCursor ?? null };
}

/** Estimates the memory that events need: the length of their texts. */
export function sizeOf(events: readonly StoredEvent[]): number {
  return events.reduce((sum, event) => sum + 200 + textSize(event.data), 0);
}

function textSize(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 8;
  return Object.values(value).reduce<number>((sum, part) => sum + textSize(part), 0);
}
