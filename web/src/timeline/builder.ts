import type { Approval, KnownEventType, StoredEvent } from "@/api/types";
import { dataOf, listField, numberField, textField } from "@/sandboxes/steps";
import { formatStepDuration, plural } from "@/text/format";
import { describeNotice } from "./notices";
import { describeExit, readEdit, readPlan, readText } from "./row-data";
import type { ApprovalRow, ChecksRow, MessageRow, SetupRow, TimelineRow, ToolRow, TurnRow } from "./rows";

const MAX_SETUP_OUTPUT = 20_000;

/**
 * Derives the rows of the timeline from events, in log order.
 *
 * A row is replaced when it changes and keeps its identity otherwise, so that unchanged rows do not render again.
 */
export class TimelineBuilder {
  private list: TimelineRow[] = [];
  private readonly positions = new Map<string, number>();
  /** The subagent's call that holds a call. */
  private readonly parents = new Map<string, string>();
  private readonly running = new Set<string>();
  private readonly prompts = new Map<string, { content: string; bytes: number; type: string }>();
  private turnKey: string | null = null;
  private setupKey: string | null = null;
  lastSeq = 0;
  firstSeq: number | null = null;

  /** A new array after each change. */
  get rows(): readonly TimelineRow[] {
    return this.list;
  }

  add(events: readonly StoredEvent[]): void {
    const fresh = events.filter((event) => event.seq > this.lastSeq);
    if (fresh.length === 0) return;
    this.list = [...this.list];
    for (const event of fresh) {
      this.firstSeq ??= event.seq;
      this.lastSeq = event.seq;
      this.apply(event);
    }
  }

  private apply(event: StoredEvent): void {
    const base = { seq: event.seq, at: event.at };
    switch (event.type as KnownEventType) {
      case "agent.started": {
        const data = dataOf<"agent.started">(event);
        const turn = numberField(data, "turn") ?? event.turn ?? 0;
        const key = `turn-${event.seq}`;
        this.endTurn("completed", event, "");
        this.turnKey = key;
        this.push({ ...base, kind: "turn", key, turn, agent: textField(data, "agent"), model: textField(data, "model"), state: "running", endedAt: null, detail: "" });
        // The acknowledgement may come after the agent's first steps.
        this.showMessage(event, textField(data, "message_id"), { state: "acknowledged", how: "new_turn", reason: "" });
        break;
      }
      case "agent.message_injected": {
        const data = dataOf<"agent.message_injected">(event);
        this.showMessage(event, textField(data, "message_id"), { state: "acknowledged", how: textField(data, "how") || "injected", reason: "" });
        break;
      }
      case "agent.completed":
        this.endTurn("completed", event, "");
        break;
      case "agent.interrupted":
        this.endTurn("interrupted", event, dataOf<"agent.interrupted">(event).forced === true ? "The worker ended the agent, because it did not react." : "");
        break;
      case "agent.failed": {
        const data = dataOf<"agent.failed">(event);
        this.endTurn("failed", event, textField(data, "error"));
        this.push({ ...base, kind: "notice", key: `n-${event.seq}`, tone: "bad", text: "The agent failed", detail: [textField(data, "error"), textField(data, "stderr_tail")].filter(Boolean).join("\n") });
        break;
      }
      case "agent.message":
      case "agent.thinking": {
        const text = readText(event.data, "text");
        if (text.text === "") break;
        this.push({ ...base, kind: event.type === "agent.message" ? "text" : "thinking", key: `t-${event.seq}`, text }, parentOf(event));
        break;
      }
      case "agent.tool_use":
        this.startTool(event);
        break;
      case "agent.tool_completed":
        this.endTool(event);
        break;
      case "agent.file_edited":
        this.addEdit(event);
        break;
      case "agent.plan": {
        const data = dataOf<"agent.plan">(event);
        const last = this.list.findLast((row) => row.kind === "plan");
        const items = readPlan(data.items);
        const all = data.adds === true && last?.kind === "plan" ? [...last.items, ...items] : items;
        this.push({ ...base, kind: "plan", key: `plan-${event.seq}`, items: all });
        break;
      }
      case "message.queued":
      case "message.edited":
        this.notePrompt(event);
        break;
      case "message.acknowledged":
      case "message.delivered_unconfirmed":
      case "message.undeliverable":
        this.addMessage(event);
        break;
      case "approval.requested":
      case "approval.answered":
      case "approval.resolved":
        this.applyApproval(event);
        break;
      case "setup.started":
      case "setup.output":
      case "setup.step_completed":
      case "setup.completed":
      case "setup.failed":
      case "setup.skipped":
        this.applySetup(event);
        break;
      case "continuous.validating":
      case "continuous.check":
      case "continuous.checked":
        this.applyChecks(event);
        break;
      default:
        this.addNotice(event);
    }
  }

