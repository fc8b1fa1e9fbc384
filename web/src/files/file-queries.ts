import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, requestRaw, sandboxPath, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import type { SandboxFile } from "@/api/types";

/** Larger files are downloaded, not shown. */
export const MAX_SHOWN_BYTES = 1_000_000;
const PAGE_LIMIT = 1_000;

export function useDirectory(id: string, path: string, isOpen: boolean): UseQueryResult<SandboxFile[]> {
  return useQuery({
    queryKey: ["files", id, path],
    enabled: isOpen,
    queryFn: async () => {
      const items: SandboxFile[] = [];
      let cursor: string | null = null;
      do {
        const query: { path?: string; limit: number; cursor?: string } = { limit: PAGE_LIMIT };
        if (path !== "") query.path = path;
        if (cursor !== null) query.cursor = cursor;
        const page = await unwrap(api.GET("/api/v1/sandboxes/{id}/files/list", { params: { path: { id }, query } }));
        items.push(...page.items);
        cursor = page.next_cursor ?? null;
      } while (cursor !== null);
      return items.sort((a, b) => Number(b.kind === "directory") - Number(a.kind === "directory") || (a.name < b.name ? -1 : 1));
    },
  });
}

export interface FileContent {
  /** `null` for a file that is not text. */
  text: string | null;
  bytes: number;
}

export function useFileContent(id: string, path: string, size: number): UseQueryResult<FileContent> {
  return useQuery({
    queryKey: ["file", id, path],
    enabled: size <= MAX_SHOWN_BYTES,
    queryFn: async ({ signal }) => {
      const response = await requestRaw(downloadUrl(id, path), { signal });
      const bytes = new Uint8Array(await response.arrayBuffer());
      return { text: decodeText(bytes), bytes: bytes.length };
    },
  });
}

function decodeText(bytes: Uint8Array): string | null {
  if (bytes.includes(0)) return null;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return null;
  }
}

export function downloadUrl(id: string, path: string): string {
  return sandboxPath(id, "/files", { path });
}

export function downloadDirectoryUrl(id: string, path: string): string {
  return sandboxPath(id, "/files/tar", { path: path === "" ? "." : path });
}

export function refreshFiles(id: string): void {
  void queryClient.invalidateQueries({ queryKey: ["files", id] });
  void queryClient.invalidateQueries({ queryKey: ["file", id] });
}

export async function writeFile(id: string, path: string, content: Blob | string): Promise<void> {
  const headers = { "Content-Type": "application/octet-stream" };
  await requestRaw(sandboxPath(id, "/files", { path, parents: "true" }), { method: "PUT", body: content, headers });
  refreshFiles(id);
}

export async function deleteFile(id: string, path: string): Promise<void> {
  await unwrap(api.DELETE("/api/v1/sandboxes/{id}/files", { params: { path: { id }, query: { path, recursive: true } } }));
  refreshFiles(id);
}

export function joinPath(directory: string, name: string): string {
  return directory === "" ? name : `${directory}/${name}`;
}
