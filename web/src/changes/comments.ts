import { readStored, writeStored } from "@/shell/stored";

/** A comment on a line of a diff. It stays in this browser until it is sent. */
export interface LineComment {
  id: string;
  path: string;
  /** Line number after the change, or before it for a removed line. */
  line: number;
  isRemoved: boolean;
  quote: string;
  text: string;
  isSent: boolean;
}

const nameOf = (sandboxId: string) => `comments.${sandboxId}`;

export function loadComments(sandboxId: string): LineComment[] {
  try {
    const value: unknown = JSON.parse(readStored(nameOf(sandboxId)) ?? "[]");
    return Array.isArray(value) ? value.filter(isComment) : [];
  } catch {
    return [];
  }
}

export function storeComments(sandboxId: string, comments: readonly LineComment[]): void {
  writeStored(nameOf(sandboxId), comments.length === 0 ? null : JSON.stringify(comments));
}

function isComment(value: unknown): value is LineComment {
  if (typeof value !== "object" || value === null) return false;
  const comment = value as Partial<Record<keyof LineComment, unknown>>;
  return typeof comment.path === "string" && typeof comment.line === "number" && typeof comment.text === "string" && typeof comment.quote === "string";
}

const MAX_QUOTE = 200;

/** Writes all comments as one message: path, line, quoted line and text. */
export function formatComments(comments: readonly LineComment[]): string {
  const sorted = comments.toSorted((a, b) => (a.path === b.path ? a.line - b.line : a.path < b.path ? -1 : 1));
  const parts = sorted.map((comment) => {
    const quote = comment.quote.trim().slice(0, MAX_QUOTE);
    const place = `${comment.path}:${comment.line}${comment.isRemoved ? " (removed line)" : ""}`;
    return `${place}\n${quote === "" ? "" : `> ${quote}\n`}${comment.text.trim()}`;
  });
  const intro = comments.length === 1 ? "A review comment on your changes:" : `${comments.length} review comments on your changes:`;
  return `${intro}\n\n${parts.join("\n\n")}`;
}
