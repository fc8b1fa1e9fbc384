import type { Sandbox } from "@/api/types";
import { statusOf, type StatusGroup } from "@/sandboxes/status";
import { matchesWords } from "@/text/search";

export const GROUP_ORDER: readonly StatusGroup[] = ["needs_you", "working", "waiting", "done"];

export interface HomeFilter {
  q?: string | undefined;
  project?: string | undefined;
  agent?: string | undefined;
}

/** The rows that match the filter, by group, the most recently changed first. */
export function groupSandboxes(rows: readonly Sandbox[], filter: HomeFilter): Record<StatusGroup, Sandbox[]> {
  const groups: Record<StatusGroup, Sandbox[]> = { needs_you: [], working: [], waiting: [], done: [] };
  for (const row of rows) {
    if (!matchesFilter(row, filter)) continue;
    groups[statusOf(row).group].push(row);
  }
  // Those that have waited longest for a person come first; elsewhere a steady order, so that rows do not jump.
  groups.needs_you.sort((a, b) => compare(a.state_since, b.state_since));
  groups.working.sort((a, b) => compare(b.created_at, a.created_at));
  groups.waiting.sort((a, b) => compare(b.updated_at, a.updated_at));
  groups.done.sort((a, b) => compare(b.ended_at ?? b.updated_at, a.ended_at ?? a.updated_at));
  return groups;
}

function matchesFilter(row: Sandbox, { q, project, agent }: HomeFilter): boolean {
  if (project !== undefined && row.project_id !== project) return false;
  if (agent !== undefined && row.agent !== agent) return false;
  if (q === undefined) return true;
  const labels = Object.entries(row.labels).map(([key, value]) => `${key}=${value}`);
  return matchesWords(q, [row.title, row.name, row.branch, row.agent, row.id, statusOf(row).word, ...labels].join(" "));
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}
