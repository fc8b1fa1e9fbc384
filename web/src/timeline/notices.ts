import type { KnownEventType, StoredEvent } from "@/api/types";
import { limitWord } from "@/sandboxes/status";
import { dataOf, describeTool, listField, numberField, textField } from "@/sandboxes/steps";
import { capitalize, formatCost, formatDuration } from "@/text/format";
import { describeGit } from "./git-notices";
import { attention, bad, ok, plain, type NoticeText } from "./notice-text";
import { describeTask } from "./task-notices";

const guardian = (text: string, detail = ""): NoticeText => ({ tone: "guardian", text, detail });

/** The line of an event that is no step of the agent; `null` if the timeline omits it. */
export function describeNotice(event: StoredEvent): NoticeText | null {
  return describeSandbox(event) ?? describeWork(event) ?? describeGit(event) ?? describeTask(event) ?? describeFiles(event);
}

const seconds = (count: number | null) => (count === null ? "" : formatDuration(count * 1000));

function describeSandbox(event: StoredEvent): NoticeText | null {
  switch (event.type as KnownEventType) {
    case "sandbox.running":
      return plain("The sandbox runs");
    case "sandbox.completing":
      return plain("The sandbox ends, and the server exports its results");
    case "sandbox.completed": {
      const data = dataOf<"sandbox.completed">(event);
      const detail = data.reason?.detail ?? "";
      if (data.outcome === "succeeded") return ok("Completed", detail);
      return data.outcome === "failed" ? bad("Ended: the work failed", detail) : plain("Cancelled", detail);
    }
    case "sandbox.failed":
      return bad("The sandbox failed", dataOf<"sandbox.failed">(event).reason?.detail ?? "");
    case "sandbox.paused":
      return plain("Paused");
    case "sandbox.resumed":
      return plain("Resumed");
    case "sandbox.snapshot":
      return plain(`Saved the files as the snapshot ${textField(dataOf<"sandbox.snapshot">(event), "name")}`);
    case "sandbox.notice": {
      const data = dataOf<"sandbox.notice">(event);
      return data.routine === true ? null : attention(capitalize(textField(data, "text")));
    }
    case "sandbox.disk_full":
      return bad("The disk is full", textField(dataOf<"sandbox.disk_full">(event), "text"));
    case "sandbox.stalled":
      return attention("The agent has done nothing", seconds(numberField(dataOf<"sandbox.stalled">(event), "without_work_s")));
    case "sandbox.idle":
      return plain("The sandbox was idle", dataOf<"sandbox.idle">(event).action === "pause" ? "paused until it is used" : "");
    case "sandbox.work_saved":
      return plain("The server saved the work", textField(dataOf<"sandbox.work_saved">(event), "problem"));
    case "sandbox.provider_replaced":
      return attention(`The provider ${textField(dataOf<"sandbox.provider_replaced">(event), "requested")} fails; the fallback took over`);
    case "provider.circuit_opened":
      return bad(`The provider ${textField(dataOf<"provider.circuit_opened">(event), "provider")} fails`, textField(dataOf<"provider.circuit_opened">(event), "detail"));
    case "provider.circuit_closed":
      return ok(`The provider ${textField(dataOf<"provider.circuit_closed">(event), "provider")} works again`);
    case "worker.unreachable":
      return attention("The worker sends no heartbeats", seconds(numberField(dataOf<"worker.unreachable">(event), "silent_s")));
    case "worker.reachable":
      return plain("The worker sends heartbeats again");
    case "worker.restarted":
      return attention("The server restarted the silent worker over the same files");
    case "session.restart_planned":
      return plain("The session continues in another sandbox", seconds(numberField(dataOf<"session.restart_planned">(event), "delay_s")));
    case "session.escalated":
      return bad("Please look: Atoll does not restart the session any more", dataOf<"session.escalated">(event).reason?.detail ?? "");
    case "worker.lost":
      return bad("Events of the worker are lost", textField(dataOf<"worker.lost">(event), "detail"));
    case "worker.rejected":
      return bad("The server rejected an event of the worker", textField(dataOf<"worker.rejected">(event), "detail"));
    case "log.truncated":
      return bad("The log is full: later events of the worker are only counted");
    case "session.resumed":
      return plain("The session continues in this sandbox");
    case "session.forked":
      return plain("The session was forked");
    case "session.closed":
      return plain("The session was closed");
    case "secrets.exposed":
      return attention("The sandbox holds the values of secrets", textField(dataOf<"secrets.exposed">(event), "text"));
    case "network.changed":
      return plain(`Network policy: ${textField(dataOf<"network.changed">(event), "policy")}`);
    case "network.refused": {
      const data = dataOf<"network.refused">(event);
      const count = numberField(data, "count") ?? 1;
      return attention(`The network policy refused ${textField(data, "host")}`, count > 1 ? `${count} connections` : textField(data, "detail"));
    }
    case "service.ready":
      return plain(`The service ${textField(dataOf<"service.ready">(event), "name")} is ready`);
    case "service.exited":
      return attention(`The service ${textField(dataOf<"service.exited">(event), "name")} ended and restarts`, textField(dataOf<"service.exited">(event), "detail"));
    case "service.failed":
      return bad(`The service ${textField(dataOf<"service.failed">(event), "name")} failed`, textField(dataOf<"service.failed">(event), "detail"));
    default:
      return null;
  }
}

