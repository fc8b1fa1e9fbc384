import { keepPreviousData, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, requestRaw, sandboxPath, unwrap } from "@/api/client";
import type { DiffFile } from "@/api/types";
import { parsePatch, type PatchFile } from "./patch";

/** Patches above this size are shown in part. */
const MAX_PATCH_CHARACTERS = 4_000_000;

export interface ChangedFiles {
  base: string | null;
  files: DiffFile[];
}

/** The changed files of the workspace, or of one turn. */
export async function fetchChangedFiles(id: string, turn: number | null): Promise<ChangedFiles> {
  const files: DiffFile[] = [];
  let cursor: string | null = null;
  let base: string | null;
  do {
    const query: { turn?: number; cursor?: string } = {};
    if (turn !== null) query.turn = turn;
    if (cursor !== null) query.cursor = cursor;
    const page = await unwrap(api.GET("/api/v1/sandboxes/{id}/diff", { params: { path: { id }, query } }));
    files.push(...page.files);
    base = page.base ?? null;
    cursor = page.next_cursor ?? null;
  } while (cursor !== null);
  return { base, files };
}

/** `version` changes when the workspace may have changed. */
export function useChangedFiles(id: string, turn: number | null, version: number): UseQueryResult<ChangedFiles> {
  return useQuery({ queryKey: ["diff", id, turn, version], placeholderData: keepPreviousData, queryFn: () => fetchChangedFiles(id, turn) });
}

export function useFilePatch(id: string, turn: number | null, file: DiffFile | null, version: number): UseQueryResult<PatchFile> {
  const path = file?.path ?? "";
  return useQuery({
    queryKey: ["patch", id, turn, path, version],
    enabled: file !== null,
    placeholderData: keepPreviousData,
    queryFn: async ({ signal }): Promise<PatchFile> => {
      const url = sandboxPath(id, "/diff", { path, turn: turn === null ? undefined : String(turn) });
      const response = await requestRaw(url, { headers: { Accept: "text/x-diff" }, signal });
      const files = parsePatch((await response.text()).slice(0, MAX_PATCH_CHARACTERS));
      const own = files.filter((each) => each.path === path || each.oldPath === path);
      // A turn's patch has one part for each edit of the file.
      return { path, oldPath: own[0]?.oldPath ?? null, lines: (own.length > 0 ? own : files).flatMap((each) => each.lines) };
    },
  });
}
