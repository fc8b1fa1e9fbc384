import { expect, it } from "vitest";
import { parseMetrics, rate, total } from "./metrics";

const TEXT = `# HELP atoll_readers x
atoll_readers 3
atoll_jobs_done_total{kind="create"} 2
atoll_jobs_done_total{kind="export"} 5
nonsense line here
`;

it("reads samples and sums over labels", () => {
  const values = parseMetrics(TEXT);
  expect(values.get("atoll_readers")).toBe(3);
  expect(total(values, "atoll_jobs_done_total")).toBe(7);
  expect(total(values, "atoll_jobs")).toBe(0);
});

it("has no rate over a restart", () => {
  const sample = (at: number, value: number) => ({ at, values: new Map([["a", value]]) });
  expect(rate(sample(0, 10), sample(2000, 30), "a")).toBe(10);
  expect(rate(sample(0, 10), sample(2000, 3), "a")).toBeNull();
});
