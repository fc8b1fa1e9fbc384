import { expect, it } from "vitest";
import { readSignInLink } from "./sign-in-link";

it("opens only pages of this origin", () => {
  expect(readSignInLink("#code=abc&to=%2Fsandboxes%2Fsbx_1")).toEqual({ code: "abc", to: "/sandboxes/sbx_1" });
  for (const to of ["//evil.example", "/\\evil.example", "https://evil.example", "javascript:alert(1)", "/sign-in"]) {
    expect(readSignInLink(`#code=abc&to=${encodeURIComponent(to)}`).to).toBe("/");
  }
  expect(readSignInLink("")).toEqual({ code: null, to: "/" });
});
