import { readFileSync } from "node:fs";
import { describe, expect, it } from "vitest";
import type { StoredEvent } from "@/api/types";
import { TimelineBuilder } from "./builder";
import { describeGroup, groupRows, type TimelineRow } from "./rows";

const AT = "2026-01-01T00:00:00Z";
type Step = [type: string, data: Record<string, unknown>];

function build(...steps: Step[]): TimelineBuilder {
  const builder = new TimelineBuilder();
  builder.add(events(1, ...steps));
  return builder;
}

function events(from: number, ...steps: Step[]): StoredEvent[] {
  return steps.map(([type, data], index) => ({
    id: `e${index}`, sandbox_id: "sbx_1", seq: from + index, type, source: "agent", at: AT, received_at: AT, turn: 1, data,
  }));
}

const tool = (id: string, name = "Bash"): Step[] => [
  ["agent.tool_use", { tool: name, tool_use_id: id, input: { command: "ls" } }],
  ["agent.tool_completed", { tool: name, tool_use_id: id, output: "ok", is_error: false }],
];
const kinds = (rows: readonly { kind: string }[]) => rows.map((row) => row.kind);

describe("TimelineBuilder", () => {
  it("joins a tool call with its result and its edits", () => {
    const builder = build(
      ["agent.tool_use", { tool: "Write", tool_use_id: "t1", input: {} }],
      ["agent.file_edited", { file_path: "a.rs", change_type: "created", lines_added: 2, lines_removed: 0, diff_preview: "+x", tool_use_id: "t1" }],
      ["agent.tool_completed", { tool: "Write", tool_use_id: "t1", output: "no", is_error: true, exit_code: 2 }],
    );
    expect(builder.rows).toMatchObject([{ kind: "tool", state: "failed", detail: "exit code 2", edits: [{ path: "a.rs", added: 2 }] }]);
  });

  it("keeps the identity of unchanged rows", () => {
    const builder = build(["agent.message", { text: "one" }], ...tool("t1"));
    const [first, second] = builder.rows;
    builder.add(events(4, ["agent.message", { text: "two" }]));
    expect(builder.rows[0]).toBe(first);
    expect(builder.rows[1]).toBe(second);
    expect(builder.rows).toHaveLength(3);
  });

  it("applies each event once", () => {
    const builder = build(["agent.message", { text: "one" }]);
    builder.add(events(1, ["agent.message", { text: "one" }], ["agent.message", { text: "two" }]));
    expect(builder.rows).toHaveLength(2);
  });

  it("shows a message where it reached the agent, with its content", () => {
    const builder = build(
      ["message.queued", { message_id: "m1", type: "user_message", delivery: "steer", position: 0, content: "hello", content_bytes: 5 }],
      ["agent.message", { text: "working" }],
      ["message.acknowledged", { message_id: "m1", state: "acknowledged", how: "injected" }],
    );
    expect(builder.rows).toMatchObject([{ kind: "text" }, { kind: "message", content: "hello", isWhole: true, how: "injected" }]);
  });

  it("shows the message that started a turn before the steps of the turn", () => {
    const builder = build(
      ["message.queued", { message_id: "m1", type: "user_message", content: "go", content_bytes: 2 }],
      ["agent.started", { turn: 1, message_id: "m1" }],
      ["agent.message", { text: "working" }],
      ["message.acknowledged", { message_id: "m1", state: "delivered_unconfirmed", how: null }],
    );
    expect(builder.rows).toMatchObject([{ kind: "turn" }, { kind: "message", state: "delivered_unconfirmed", how: "new_turn" }, { kind: "text" }]);
  });

  it("puts a subagent's rows into its call", () => {
    const builder = build(
      ["agent.tool_use", { tool: "Task", tool_use_id: "t1", input: {} }],
      ["agent.tool_use", { tool: "Read", tool_use_id: "t2", input: {}, parent_tool_use_id: "t1" }],
      ["agent.tool_completed", { tool: "Read", tool_use_id: "t2", output: "x", is_error: false, parent_tool_use_id: "t1" }],
      ["agent.message", { text: "found", parent_tool_use_id: "t1" }],
    );
    expect(builder.rows).toMatchObject([{ kind: "tool", children: [{ kind: "tool", state: "done" }, { kind: "text" }] }]);
  });

  it("ends running calls with their turn", () => {
    const builder = build(
      ["agent.started", { turn: 1 }],
      ["agent.tool_use", { tool: "Bash", tool_use_id: "t1", input: {} }],
      ["agent.interrupted", { turn: 1 }],
    );
    expect(builder.rows).toMatchObject([{ kind: "turn", state: "interrupted" }, { kind: "tool", state: "unfinished" }]);
  });

  it("follows an approval to its decision", () => {
    const builder = build(
      ["approval.requested", { approval_id: "a1", tool: "Bash", input: {} }],
      ["approval.answered", { approval_id: "a1", decision: "deny", reason: "no" }],
      ["approval.resolved", { approval_id: "a1", decision: "deny" }],
    );
    expect(builder.rows).toMatchObject([{ kind: "approval", state: "resolved", decision: "deny", reason: "no" }]);
  });

  it("knows every type of the catalogue, and survives data of another shape", () => {
    const document = readFileSync("../crates/server/openapi.json", "utf8");
    const types = [...document.matchAll(/"enum": \[\s*"([a-z]+\.[a-z_]+)"\s*\]/g)].map((match) => match[1] ?? "");
    expect(types).toContain("git.pr_created");
    const strange = { text: 1, tool_use_id: {}, input: null, items: "x", paths: 3, settings: 4, steps: {}, reason: null, files: 5, retry_s: "x" };
    expect(kinds(build(...types.map((type): Step => [type, strange])).rows)).not.toContain("unknown");
    expect(kinds(build(["custom.metric", strange]).rows)).toEqual(["unknown"]);
  });
});

describe("groupRows", () => {
  const rows = build(...tool("a"), ...tool("b"), ...tool("c", "Read"), ["agent.message", { text: "x" }], ...tool("d"), ...tool("e")).rows;

  it("folds three finished calls, and leaves two and the newest step", () => {
    const display = groupRows(rows);
    expect(kinds(display)).toEqual(["group", "text", "tool", "tool"]);
    const [group] = display;
    expect(group?.kind === "group" ? describeGroup(group.tools) : "").toBe("2 commands, 1 file read");
  });

  it("keeps failures open and the identity of unchanged groups", () => {
    const before = groupRows(rows);
    expect(groupRows(rows, before)[0]).toBe(before[0]);
    const failed = rows.map((row): TimelineRow => (row.key === "tool-b" && row.kind === "tool" ? { ...row, state: "failed" } : row));
    expect(kinds(groupRows(failed))).toEqual(["tool", "tool", "tool", "text", "tool", "tool"]);
  });
});
