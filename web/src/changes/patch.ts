/** One line of a unified diff. */
export interface PatchLine {
  kind: "context" | "added" | "removed" | "hunk" | "note";
  text: string;
  /** Line numbers before and after the change. */
  old: number | null;
  new: number | null;
}

export interface PatchFile {
  path: string;
  oldPath: string | null;
  lines: PatchLine[];
}

const HUNK = /^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(.*)$/;

/** Parses a unified diff of any number of files. Unknown lines before a hunk are headers and omitted. */
export function parsePatch(patch: string): PatchFile[] {
  const files: PatchFile[] = [];
  let file: PatchFile | null = null;
  let rest = { old: 0, new: 0 };
  let at = { old: 0, new: 0 };
  const lines = patch.split("\n");
  if (lines.at(-1) === "") lines.pop();
  for (const line of lines) {
    const isInHunk = rest.old > 0 || rest.new > 0;
    if (isInHunk && file !== null) {
      const sign = line.charAt(0);
      const text = line.slice(1);
      if (sign === "+") {
        file.lines.push({ kind: "added", text, old: null, new: at.new });
        at = { ...at, new: at.new + 1 };
        rest = { ...rest, new: rest.new - 1 };
        continue;
      }
      if (sign === "-") {
        file.lines.push({ kind: "removed", text, old: at.old, new: null });
        at = { ...at, old: at.old + 1 };
        rest = { ...rest, old: rest.old - 1 };
        continue;
      }
      if (sign === " " || line === "") {
        file.lines.push({ kind: "context", text, old: at.old, new: at.new });
        at = { old: at.old + 1, new: at.new + 1 };
        rest = { old: rest.old - 1, new: rest.new - 1 };
        continue;
      }
    }
    if (line.startsWith("\\")) {
      file?.lines.push({ kind: "note", text: "No newline at the end of the file", old: null, new: null });
      continue;
    }
    const hunk = HUNK.exec(line);
    if (hunk !== null) {
      file ??= pushFile(files, "");
      at = { old: Number(hunk[1]), new: Number(hunk[3]) };
      rest = { old: Number(hunk[2] ?? 1), new: Number(hunk[4] ?? 1) };
      file.lines.push({ kind: "hunk", text: (hunk[5] ?? "").trim(), old: at.old, new: at.new });
      continue;
    }
    if (line.startsWith("diff --git ")) {
      file = pushFile(files, "");
      rest = { old: 0, new: 0 };
    } else if (line.startsWith("--- ")) {
      if (file === null || file.lines.length > 0) file = pushFile(files, "");
      file.oldPath = headerPath(line.slice(4));
    } else if (line.startsWith("+++ ") && file !== null) {
      file.path = headerPath(line.slice(4)) ?? file.oldPath ?? "";
    } else if (line.startsWith("rename from ") && file !== null) {
      file.oldPath = unquote(line.slice(12));
    } else if (line.startsWith("rename to ") && file !== null) {
      file.path = unquote(line.slice(10));
    } else if (line.startsWith("Binary files ") && file !== null) {
      file.lines.push({ kind: "note", text: "Binary file", old: null, new: null });
    } else if (file === null || !isHeader(line)) {
      parseBareLine(files, line);
      file = files.at(-1) ?? null;
    }
  }
  return files;
}

/** A diff without line numbers, as an approval has it: signs only. */
function parseBareLine(files: PatchFile[], line: string): void {
  const file = files.at(-1) ?? pushFile(files, "");
  const kind = line.startsWith("+") ? "added" : line.startsWith("-") ? "removed" : line.startsWith("@@") ? "hunk" : "context";
  const text = kind === "hunk" ? line.replaceAll("@", "").trim() : line.slice(1);
  file.lines.push({ kind, text, old: null, new: null });
}

function isHeader(line: string): boolean {
  return /^(index |new file|deleted file|old mode|new mode|similarity|dissimilarity|copy |GIT binary)/.test(line);
}

function pushFile(files: PatchFile[], path: string): PatchFile {
  const file: PatchFile = { path, oldPath: null, lines: [] };
  files.push(file);
  return file;
}

function headerPath(text: string): string | null {
  const path = unquote(text.split("\t", 1)[0] ?? "");
  if (path === "/dev/null") return null;
  return path.replace(/^[ab]\//, "");
}

/** Git quotes paths with special characters. */
function unquote(path: string): string {
  if (!path.startsWith('"') || !path.endsWith('"')) return path;
  const bytes: number[] = [];
  const encoder = new TextEncoder();
  const inner = path.slice(1, -1);
  for (const [part, octal, escaped] of inner.matchAll(/\\([0-7]{3})|\\(.)|[^\\]+/g)) {
    if (octal !== undefined) bytes.push(Number.parseInt(octal, 8));
    else bytes.push(...encoder.encode(escaped === undefined ? part : (ESCAPES[escaped] ?? escaped)));
  }
  return new TextDecoder().decode(new Uint8Array(bytes));
}

const ESCAPES: Record<string, string> = { n: "\n", t: "\t", r: "\r" };

/** A row of the side-by-side view. */
export interface SplitRow {
  left: PatchLine | null;
  right: PatchLine | null;
}

/** Pairs removed lines with the added lines that follow them. */
export function splitRows(lines: readonly PatchLine[]): SplitRow[] {
  const rows: SplitRow[] = [];
  let removed: PatchLine[] = [];
  let added: PatchLine[] = [];
  const flush = () => {
    for (let index = 0; index < Math.max(removed.length, added.length); index += 1) {
      rows.push({ left: removed[index] ?? null, right: added[index] ?? null });
    }
    removed = [];
    added = [];
  };
  for (const line of lines) {
    if (line.kind === "removed") {
      if (added.length > 0) flush();
      removed.push(line);
    } else if (line.kind === "added") {
      added.push(line);
    } else {
      flush();
      rows.push({ left: line, right: line });
    }
  }
  flush();
  return rows;
}
