import { describe, expect, it } from "vitest";
import { parsePatch, splitRows } from "./patch";

const PATCH = `diff --git a/src/a.rs b/src/a.rs
index 111..222 100644
--- a/src/a.rs
+++ b/src/a.rs
@@ -1,3 +1,4 @@ fn main
 one
-two
--- dashes
+2
++++ pluses
+three
\\ No newline at end of file
diff --git a/old name b/new
similarity index 100%
rename from old name
rename to new
diff --git "a/sp\\303\\244t" "b/sp\\303\\244t"
--- /dev/null
+++ "b/sp\\303\\244t"
@@ -0,0 +1 @@
+x
`;

describe("parsePatch", () => {
  const [first, second, third] = parsePatch(PATCH);

  it("numbers lines, and takes lines that look like headers as content", () => {
    expect(first?.path).toBe("src/a.rs");
    expect(first?.lines.map(({ kind, old, new: next, text }) => [kind, old, next, text])).toEqual([
      ["hunk", 1, 1, "fn main"],
      ["context", 1, 1, "one"],
      ["removed", 2, null, "two"],
      ["removed", 3, null, "-- dashes"],
      ["added", null, 2, "2"],
      ["added", null, 3, "+++ pluses"],
      ["added", null, 4, "three"],
      ["note", null, null, "No newline at the end of the file"],
    ]);
  });

  it("reads renames and quoted paths", () => {
    expect(second).toMatchObject({ path: "new", oldPath: "old name", lines: [] });
    expect(third).toMatchObject({ path: "spät", oldPath: null });
  });

  it("reads a diff without line numbers", () => {
    const [file] = parsePatch("-old\n+new\n");
    expect(file?.lines.map((line) => [line.kind, line.text])).toEqual([["removed", "old"], ["added", "new"]]);
  });
});

it("pairs removed and added lines", () => {
  const rows = splitRows(parsePatch(PATCH)[0]?.lines ?? []);
  expect(rows.map(({ left, right }) => [left?.text ?? null, right?.text ?? null])).toEqual([
    ["fn main", "fn main"],
    ["one", "one"],
    ["two", "2"],
    ["-- dashes", "+++ pluses"],
    [null, "three"],
    ["No newline at the end of the file", "No newline at the end of the file"],
  ]);
});
