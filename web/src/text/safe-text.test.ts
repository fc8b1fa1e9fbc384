import { describe, expect, it } from "vitest";
import { hasDeceptive, safeUrl, splitDeceptive } from "./safe-text";

describe("splitDeceptive", () => {
  it("marks direction overrides, invisible characters and control characters", () => {
    expect(splitDeceptive("a\u202eb")).toEqual([
      { text: "a", mark: null },
      { text: "\u202e", mark: "U+202E" },
      { text: "b", mark: null },
    ]);
    for (const character of ["\u200b", "\u2066", "\u001b", "\u{e0041}"]) expect(hasDeceptive(character)).toBe(true);
  });

  it("leaves ordinary text, lines, tabs, scripts and emoji alone", () => {
    expect(hasDeceptive("tab\tand\nline, שלום, 日本語, ❤️")).toBe(false);
  });
});

describe("safeUrl", () => {
  it("allows only web addresses", () => {
    expect(safeUrl("https://example.org/a")).toBe("https://example.org/a");
    for (const url of ["javascript:alert(1)", "data:text/html,x", "file:///etc/passwd", "/relative", "https://a:b@example.org"]) {
      expect(safeUrl(url)).toBeNull();
    }
  });
});
