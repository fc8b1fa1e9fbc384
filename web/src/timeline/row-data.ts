import type { StoredEvent } from "@/api/types";
import { dataOf, numberField, textField } from "@/sandboxes/steps";
import type { FileEdit, PartialText, PlanItem } from "./rows";

/** Reads a text with its truncation fields. */
export function readText(data: Record<string, unknown>, field: string): PartialText {
  const value = data[field];
  const text = typeof value === "string" ? value : value === undefined || value === null ? "" : formatOutput(value);
  const isTruncated = data.truncated === true || data[`${field}_truncated`] === true;
  const blob = data[`${field}_blob`];
  const bytes = data[`${field}_bytes`];
  return {
    text,
    blob: isTruncated && typeof blob === "string" ? blob : null,
    bytes: isTruncated && typeof bytes === "number" ? bytes : null,
  };
}

/** Output of a tool as text. Content parts of a model's API show their texts. */
function formatOutput(value: unknown): string {
  if (Array.isArray(value)) {
    const texts = value.map((part: unknown) => {
      const text = typeof part === "object" && part !== null && "text" in part ? part.text : part;
      return typeof text === "string" ? text : JSON.stringify(part);
    });
    return texts.join("\n");
  }
  return typeof value === "object" ? JSON.stringify(value, null, 2) : String(value);
}

export function readEdit(event: StoredEvent): FileEdit {
  const data = dataOf<"agent.file_edited">(event);
  const full = readText(event.data, "full_diff");
  const hasFull = full.text !== "";
  return {
    path: textField(data, "file_path"),
    oldPath: textField(data, "old_path") || null,
    change: textField(data, "change_type"),
    added: numberField(data, "lines_added") ?? 0,
    removed: numberField(data, "lines_removed") ?? 0,
    diff: hasFull ? full : { text: textField(data, "diff_preview"), blob: full.blob, bytes: full.bytes },
    isBinary: data.binary === true,
  };
}

export function readPlan(items: unknown): PlanItem[] {
  if (!Array.isArray(items)) return [];
  return items.flatMap((item: unknown) => {
    if (typeof item !== "object" || item === null) return [];
    const fields = item as Record<string, unknown>;
    const text = [fields.text, fields.content, fields.step].find((value) => typeof value === "string");
    const state = [fields.state, fields.status].find((value) => typeof value === "string");
    return text === undefined ? [] : [{ text, state: state ?? "" }];
  });
}

/** How a command ended, if it did not succeed. */
export function describeExit(exit: unknown): string {
  if (typeof exit !== "object" || exit === null) return "";
  const { kind, code, signal } = exit as Record<string, unknown>;
  if (kind === "exited") return code === 0 ? "" : `exit code ${String(code)}`;
  if (kind === "signalled") return `ended by signal ${String(signal)}`;
  return typeof kind === "string" ? kind.replaceAll("_", " ") : "";
}

