import { useQuery } from "@tanstack/react-query";
import type { Sandbox } from "@/api/types";
import { fetchChangedFiles } from "@/changes/diff-queries";
import { hasEnded } from "@/sandboxes/status";

interface CountedLines {
  added: number;
  removed: number;
  at: string;
}

/** Lines change while an agent works; a list does not have to follow each edit. */
const COUNT_INTERVAL_MS = 30_000;

/** The lines that a sandbox changed since its base: in its workspace, or in the branch that it left. */
export function useLineCounts(sandbox: Sandbox, isVisible: boolean): CountedLines | null {
  const { id, state, results } = sandbox;
  const turn = sandbox.turn ?? 0;
  const query = useQuery({
    queryKey: ["line-counts", id, turn, state, results],
    enabled: isVisible && sandbox.settings.repo != null && turn > 0 && (state === "running" || hasEnded(sandbox)),
    staleTime: COUNT_INTERVAL_MS,
    refetchInterval: sandbox.activity === "working" && isVisible ? COUNT_INTERVAL_MS : false,
    retry: false,
    placeholderData: (before) => before,
    queryFn: async (): Promise<CountedLines> => {
      const { files } = await fetchChangedFiles(id, null);
      const sum = (name: "added" | "removed") => files.reduce((total, file) => total + file[name], 0);
      return { added: sum("added"), removed: sum("removed"), at: new Date().toISOString() };
    },
  });
  return query.data ?? null;
}
