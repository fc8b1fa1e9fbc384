import { isSandboxList, keys, queryClient } from "@/api/queries";
import type { Approval, Sandbox } from "@/api/types";
import { statusOf } from "@/sandboxes/status";
import { readStored, writeStored } from "./stored";

/** Sandboxes that needed a person at the last look, so that each need notifies once. */
let known: Set<string> | null = null;

export type NotificationChoice = "on" | "off" | "blocked" | "unsupported";

export function notificationChoice(): NotificationChoice {
  if (typeof Notification === "undefined") return "unsupported";
  if (Notification.permission === "denied") return "blocked";
  return Notification.permission === "granted" && readStored("notifications") === "on" ? "on" : "off";
}

export async function turnOnNotifications(): Promise<NotificationChoice> {
  if (typeof Notification === "undefined") return "unsupported";
  await Notification.requestPermission();
  writeStored("notifications", "on");
  return notificationChoice();
}

export function turnOffNotifications(): void {
  writeStored("notifications", null);
}

export function needsYou(rows: readonly Sandbox[]): Sandbox[] {
  return rows.filter((row) => statusOf(row).group === "needs_you");
}

/** Shows the number of waiting sandboxes in the title, and notifies about new ones while the page is hidden. */
export function watchNeeds(open: (id: string) => void): () => void {
  return queryClient.getQueryCache().subscribe((change) => {
    if (change.type !== "updated" || !isSandboxList(change.query.queryKey)) return;
    const rows = needsYou(queryClient.getQueryData<Sandbox[]>(keys.sandboxes) ?? []);
    setTitleCount(rows.length);
    const added = known === null ? [] : rows.filter((row) => known?.has(row.id) === false);
    known = new Set(rows.map((row) => row.id));
    if (!document.hidden || notificationChoice() !== "on") return;
    for (const row of added) {
      const status = statusOf(row);
      const shown = new Notification(row.title ?? row.id, { body: status.detail ?? status.word, tag: row.id, icon: "/favicon.svg" });
      shown.onclick = () => {
        window.focus();
        open(row.id);
        shown.close();
      };
    }
  });
}

let titleCount = 0;
let titleText = "";

export function setTitleText(text: string): void {
  titleText = text;
  renderTitle();
}

function setTitleCount(count: number): void {
  titleCount = count;
  renderTitle();
}

function renderTitle(): void {
  const count = titleCount > 0 ? `(${titleCount}) ` : "";
  document.title = `${count}${titleText === "" ? "" : `${titleText} · `}Atoll`;
}

/** Asks of a sandbox that wait for an answer. */
export function approvalsOf(approvals: readonly Approval[] | undefined, id: string): Approval[] {
  return approvals?.filter((approval) => approval.sandbox_id === id && approval.state === "open") ?? [];
}
