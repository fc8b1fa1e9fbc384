import { describe, expect, it } from "vitest";
import { checkNumbers, EMPTY_FORM, toRequest } from "./request";

describe("toRequest", () => {
  it("leaves out what is empty, so that defaults apply", () => {
    expect(toRequest({ ...EMPTY_FORM, prompt: "fix it" })).toEqual({ prompt: "fix it", end: "when_done" });
    expect(toRequest(EMPTY_FORM)).toEqual({ end: "keep" });
  });

  it("tells paths from URLs", () => {
    expect(toRequest({ ...EMPTY_FORM, repository: "/srv/a", base: "main" }).repo).toEqual({ path: "/srv/a", base: "main" });
    expect(toRequest({ ...EMPTY_FORM, repository: "https://example.org/a.git" }).repo).toEqual({ url: "https://example.org/a.git" });
  });

  it("reads lists and numbers", () => {
    const form = { ...EMPTY_FORM, network: "allow", hosts: "a.org, b.org", turns: "5", cost: "1.5", checks: "make test\n\nmake lint" };
    expect(toRequest(form)).toMatchObject({
      network: { policy: "allow", allow: ["a.org", "b.org"] },
      limits: { turns: 5, cost_usd: 1.5 },
      continuous: { enabled: true, checks: ["make test", "make lint"] },
    });
  });
});

it("reports numbers that make no sense", () => {
  expect(checkNumbers({ ...EMPTY_FORM, turns: "-1" })).toContain("Turns");
  expect(checkNumbers({ ...EMPTY_FORM, cost: "0.5" })).toBeNull();
});