  private push(row: TimelineRow, parent: string | null = null): void {
    const holder = parent === null ? undefined : this.toolRow(parent);
    if (holder !== undefined) {
      this.replace({ ...holder, children: [...holder.children, row] });
      this.parents.set(row.key, holder.toolUseId);
      return;
    }
    this.positions.set(row.key, this.list.length);
    this.list.push(row);
  }

  private find(key: string): TimelineRow | undefined {
    const parent = this.parents.get(key);
    if (parent !== undefined) return this.toolRow(parent)?.children.find((row) => row.key === key);
    const position = this.positions.get(key);
    return position === undefined ? undefined : this.list[position];
  }

  private toolRow(toolUseId: string): ToolRow | undefined {
    const row = this.find(`tool-${toolUseId}`);
    return row?.kind === "tool" ? row : undefined;
  }

  private replace(row: TimelineRow): void {
    const parent = this.parents.get(row.key);
    if (parent !== undefined) {
      const holder = this.toolRow(parent);
      if (holder !== undefined) this.replace({ ...holder, children: holder.children.map((child) => (child.key === row.key ? row : child)) });
      return;
    }
    const position = this.positions.get(row.key);
    if (position !== undefined) this.list[position] = row;
  }

  private endTurn(state: TurnRow["state"], event: StoredEvent, detail: string): void {
    const row = this.turnKey === null ? undefined : this.find(this.turnKey);
    this.turnKey = null;
    if (row?.kind === "turn") this.replace({ ...row, state, endedAt: event.at, detail });
    for (const id of this.running) {
      const tool = this.toolRow(id);
      if (tool !== undefined) this.replace({ ...tool, state: "unfinished", endedAt: event.at, detail: "The turn ended first" });
    }
    this.running.clear();
  }

  private startTool(event: StoredEvent): void {
    const data = dataOf<"agent.tool_use">(event);
    const toolUseId = textField(data, "tool_use_id") || `seq-${event.seq}`;
    this.running.add(toolUseId);
    const inputBlob = data.truncated === true ? textField(data, "input_blob") || null : null;
    this.push(
      {
        kind: "tool", key: `tool-${toolUseId}`, seq: event.seq, at: event.at, toolUseId, tool: textField(data, "tool"), title: textField(data, "title"),
        input: data.input ?? null, inputBlob, output: null, state: "running", detail: "", endedAt: null, edits: [], children: [],
      },
      parentOf(event),
    );
  }

  private endTool(event: StoredEvent): void {
    const data = dataOf<"agent.tool_completed">(event);
    const toolUseId = textField(data, "tool_use_id");
    let row = this.toolRow(toolUseId);
    if (row === undefined) {
      // Its start is on a page that is not loaded.
      this.startTool(event);
      row = this.toolRow(toolUseId);
      if (row === undefined) return;
    }
    this.running.delete(toolUseId);
    const isError = data.is_error === true;
    const exitCode = numberField(data, "exit_code");
    const detail = describeExit(data.exit) || (exitCode !== null && exitCode !== 0 ? `exit code ${exitCode}` : "");
    const state = row.state === "denied" ? "denied" : isError ? "failed" : "done";
    this.replace({ ...row, output: readText(event.data, "output"), state, detail: row.detail || detail, endedAt: event.at });
  }

  private addEdit(event: StoredEvent): void {
    const edit = readEdit(event);
    const tool = this.toolRow(textField(dataOf<"agent.file_edited">(event), "tool_use_id"));
    if (tool !== undefined) this.replace({ ...tool, edits: [...tool.edits.filter(({ path }) => path !== edit.path), edit] });
    else this.push({ kind: "edit", key: `edit-${event.seq}`, seq: event.seq, at: event.at, edit });
  }

  private notePrompt(event: StoredEvent): void {
    const data = dataOf<"message.queued">(event);
    const content = textField(data, "content");
    this.prompts.set(textField(data, "message_id"), { content, bytes: numberField(data, "content_bytes") ?? 0, type: textField(data, "type") });
  }

  private addMessage(event: StoredEvent): void {
    const data = dataOf<"message.acknowledged">(event);
    const outcome = { state: textField(data, "state"), how: textField(data, "how"), reason: textField(data, "reason") };
    this.showMessage(event, textField(data, "message_id"), outcome);
  }

  /** Shows a message where it reached the agent. */
  private showMessage(event: StoredEvent, messageId: string, outcome: Pick<MessageRow, "state" | "how" | "reason">): void {
    if (messageId === "") return;
    const key = `msg-${messageId}`;
    const known = this.find(key);
    if (known?.kind === "message") {
      this.replace({ ...known, ...outcome, how: outcome.how || known.how });
      return;
    }
    const prompt = this.prompts.get(messageId);
    const content = prompt?.content ?? "";
    const isWhole = prompt !== undefined && new TextEncoder().encode(content).length >= prompt.bytes;
    const row: MessageRow = { kind: "message", key, seq: event.seq, at: event.at, messageId, messageType: prompt?.type ?? "user_message", content, isWhole, ...outcome };
    this.push(row);
  }

