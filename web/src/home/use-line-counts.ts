import { useQuery } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import type { Sandbox, StoredEvent } from "@/api/types";
import { fetchChangedFiles } from "@/changes/diff-queries";
import { hasEnded } from "@/sandboxes/status";
import { dataOf } from "@/sandboxes/steps";

export interface CountedLines {
  added: number;
  removed: number;
  at: string;
}

/** Lines change while an agent works; a list does not have to follow each edit. */
const COUNT_INTERVAL_MS = 30_000;

/** The lines that a sandbox changed since its base: in its workspace, or in the branch that it left. */
export function useLineCounts(sandbox: Sandbox, isVisible: boolean): CountedLines | null {
  const { id, turn, state } = sandbox;
  const isEnded = hasEnded(sandbox);
  const query = useQuery({
    queryKey: ["line-counts", id, turn ?? 0, state, sandbox.results],
    enabled: isVisible && sandbox.settings.repo != null && (turn ?? 0) > 0 && (isEnded || state === "running"),
    staleTime: COUNT_INTERVAL_MS,
    refetchInterval: sandbox.activity === "working" && isVisible ? COUNT_INTERVAL_MS : false,
    retry: false,
    placeholderData: (before) => before,
    queryFn: () => (isEnded ? countExported(id) : countWorkspace(id)),
  });
  return query.data ?? null;
}

async function countWorkspace(id: string): Promise<CountedLines> {
  const { files } = await fetchChangedFiles(id, null);
  return sumLines(files, new Date().toISOString());
}

async function countExported(id: string): Promise<CountedLines | null> {
  const query = { type: "git.branch_created", order: "desc" as const, limit: 1 };
  const page = await unwrap(api.GET("/api/v1/sandboxes/{id}/events", { params: { path: { id }, query } }));
  const event: StoredEvent | undefined = page.items[0];
  return event === undefined ? null : sumLines(dataOf<"git.branch_created">(event).files, event.at);
}

export function sumLines(files: unknown, at: string): CountedLines {
  const list: readonly unknown[] = Array.isArray(files) ? files : [];
  const sum = (name: "added" | "removed") =>
    list.reduce<number>((total, file) => {
      const count: unknown = typeof file === "object" && file !== null ? Reflect.get(file, name) : null;
      return typeof count === "number" ? total + count : total;
    }, 0);
  return { added: sum("added"), removed: sum("removed"), at };
}
