import { describe, expect, it } from "vitest";
import type { StoredEvent } from "@/api/types";
import { appendEvents, EMPTY_LOG, loadNewest, MAX_LOG_BYTES, prependPage, truncateLog } from "./event-log";

function event(seq: number, text = "x"): StoredEvent {
  const at = "2026-01-01T00:00:00Z";
  return { id: `e${seq}`, sandbox_id: "sbx_1", seq, type: "agent.message", source: "agent", at, received_at: at, data: { text } };
}
const events = (from: number, to: number): StoredEvent[] =>
  Array.from({ length: to - from + 1 }, (_, index) => event(from + index));

describe("appendEvents", () => {
  it("drops events that the log has", () => {
    const log = loadNewest(events(1, 5), null, 5);
    const { log: next, applied } = appendEvents(log, events(3, 7));
    expect(applied.map((one) => one.seq)).toEqual([6, 7]);
    expect(next.events.map((one) => one.seq)).toEqual([1, 2, 3, 4, 5, 6, 7]);
  });

  it("stops at a gap and reports it", () => {
    const log = loadNewest(events(1, 5), null, 5);
    const { log: next, applied, hasGap } = appendEvents(log, [event(6), event(8)]);
    expect(applied).toHaveLength(1);
    expect(hasGap).toBe(true);
    expect(next.lastSeq).toBe(6);
    expect(next.isFillingGap).toBe(true);
    expect(appendEvents(next, events(6, 9)).log).toMatchObject({ lastSeq: 9, isFillingGap: false });
  });

  it("keeps its identity if nothing changes", () => {
    const log = loadNewest(events(1, 5), null, 5);
    expect(appendEvents(log, events(1, 5)).log).toBe(log);
  });

  it("drops the oldest page over the size limit and can fetch it again", () => {
    const big = "x".repeat(MAX_LOG_BYTES / 2);
    let log = loadNewest([event(11, big)], "older-than-11", 11);
    log = prependPage(log, [event(10, big)], "older-than-10");
    const { log: next } = appendEvents(log, [event(12, "small")]);
    expect(next.events.map((one) => one.seq)).toEqual([11, 12]);
    expect(next.olderCursor).toBe("older-than-11");
  });
});

describe("truncateLog", () => {
  it("continues at the first event that retention kept", () => {
    const log = truncateLog({ ...EMPTY_LOG, isLoaded: true, lastSeq: 3 }, 10);
    expect(appendEvents(log, events(10, 12)).log.lastSeq).toBe(12);
  });
});
