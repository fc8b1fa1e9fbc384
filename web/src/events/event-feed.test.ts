import { afterEach, beforeEach, expect, it, vi } from "vitest";
import type { StoredEvent } from "@/api/types";
import { EventFeed, type EventPage } from "./event-feed";

/** A WebSocket whose server side the test plays. */
class FakeSocket {
  static readonly OPEN = 1;
  static all: FakeSocket[] = [];
  readyState = 0;
  sent: { type: string; since?: Record<string, number> }[] = [];
  onopen: (() => void) | null = null;
  onmessage: ((message: { data: string }) => void) | null = null;
  onclose: (() => void) | null = null;

  constructor() {
    FakeSocket.all.push(this);
  }

  send(text: string): void {
    this.sent.push(JSON.parse(text) as { type: string });
  }

  close(): void {
    this.readyState = 3;
    this.onclose?.();
  }

  open(): void {
    this.readyState = 1;
    this.onopen?.();
  }

  receive(frame: object): void {
    this.onmessage?.({ data: JSON.stringify(frame) });
  }
}

const AT = "2026-01-01T00:00:00Z";
const event = (seq: number, id = "sbx_1"): StoredEvent => ({ id: `${id}-${seq}`, sandbox_id: id, seq, type: "agent.message", source: "agent", at: AT, received_at: AT, data: { text: `${seq}` } });
const range = (from: number, to: number): StoredEvent[] => Array.from({ length: to - from + 1 }, (_, index) => event(from + index));
const seqs = (feed: EventFeed, id = "sbx_1"): number[] => feed.getLog(id).events.map(({ seq }) => seq);

let page: EventPage;
let feed: EventFeed;
const socket = (): FakeSocket => FakeSocket.all.at(-1) ?? new FakeSocket();

beforeEach(() => {
  vi.useFakeTimers();
  vi.stubGlobal("WebSocket", FakeSocket);
  FakeSocket.all = [];
  page = { events: range(1, 3), olderCursor: null };
  feed = new EventFeed("ws://test/", () => Promise.resolve(page));
  feed.start();
  socket().open();
});
afterEach(() => {
  feed.stop();
  vi.useRealTimers();
  vi.unstubAllGlobals();
});

const settle = () => vi.advanceTimersByTimeAsync(0);

it("joins the first page with events that arrive while it loads", async () => {
  feed.openLog("sbx_1");
  socket().receive({ type: "events", events: range(2, 5) });
  await settle();
  expect(seqs(feed)).toEqual([1, 2, 3, 4, 5]);
  expect(socket().sent.at(-1)?.since).toEqual({ sbx_1: 5 });
});

it("resumes after a lost connection from the last applied event, without a repeat", async () => {
  feed.openLog("sbx_1");
  await settle();
  socket().close();
  expect(feed.getConnection().state).toBe("offline");
  await vi.advanceTimersByTimeAsync(1_000);
  socket().open();
  expect(FakeSocket.all).toHaveLength(2);
  expect(socket().sent.at(-1)?.since).toEqual({ sbx_1: 3 });
  socket().receive({ type: "events", events: range(2, 6) });
  expect(seqs(feed)).toEqual([1, 2, 3, 4, 5, 6]);
  expect(feed.getConnection().state).toBe("live");
});

it("asks for missing events instead of showing a log with a gap", async () => {
  feed.openLog("sbx_1");
  await settle();
  const requests = socket().sent.length;
  socket().receive({ type: "events", events: range(6, 7) });
  expect(seqs(feed)).toEqual([1, 2, 3]);
  expect(feed.getLog("sbx_1").isFillingGap).toBe(true);
  expect(socket().sent.slice(requests)).toMatchObject([{ type: "subscribe", since: { sbx_1: 3 } }]);
  socket().receive({ type: "events", events: range(4, 7) });
  expect(seqs(feed)).toEqual([1, 2, 3, 4, 5, 6, 7]);
});

it("reports each event of other sandboxes once", () => {
  const reported: number[] = [];
  feed.onEvents((_, events) => reported.push(...events.map(({ seq }) => seq)));
  feed.noteRow("sbx_2", 4);
  socket().receive({ type: "events", events: [event(4, "sbx_2"), event(5, "sbx_2")] });
  socket().receive({ type: "events", events: [event(5, "sbx_2"), event(6, "sbx_2")] });
  expect(reported).toEqual([5, 6]);
});

it("shows live text until the event with the whole text arrives", async () => {
  feed.openLog("sbx_1");
  await settle();
  socket().receive({ type: "live", sandbox_id: "sbx_1", after_seq: 3, data: { text: "Hel" } });
  socket().receive({ type: "live", sandbox_id: "sbx_1", after_seq: 3, data: { text: "lo" } });
  expect(feed.getLive("sbx_1").text).toBe("Hello");
  socket().receive({ type: "events", events: [event(4)] });
  expect(feed.getLive("sbx_1").text).toBe("");
});

it("closes a connection that is silent for too long", async () => {
  await vi.advanceTimersByTimeAsync(60_000);
  expect(FakeSocket.all.length).toBeGreaterThan(1);
});
