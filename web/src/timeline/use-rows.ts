import { useEffect, useMemo, useRef, useState } from "react";
import type { StoredEvent } from "@/api/types";
import type { EventLog } from "@/events/event-log";
import { TimelineBuilder } from "./builder";
import { groupRows, type DisplayRow, type TimelineRow } from "./rows";

interface BuiltRows {
  builder: TimelineBuilder;
  rows: readonly TimelineRow[];
  display: readonly DisplayRow[];
}

/** More events than this are built in slices, so that the page stays responsive. */
const MAX_SYNC_EVENTS = 1_500;
const SLICE_EVENTS = 1_000;

function finish(builder: TimelineBuilder, before: BuiltRows | null): BuiltRows {
  return { builder, rows: builder.rows, display: groupRows(builder.rows, before?.display) };
}

function canExtend(built: BuiltRows, events: readonly StoredEvent[]): boolean {
  return built.builder.firstSeq === (events[0]?.seq ?? null) && built.builder.lastSeq <= (events.at(-1)?.seq ?? 0);
}

/** The index of the first event after a seq. Seqs ascend. */
function findNext(events: readonly StoredEvent[], seq: number): number {
  let next = events.length;
  while (next > 0 && (events[next - 1]?.seq ?? 0) > seq) next -= 1;
  return next;
}

/** The rows of a log. New events extend the rows; an older page, or an earlier position of a replay, builds them again. */
export function useTimelineRows(log: Pick<EventLog, "events">): BuiltRows {
  const built = useRef<BuiltRows | null>(null);
  const [sliced, setSliced] = useState<BuiltRows | null>(null);
  const events = log.events;

  const rows = useMemo(() => {
    // A finished slice-wise build replaces the rows.
    if (sliced !== null && sliced !== built.current && canExtend(sliced, events)) built.current = sliced;
    const before = built.current;
    if (before !== null && canExtend(before, events)) {
      const first = findNext(events, before.builder.lastSeq);
      if (events.length - first <= MAX_SYNC_EVENTS) before.builder.add(events.slice(first));
      if (before.builder.rows !== before.rows) built.current = finish(before.builder, before);
    } else if (before === null || events.length <= MAX_SYNC_EVENTS) {
      // Of a long log, the newest rows come first.
      const builder = new TimelineBuilder();
      builder.add(events.slice(-MAX_SYNC_EVENTS));
      built.current = finish(builder, before);
    }
    return built.current;
  }, [events, sliced]);

  const isStale = rows !== null && (!canExtend(rows, events) || rows.builder.lastSeq !== (events.at(-1)?.seq ?? 0));
  const firstSeq = events[0]?.seq ?? null;
  const lastSeq = events.at(-1)?.seq ?? null;
  const latest = useRef(events);
  useEffect(() => {
    latest.current = events;
  });
  // New events do not restart the build: they extend its result. An end before the rows' end does.
  const isRewound = rows !== null && lastSeq !== null && lastSeq < rows.builder.lastSeq;
  const rewoundTo = isRewound ? lastSeq : null;
  useEffect(() => {
    if (!isStale) return;
    const events = latest.current;
    const builder = new TimelineBuilder();
    let next = 0;
    let timer = setTimeout(function build() {
      builder.add(events.slice(next, next + SLICE_EVENTS));
      next += SLICE_EVENTS;
      if (next < events.length) timer = setTimeout(build);
      else setSliced(finish(builder, built.current));
    });
    return () => { clearTimeout(timer); };
  }, [isStale, firstSeq, rewoundTo]);

  return rows ?? EMPTY;
}

const EMPTY: BuiltRows = { builder: new TimelineBuilder(), rows: [], display: [] };
