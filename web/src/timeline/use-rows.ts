import { useMemo, useRef } from "react";
import type { EventLog } from "@/events/event-log";
import { TimelineBuilder } from "./builder";
import { groupRows, type DisplayRow, type TimelineRow } from "./rows";

interface BuiltRows {
  builder: TimelineBuilder;
  rows: readonly TimelineRow[];
  display: readonly DisplayRow[];
}

/** The rows of a log. New events extend the rows; an older page builds them again. */
export function useTimelineRows(log: Pick<EventLog, "events">): BuiltRows {
  const built = useRef<BuiltRows | null>(null);
  return useMemo(() => {
    const firstSeq = log.events[0]?.seq ?? null;
    const before = built.current;
    const canExtend = before !== null && before.builder.firstSeq === firstSeq && before.builder.lastSeq <= (log.events.at(-1)?.seq ?? 0);
    const builder = canExtend ? before.builder : new TimelineBuilder();
    builder.add(log.events);
    if (canExtend && builder.rows === before.rows) return before;
    const next: BuiltRows = { builder, rows: builder.rows, display: groupRows(builder.rows, before?.display) };
    built.current = next;
    return next;
  }, [log.events]);
}