  private applyApproval(event: StoredEvent): void {
    const approvalId = textField(dataOf<"approval.requested">(event), "approval_id");
    const key = `apr-${approvalId}`;
    if (event.type === "approval.requested") {
      const request: Approval["request"] = event.data;
      const row: ApprovalRow = { kind: "approval", key, seq: event.seq, at: event.at, approvalId, request, state: "open", decision: "", reason: "" };
      if (this.find(key) === undefined) this.push(row);
      else this.replace(row);
      return;
    }
    const row = this.find(key);
    if (row?.kind !== "approval") return;
    const data = dataOf<"approval.resolved">(event);
    this.replace({ ...row, state: event.type === "approval.answered" ? "answered" : "resolved", decision: textField(data, "decision"), reason: textField(data, "reason") || row.reason });
  }

  private applySetup(event: StoredEvent): void {
    const data = dataOf<"setup.failed">(event);
    if (event.type === "setup.started" || this.setupKey === null) {
      const started = dataOf<"setup.started">(event);
      this.setupKey = `setup-${event.seq}`;
      const steps = listField(started, "steps");
      this.push({ kind: "setup", key: this.setupKey, seq: event.seq, at: event.at, steps, completed: 0, state: "running", summary: "", output: "", remedy: "" });
    }
    const row = this.find(this.setupKey);
    if (row?.kind !== "setup") return;
    const next: SetupRow = { ...row };
    if (event.type === "setup.output") {
      next.output = (row.output + textField(dataOf<"setup.output">(event), "text")).slice(-MAX_SETUP_OUTPUT);
    } else if (event.type === "setup.step_completed") {
      next.completed = row.completed + 1;
    } else if (event.type === "setup.completed") {
      const completed = dataOf<"setup.completed">(event);
      const seconds = formatStepDuration((numberField(completed, "seconds") ?? 0) * 1000);
      Object.assign(next, { state: "done", summary: completed.cached === true ? "started from a stored set-up" : `${plural(row.completed, "step")}${seconds === "" ? "" : `, ${seconds}`}` });
    } else if (event.type === "setup.failed") {
      Object.assign(next, { state: "failed", summary: textField(data, "error"), output: textField(data, "tail") || row.output, remedy: textField(data, "remedy") });
    } else if (event.type === "setup.skipped") {
      Object.assign(next, { state: "done", summary: `skipped: ${textField(dataOf<"setup.skipped">(event), "reason")}` });
    }
    this.replace(next);
    if (next.state !== "running") this.setupKey = null;
  }

  private applyChecks(event: StoredEvent): void {
    const round = numberField(dataOf<"continuous.checked">(event), "round") ?? 0;
    const key = `round-${round}`;
    if (this.find(key) === undefined) {
      this.push({ kind: "checks", key, seq: event.seq, at: event.at, round, verdict: null, checks: [] });
    }
    const row = this.find(key);
    if (row?.kind !== "checks") return;
    const data = dataOf<"continuous.check">(event);
    const next: ChecksRow =
      event.type === "continuous.check"
        ? { ...row, checks: [...row.checks, { name: textField(data, "name"), verdict: textField(data, "verdict"), detail: textField(data, "detail"), output: textField(data, "output") }] }
        : { ...row, verdict: event.type === "continuous.checked" ? textField(data, "verdict") : row.verdict };
    this.replace(next);
  }

  private addNotice(event: StoredEvent): void {
    const notice = describeNotice(event);
    const base = { seq: event.seq, at: event.at };
    if (event.type === "guardian.denied") {
      const data = dataOf<"guardian.denied">(event);
      const tool = this.toolRow(textField(data, "tool_use_id"));
      if (tool !== undefined) this.replace({ ...tool, state: "denied", detail: textField(data, "reason") });
    }
    if (notice !== null) this.push({ ...base, kind: "notice", key: `n-${event.seq}`, tone: notice.tone, text: notice.text, detail: notice.detail ?? "" });
    else if (!isSilent(event.type)) this.push({ ...base, kind: "unknown", key: `u-${event.seq}`, event });
  }
}

const SILENT_PREFIXES = ["agent.", "sandbox.", "session.", "message.", "setup.", "service.", "secrets.", "limit.", "preview.", "model."];

/** Types of the catalogue that are no step. Types of other workers are shown. */
function isSilent(type: string): boolean {
  return SILENT_PREFIXES.some((prefix) => type.startsWith(prefix));
}

function parentOf(event: StoredEvent): string | null {
  const parent = event.data.parent_tool_use_id;
  return typeof parent === "string" ? parent : null;
}
