import type { Approval, StoredEvent } from "@/api/types";

interface RowBase {
  /** Stable over the life of the log. */
  key: string;
  seq: number;
  at: string;
}

/** A text that an event may hold only in part. */
export interface PartialText {
  text: string;
  /** Hash and size of the blob with the whole text. */
  blob: string | null;
  bytes: number | null;
}

export interface TurnRow extends RowBase {
  kind: "turn";
  turn: number;
  agent: string;
  model: string;
  state: "running" | "completed" | "interrupted" | "failed";
  endedAt: string | null;
  detail: string;
}

export interface MessageRow extends RowBase {
  kind: "message";
  messageId: string;
  messageType: string;
  content: string;
  isWhole: boolean;
  how: string;
  state: string;
  reason: string;
}

export interface TextRow extends RowBase {
  kind: "text" | "thinking";
  text: PartialText;
}

export interface FileEdit {
  path: string;
  oldPath: string | null;
  change: string;
  added: number;
  removed: number;
  diff: PartialText;
  isBinary: boolean;
}

export interface ToolRow extends RowBase {
  kind: "tool";
  toolUseId: string;
  tool: string;
  title: string;
  input: unknown;
  inputBlob: string | null;
  output: PartialText | null;
  state: "running" | "done" | "failed" | "denied" | "unfinished";
  /** Why a rule denied it, or how its command ended. */
  detail: string;
  endedAt: string | null;
  edits: readonly FileEdit[];
  /** Rows of the subagent that this call started. */
  children: readonly TimelineRow[];
}

export interface EditRow extends RowBase {
  kind: "edit";
  edit: FileEdit;
}

export interface ApprovalRow extends RowBase {
  kind: "approval";
  approvalId: string;
  request: Approval["request"];
  state: "open" | "answered" | "resolved";
  decision: string;
  reason: string;
}

export interface PlanItem {
  text: string;
  state: string;
}

export interface PlanRow extends RowBase {
  kind: "plan";
  items: readonly PlanItem[];
}

export interface SetupRow extends RowBase {
  kind: "setup";
  steps: readonly string[];
  completed: number;
  state: "running" | "done" | "failed";
  summary: string;
  /** The end of the output. */
  output: string;
  remedy: string;
}

export interface CheckLine {
  name: string;
  verdict: string;
  detail: string;
  output: string;
}

export interface ChecksRow extends RowBase {
  kind: "checks";
  round: number;
  verdict: string | null;
  checks: readonly CheckLine[];
}

export type NoticeTone = "plain" | "attention" | "bad" | "ok" | "guardian";

export interface NoticeRow extends RowBase {
  kind: "notice";
  tone: NoticeTone;
  text: string;
  detail: string;
}

/** An event of a type that is not in the catalogue. */
export interface UnknownRow extends RowBase {
  kind: "unknown";
  event: StoredEvent;
}

export type TimelineRow =
  | TurnRow | MessageRow | TextRow | ToolRow | EditRow | ApprovalRow | PlanRow | SetupRow | ChecksRow | NoticeRow | UnknownRow;

/** Finished tool calls that follow each other, as one line. */
export interface ToolGroup {
  kind: "group";
  key: string;
  seq: number;
  at: string;
  tools: readonly (ToolRow | EditRow)[];
}

export type DisplayRow = TimelineRow | ToolGroup;

const GROUP_SIZE = 3;

function canFold(row: TimelineRow): row is ToolRow | EditRow {
  if (row.kind === "edit") return true;
  return row.kind === "tool" && row.state === "done" && row.children.length === 0;
}

/** Folds runs of three and more finished calls. The last row stays by itself: it is the newest step. */
export function groupRows(rows: readonly TimelineRow[], previous?: readonly DisplayRow[]): DisplayRow[] {
  const known = new Map(previous?.flatMap((row) => (row.kind === "group" ? [[row.key, row] as const] : [])));
  const display: DisplayRow[] = [];
  let run: (ToolRow | EditRow)[] = [];
  const flush = () => {
    const first = run[0];
    if (first !== undefined && run.length >= GROUP_SIZE) {
      const key = `group-${first.key}`;
      const before = known.get(key);
      const isSame = before?.tools.length === run.length && before.tools.every((tool, index) => tool === run[index]);
      display.push(isSame ? before : { kind: "group", key, seq: first.seq, at: first.at, tools: run });
    } else {
      display.push(...run);
    }
    run = [];
  };
  for (const [index, row] of rows.entries()) {
    if (canFold(row) && index < rows.length - 1) {
      run.push(row);
    } else {
      flush();
      display.push(row);
    }
  }
  flush();
  return display;
}

const TOOL_NOUNS: Record<string, readonly [string, string]> = {
  Bash: ["command", "commands"],
  shell: ["command", "commands"],
  Read: ["file read", "files read"],
  Write: ["file written", "files written"],
  Edit: ["edit", "edits"],
  MultiEdit: ["edit", "edits"],
  Grep: ["search", "searches"],
  Glob: ["search", "searches"],
};

/** "3 commands, 2 files read". */
export function describeGroup(tools: readonly (ToolRow | EditRow)[]): string {
  const counts = new Map<string, { count: number; nouns: readonly [string, string] }>();
  for (const tool of tools) {
    const name = tool.kind === "edit" ? "Edit" : tool.tool;
    const nouns = TOOL_NOUNS[name] ?? [`${name} call`, `${name} calls`];
    const entry = counts.get(nouns[0]) ?? { count: 0, nouns };
    counts.set(nouns[0], { ...entry, count: entry.count + 1 });
  }
  return [...counts.values()].map(({ count, nouns }) => `${count} ${nouns[count === 1 ? 0 : 1]}`).join(", ");
}
