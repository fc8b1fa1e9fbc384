import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import type { OpenPort, Preview } from "@/api/types";

/** A preview with its link, which only the response that created it has. */
export type CreatedPreview = Preview & { url: string };

export function usePorts(id: string, isEnabled: boolean): UseQueryResult<OpenPort[]> {
  return useQuery({
    queryKey: ["ports", id],
    enabled: isEnabled,
    queryFn: async () => (await unwrap(api.GET("/api/v1/sandboxes/{id}/ports", { params: { path: { id } } }))).items,
  });
}

export function usePreviews(id: string, isEnabled: boolean): UseQueryResult<Preview[]> {
  return useQuery({
    queryKey: ["previews", id],
    enabled: isEnabled,
    queryFn: async () => (await unwrap(api.GET("/api/v1/sandboxes/{id}/previews", { params: { path: { id } } }))).items,
  });
}

export async function createPreview(id: string, port: number): Promise<CreatedPreview> {
  const preview = await unwrap(api.POST("/api/v1/sandboxes/{id}/previews", { params: { path: { id } }, body: { port } }));
  refreshPreviews(id);
  const { url } = preview;
  if (url == null) throw new Error("the server sent no link");
  return { ...preview, url };
}

export async function revokePreview(id: string, previewId: string): Promise<void> {
  await unwrap(api.DELETE("/api/v1/sandboxes/{id}/previews/{preview_id}", { params: { path: { id, preview_id: previewId } } }));
  refreshPreviews(id);
}

export function refreshPreviews(id: string): void {
  void queryClient.invalidateQueries({ queryKey: ["ports", id] });
  void queryClient.invalidateQueries({ queryKey: ["previews", id] });
}
