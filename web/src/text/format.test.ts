import { expect, it } from "vitest";
import { firstLine, formatAge, formatBytes, formatCost, formatCount, formatDuration, plural } from "./format";

it("formats durations and ages", () => {
  expect(formatDuration(12_400)).toBe("12 s");
  expect(formatDuration(3 * 3_600_000 + 5 * 60_000)).toBe("3 h 5 min");
  expect(formatDuration(50 * 3_600_000)).toBe("2 d");
  const now = Date.parse("2026-01-02T00:00:00Z");
  expect(formatAge("2026-01-01T23:59:58Z", now)).toBe("now");
  expect(formatAge("2026-01-01T22:30:00Z", now)).toBe("1 h ago");
});

it("formats amounts", () => {
  expect(formatCost(0.004)).toBe("< $0.01");
  expect(formatCost(1.5)).toBe("$1.50");
  expect(formatBytes(1500)).toBe("1.5 kB");
  expect(formatBytes(999_999)).toBe("1.0 MB");
  expect(formatCount(12_345)).toBe("12k");
  expect(plural(1, "file")).toBe("1 file");
  expect(plural(2, "reply", "replies")).toBe("2 replies");
});

it("shortens to one line", () => {
  expect(firstLine("\n one \ntwo")).toBe("one");
  expect(firstLine("x".repeat(10), 5)).toBe("xxxx…");
});
