import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { requestJson, sandboxPath } from "@/api/client";
import { queryClient } from "@/api/queries";

export interface OpenPort {
  port: number;
  program?: string | null;
  opened_at: string;
}

export interface Preview {
  id: string;
  port: number;
  expires_at: string;
}

/** A preview with its link, which only the response that created it has. */
export interface CreatedPreview extends Preview {
  url: string;
}

export function usePorts(id: string, isEnabled: boolean): UseQueryResult<OpenPort[]> {
  return useQuery({
    queryKey: ["ports", id],
    enabled: isEnabled,
    queryFn: async () => (await requestJson<{ items: OpenPort[] }>(sandboxPath(id, "/ports"))).items,
  });
}

export function usePreviews(id: string, isEnabled: boolean): UseQueryResult<Preview[]> {
  return useQuery({
    queryKey: ["previews", id],
    enabled: isEnabled,
    queryFn: async () => (await requestJson<{ items: Preview[] }>(sandboxPath(id, "/previews"))).items,
  });
}

export async function createPreview(id: string, port: number): Promise<CreatedPreview> {
  const preview = await requestJson<CreatedPreview>(sandboxPath(id, "/previews"), "POST", { port });
  refreshPreviews(id);
  return preview;
}

export async function revokePreview(id: string, previewId: string): Promise<void> {
  await requestJson(sandboxPath(id, `/previews/${encodeURIComponent(previewId)}`), "DELETE");
  refreshPreviews(id);
}

export function refreshPreviews(id: string): void {
  void queryClient.invalidateQueries({ queryKey: ["ports", id] });
  void queryClient.invalidateQueries({ queryKey: ["previews", id] });
}