function describeWork(event: StoredEvent): NoticeText | null {
  switch (event.type as KnownEventType) {
    case "agent.error":
      return bad("The agent reported an error", textField(dataOf<"agent.error">(event), "error"));
    case "agent.stream_error": {
      const data = dataOf<"agent.stream_error">(event);
      return attention(`A request to the model failed; attempt ${String(data.attempt ?? "?")}`, typeof data.error === "string" ? data.error : "");
    }
    case "agent.rate_limited":
      return attention("The model asked the agent to wait");
    case "agent.unparsed":
      return attention("A line of the agent was not understood", textField(dataOf<"agent.unparsed">(event), "excerpt"));
    case "agent.system_message": {
      const data = dataOf<"agent.system_message">(event);
      const text = textField(data, "text") || textField(data, "error");
      return text === "" ? null : plain(capitalize(text));
    }
    case "agent.settings_ignored": {
      const settings: unknown = dataOf<"agent.settings_ignored">(event).settings;
      const names = (Array.isArray(settings) ? settings : []).map((setting: unknown) => (typeof setting === "object" && setting !== null && "setting" in setting ? String(setting.setting) : "")).join(", ");
      return attention(`The agent does not support these settings: ${names}`);
    }
    case "agent.transcript_failed":
      return attention("The transcript could not be saved", textField(dataOf<"agent.transcript_failed">(event), "error"));
    case "limit.warned": {
      const data = dataOf<"limit.warned">(event);
      return attention(`Most of the limit on ${limitWord(data.limit ?? "turns")} is used`);
    }
    case "limit.paused": {
      const data = dataOf<"limit.paused">(event);
      const value = numberField(data, "value");
      const shown = value === null ? "" : data.limit === "cost_usd" || data.limit === "project_budget" ? ` of ${formatCost(value)}` : ` of ${value}`;
      return attention(`Paused: the limit on ${limitWord(data.limit ?? "turns")}${shown} is reached`, "Raise it in Details to continue.");
    }
    case "limit.resumed":
      return plain("The agent continues after a limit paused it");
    case "limit.changed":
      return plain("The limits changed");
    case "model.refused":
      return attention("The gateway refused a request to the model", textField(dataOf<"model.refused">(event), "detail"));
    case "guardian.denied": {
      const data = dataOf<"guardian.denied">(event);
      return guardian(`A rule denied ${describeTool(textField(data, "tool"), data.input)}`, textField(data, "reason"));
    }
    case "guardian.changed":
      return guardian(`A rule changed the input of ${textField(dataOf<"guardian.changed">(event), "tool")}`);
    case "guardian.detected": {
      const data = dataOf<"guardian.detected">(event);
      const detector = textField(data, "detector").replaceAll("_", " ");
      const summary = textField(data, "summary") || `The guardian found a pattern: ${detector}`;
      const held = textField(data, "held_back").replaceAll("_", " ");
      const action = textField(data, "action").replaceAll("_", " ");
      return guardian(summary, [action === "" ? "" : `${detector}: ${action}`, held === "" ? "" : `(${held})`].filter(Boolean).join(" "));
    }
    case "guardian.nudged": {
      const data = dataOf<"guardian.nudged">(event);
      return guardian("The guardian sent the agent a nudge", textField(data, "text"));
    }
    case "guardian.intervened": {
      const data = dataOf<"guardian.intervened">(event);
      return guardian(`The guardian's action: ${textField(data, "action")}`, textField(data, "summary"));
    }
    case "guardian.escalated":
      return { tone: "attention", text: "The guardian asks for a person", detail: textField(dataOf<"guardian.escalated">(event), "summary") };
    case "guardian.followed_up": {
      const data = dataOf<"guardian.followed_up">(event);
      const next = textField(data, "next_sandbox_id");
      if (next !== "") return guardian("The session continues in a fresh sandbox", next);
      const words: Record<string, string> = {
        stopped: "the agent did something else",
        continued: "the agent continued",
        turn_ended: "the turn ended",
      };
      const outcome = textField(data, "outcome");
      return guardian(`After the guardian's ${textField(data, "action")}: ${words[outcome] ?? outcome}`);
    }
    case "guardian.judged": {
      const report = dataOf<"guardian.judged">(event).report;
      if (report === undefined) return null;
      return guardian(`The judge: ${report.phase}, ${report.activity}`, `alignment ${report.alignment.toFixed(2)}`);
    }
    case "guardian.protected_path":
      return guardian("The results change protected paths, so none were exported", listField(dataOf<"guardian.protected_path">(event), "paths").join(", "));
    case "continuous.started":
      return plain("Continuous mode: the agent works until its checks pass");
    case "continuous.passed":
      return ok("All checks passed");
    case "continuous.stopped":
      return attention("Continuous mode ended before all checks passed", textField(dataOf<"continuous.stopped">(event), "detail"));
    case "continuous.run_failed":
      return bad("A run of the agent failed", textField(dataOf<"continuous.run_failed">(event), "error"));
    default:
      return null;
  }
}

function describeFiles(event: StoredEvent): NoticeText | null {
  switch (event.type as KnownEventType) {
    case "worktree.synced_in":
      return plain("Copied your worktree into the workspace");
    case "worktree.synced_out":
      return plain("Sent the changes to your worktree");
    case "files.written":
      return plain(`A person wrote ${textField(dataOf<"files.written">(event), "path")}`);
    case "files.deleted":
      return plain(`A person deleted ${textField(dataOf<"files.deleted">(event), "path")}`);
    case "files.moved":
      return plain(`A person moved ${textField(dataOf<"files.moved">(event), "from")} to ${textField(dataOf<"files.moved">(event), "to")}`);
    case "files.made":
      return plain(`A person created the directory ${textField(dataOf<"files.made">(event), "path")}`);
    default:
      return null;
  }
}
