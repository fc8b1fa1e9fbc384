import { expect, it } from "vitest";
import { formatComments, type LineComment } from "./comments";

const comment = (path: string, line: number, text: string, more: Partial<LineComment> = {}): LineComment => ({
  id: text, path, line, isRemoved: false, quote: "  let x = 1;", text, isSent: false, ...more,
});

it("writes all comments as one message, in the order of the files", () => {
  const message = formatComments([comment("b.rs", 2, "second"), comment("a.rs", 9, "first", { isRemoved: true, quote: "" })]);
  expect(message).toBe(
    "2 review comments on your changes:\n\na.rs:9 (removed line)\nfirst\n\nb.rs:2\n> let x = 1;\nsecond",
  );
});
