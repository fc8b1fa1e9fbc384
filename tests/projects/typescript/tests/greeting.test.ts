import { expect, test } from "vitest";
import { greet } from "../src/greeting";

test("greets by name", () => {
  expect(greet("Ada")).toBe("Hello, Ada!");
});
