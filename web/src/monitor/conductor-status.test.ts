import { expect, it } from "vitest";
import { phaseCounts, shownAnomaly } from "./conductor-status";

it("lists the most frequent phase first", () => {
  expect(phaseCounts({ editing: 1, testing: 3, waiting: 1 })).toBe("3 testing, 1 editing, 1 waiting");
  expect(phaseCounts({})).toBe("");
});

it("shows how long an anomaly lasts", () => {
  expect(shownAnomaly({ score: 0.1, in_a_row: 0 })).toBe("0.10");
  expect(shownAnomaly({ score: 0.456, in_a_row: 3 })).toBe("0.46, 3 in a row");
});
