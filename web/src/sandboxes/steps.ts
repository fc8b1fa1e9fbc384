import type { EventData, KnownEventType, StoredEvent } from "@/api/types";
import { capitalize, firstLine } from "@/text/format";

/** Reads a text field of event data. Data of unknown workers may have another shape, so the type is checked. */
export function textField<T extends object>(data: T, key: keyof T & string): string {
  const value: unknown = data[key];
  return typeof value === "string" ? value : "";
}

export function numberField<T extends object>(data: T, key: keyof T & string): number | null {
  const value: unknown = data[key];
  return typeof value === "number" && Number.isFinite(value) ? value : null;
}

export function listField<T extends object>(data: T, key: keyof T & string): string[] {
  const value: unknown = data[key];
  return Array.isArray(value) ? value.filter((each) => typeof each === "string") : [];
}

/** The data of an event under the shape of the catalogue. Read its fields with `textField`, `numberField` and `listField`. */
export function dataOf<T extends KnownEventType>(event: StoredEvent): Partial<EventData<T>> {
  return event.data as Partial<EventData<T>>;
}

/** What a tool call does, in words: the command, the path or the question that its input names. */
export function describeToolInput(input: unknown): string {
  if (typeof input === "string") return firstLine(input);
  if (typeof input !== "object" || input === null) return "";
  const fields = input as Record<string, unknown>;
  for (const key of ["command", "cmd", "file_path", "path", "notebook_path", "pattern", "query", "url", "description", "prompt", "skill"]) {
    const value = fields[key];
    if (typeof value === "string" && value !== "") return firstLine(value);
    if (Array.isArray(value) && value.every((part) => typeof part === "string")) return firstLine(value.join(" "));
  }
  return "";
}

const TOOL_VERBS: Record<string, string> = {
  Bash: "Runs",
  Write: "Writes",
  Edit: "Edits",
  MultiEdit: "Edits",
  NotebookEdit: "Edits",
  Read: "Reads",
  Glob: "Searches",
  Grep: "Searches",
  WebFetch: "Fetches",
  WebSearch: "Searches the web for",
  Task: "Delegates",
};

export function describeTool(tool: string, input: unknown): string {
  const subject = describeToolInput(input);
  const verb = TOOL_VERBS[tool];
  if (verb === undefined) return subject === "" ? `Uses ${tool}` : `${tool}: ${subject}`;
  return subject === "" ? `Uses ${tool}` : `${verb} ${subject}`;
}

/** A line of Markdown without its signs. */
function plainText(line: string): string {
  return line.replace(/^#+\s+/, "").replaceAll("**", "").replaceAll("`", "");
}

/** The step that an event stands for, in one line; `null` for events that are no step. */
export function describeStep(event: StoredEvent): string | null {
  switch (event.type as KnownEventType) {
    case "agent.message":
      return plainText(firstLine(textField(dataOf<"agent.message">(event), "text"))) || null;
    case "agent.thinking":
      return "Thinks";
    case "agent.tool_use": {
      const data = dataOf<"agent.tool_use">(event);
      return describeTool(textField(data, "tool"), data.input);
    }
    case "agent.tool_completed": {
      const data = dataOf<"agent.tool_completed">(event);
      return data.is_error === true ? `${textField(data, "tool")} failed` : null;
    }
    case "agent.started":
      return "Starts a turn";
    case "agent.completed":
      return null;
    case "agent.interrupted":
      return "Interrupted";
    case "agent.failed":
      return `Failed: ${firstLine(textField(dataOf<"agent.failed">(event), "error"))}`;
    case "agent.error":
      return `Error: ${firstLine(textField(dataOf<"agent.error">(event), "error"))}`;
    case "approval.requested": {
      const data = dataOf<"approval.requested">(event);
      const text = textField(data, "text");
      return text === "" ? `Asks: ${describeTool(textField(data, "tool"), data.input)}` : `Asks: ${firstLine(text)}`;
    }
    case "setup.started":
      return "Runs the project's set-up";
    case "setup.step_completed":
      return `Set-up: ${firstLine(textField(dataOf<"setup.step_completed">(event), "command"))}`;
    case "setup.failed":
      return capitalize(firstLine(textField(dataOf<"setup.failed">(event), "error")));
    case "git.cloned":
      return "Copied the repository";
    case "git.branch_created":
      return `Exported the branch ${textField(dataOf<"git.branch_created">(event), "branch")}`;
    case "sandbox.failed":
      return firstLine(dataOf<"sandbox.failed">(event).reason?.detail ?? "") || "Failed";
    case "continuous.validating":
      return "Runs the checks";
    default:
      return null;
  }
}
