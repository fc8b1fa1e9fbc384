import { expect, it } from "vitest";
import { sumLines } from "./use-line-counts";

it("sums the lines of files, and ignores data of another shape", () => {
  const files = [{ path: "a", added: 4, removed: 1 }, { path: "b", added: 2, removed: 0 }, { path: "image.png" }, null, "c"];
  expect(sumLines(files, "2026-01-01T00:00:00Z")).toEqual({ added: 6, removed: 1, at: "2026-01-01T00:00:00Z" });
});
