import { expect, it } from "vitest";
import type { StoredEvent } from "@/api/types";
import { countAt, createPlayback, findMarks, MAX_PAUSE_MS } from "./playback";

const event = (seq: number, at: string, type = "agent.message"): StoredEvent => ({
  id: `e${seq}`, sandbox_id: "sbx_1", seq, type, source: "agent", at, received_at: at, data: {},
});

const playback = createPlayback([
  event(1, "2026-01-01T00:00:00Z", "agent.started"),
  event(2, "2026-01-01T00:00:01Z"),
  event(3, "2026-01-01T00:00:00Z"),
  event(4, "2026-01-01T01:00:00Z", "sandbox.completed"),
]);

it("shortens long pauses and never runs backwards", () => {
  expect(playback.offsets).toEqual([0, 1000, 1000, 1000 + MAX_PAUSE_MS]);
});

it("finds what has happened at a position", () => {
  expect([-1, 0, 999, 1000, 99_999].map((position) => countAt(playback, position))).toEqual([0, 1, 1, 3, 4]);
});

it("marks turns and the end", () => {
  expect(findMarks(playback).map(({ kind, position }) => [kind, position])).toEqual([["turn", 0], ["end", 1000 + MAX_PAUSE_MS]]);
});
