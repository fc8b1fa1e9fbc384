import type { EventData, KnownEventType, StoredEvent } from "@/api/types";
import { dataOf, listField, numberField, textField } from "@/sandboxes/steps";
import { formatDuration, plural } from "@/text/format";
import { attention, bad, ok, plain, type NoticeText } from "./notice-text";

/** The line of an event about the session's branch. */
export function describeGit(event: StoredEvent): NoticeText | null {
  switch (event.type as KnownEventType) {
    case "git.cloned": {
      const data = dataOf<"git.cloned">(event);
      const uncommitted = numberField(data, "uncommitted") ?? 0;
      const detail = uncommitted > 0 ? `${plural(uncommitted, "file")} with uncommitted changes stayed outside` : "";
      return plain(`Copied the repository at ${textField(data, "commit").slice(0, 8)}`, detail);
    }
    case "git.branch_created": {
      const data = dataOf<"git.branch_created">(event);
      return ok(`Exported the branch ${textField(data, "branch")}`, plural(numberField(data, "commits") ?? 0, "commit"));
    }
    case "git.nothing_changed":
      return plain("There are no changes to export");
    case "git.branch_updated": {
      const data = dataOf<"git.branch_updated">(event);
      return plain(`The branch got the newest commits of its base by a ${textField(data, "method") || "merge"}`);
    }
    case "git.conflict":
      return attention("The branch conflicts with its base: the agent gets the conflict", listField(dataOf<"git.conflict">(event), "paths").join(", "));
    case "git.push_flagged":
      return attention("The branch changes files that decide what machines run", listField(dataOf<"git.push_flagged">(event), "paths").join(", "));
    case "git.pushed": {
      const data = dataOf<"git.pushed">(event);
      return ok(`Pushed the branch ${textField(data, "branch")}`, textField(data, "repo"));
    }
    case "git.push_failed":
      return describeFailure("The branch was not pushed", dataOf<"git.push_failed">(event));
    case "git.pr_created":
      return ok(`Opened pull request ${numberOf(event)}`, textField(dataOf<"git.pr_created">(event), "title"));
    case "git.pr_updated":
      return plain(`Updated pull request ${numberOf(event)}`);
    case "git.pr_failed":
      return describeFailure("The pull request was not opened", dataOf<"git.pr_failed">(event));
    case "git.merge_waiting":
      return plain(`The merge of pull request ${numberOf(event)} waits`, textField(dataOf<"git.merge_waiting">(event), "reason"));
    case "git.merge_completed":
      return ok(`Merged pull request ${numberOf(event)}`);
    case "git.merge_failed":
      return describeFailure("The pull request was not merged", dataOf<"git.merge_failed">(event));
    case "git.branch_removed":
      return plain(`Deleted the merged branch ${textField(dataOf<"git.branch_removed">(event), "branch")}`);
    case "git.pr_merged":
      return ok(`Pull request ${numberOf(event)} was merged`);
    case "git.pr_closed":
      return plain(`Pull request ${numberOf(event)} was closed`);
    case "git.reviewed": {
      const data = dataOf<"git.reviewed">(event);
      return attention(`${textField(data, "reviewer")} reviewed: ${textField(data, "verdict").replaceAll("_", " ")}`, textField(data, "text"));
    }
    case "git.check_failed":
      return bad(`The check ${textField(dataOf<"git.check_failed">(event), "name")} failed`, textField(dataOf<"git.check_failed">(event), "text"));
    case "git.branch_moved":
      return attention("The branch got other commits at the forge");
    case "git.branch_deleted":
      return attention("The branch was deleted at the forge");
    default:
      return null;
  }
}

function numberOf(event: StoredEvent): string {
  const number = numberField(dataOf<"git.pr_created">(event), "number");
  return number === null ? "" : `#${number}`;
}

function describeFailure(text: string, data: Partial<EventData<"git.push_failed">>): NoticeText {
  const retry = numberField(data, "retry_s");
  const detail = textField(data, "detail");
  return retry === null ? bad(text, detail) : attention(text, `${detail}${detail === "" ? "" : ". "}Next attempt in ${formatDuration(retry * 1000)}.`);
}
