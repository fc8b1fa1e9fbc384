import type { Approval } from "@/api/types";

/** A question of an agent with options to choose from. */
export interface AgentQuestion {
  question: string;
  options: { label: string; description: string }[];
  allowsMany: boolean;
}

/** The parts of an approval's request that people see. */
export interface ApprovalRequest {
  isQuestion: boolean;
  tool: string;
  text: string;
  input: unknown;
  isTruncated: boolean;
  inputBytes: number | null;
  diff: string;
  sha256: string | null;
  questions: AgentQuestion[];
}

/** Reads a request. Its parts come from an agent, so each type is checked. */
export function readRequest(request: Approval["request"]): ApprovalRequest {
  const fields: Record<string, unknown> = request;
  const text = (key: string): string => (typeof fields[key] === "string" ? fields[key] : "");
  return {
    isQuestion: fields.kind === "question",
    tool: text("tool"),
    text: text("text"),
    input: fields.input ?? null,
    isTruncated: fields.input_truncated === true,
    inputBytes: typeof fields.input_bytes === "number" ? fields.input_bytes : null,
    diff: text("diff"),
    sha256: text("sha256") || null,
    questions: readQuestions(fields.input),
  };
}

function readQuestions(input: unknown): AgentQuestion[] {
  const list = record(input).questions;
  if (!Array.isArray(list)) return [];
  return list.map(record).flatMap((entry) => {
    if (typeof entry.question !== "string") return [];
    const options = (Array.isArray(entry.options) ? entry.options : []).map(record).map((option) => ({
      label: typeof option.label === "string" ? option.label : "",
      description: typeof option.description === "string" ? option.description : "",
    }));
    return [{ question: entry.question, options: options.filter(({ label }) => label !== ""), allowsMany: entry.multiSelect === true }];
  });
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** The input of a tool as text: the command itself, or all fields as JSON. */
export function formatInput(tool: string, input: unknown): string {
  const fields = record(input);
  const command = fields.command;
  const isCommand = typeof command === "string" && Object.keys(fields).every((key) => ["command", "description", "timeout"].includes(key));
  if (isCommand && (tool === "Bash" || tool === "shell" || tool === "")) return command;
  return typeof input === "string" ? input : JSON.stringify(input, null, 2);
}
