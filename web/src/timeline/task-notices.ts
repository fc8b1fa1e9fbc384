import type { KnownEventType, StoredEvent } from "@/api/types";
import { dataOf, numberField, textField } from "@/sandboxes/steps";
import { formatDuration } from "@/text/format";
import { attention, bad, ok, plain, type NoticeText } from "./notice-text";

/** The line of an event about the sandbox's task. */
export function describeTask(event: StoredEvent): NoticeText | null {
  switch (event.type as KnownEventType) {
    case "task.assigned":
      return plain("The sandbox got a task", textField(dataOf<"task.assigned">(event), "title"));
    case "task.running":
      return plain("The agent works on its task");
    case "task.warned": {
      const left = numberField(dataOf<"task.warned">(event), "left_s");
      return attention("The task's time limit comes near", left === null ? "" : `${formatDuration(left * 1000)} left`);
    }
    case "task.interrupted":
      return bad("The task reached its time limit");
    case "task.validating":
      return plain("The work on the task waits for a verdict");
    case "task.needs_revision":
      return attention("The work on the task needs a revision", textField(dataOf<"task.needs_revision">(event), "feedback"));
    case "task.retrying": {
      const data = dataOf<"task.retrying">(event);
      const retry = numberField(data, "retry_s");
      const text = retry === null ? "The attempt at the task failed" : `The attempt at the task failed; the next one starts in ${formatDuration(retry * 1000)}`;
      return attention(text, data.reason?.detail ?? "");
    }
    case "task.completed":
      return ok("The task is completed");
    case "task.failed":
      return bad("The task failed", dataOf<"task.failed">(event).reason?.detail ?? "");
    case "task.cancelled":
      return plain("The task was cancelled");
    default:
      return null;
  }
}
