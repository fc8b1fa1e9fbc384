import { QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, unwrap } from "./client";
import { Problem } from "./problem";
import type { Agent, Approval, Message, Project, Provider, Sandbox, Session } from "./types";

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 15_000,
      refetchOnWindowFocus: true,
      networkMode: "always",
      retry: (count, failure) => count < 2 && !(failure instanceof Problem && failure.status >= 400 && failure.status < 500),
    },
    mutations: { networkMode: "always" },
  },
});

const PAGE_SIZE = 200;
/** Lists hold at most this many rows, the newest first. */
export const MAX_LIST_ROWS = 1_000;

interface ListPage<T> {
  items: T[];
  next_cursor?: string | null;
}

/** Reads a list page by page. */
async function fetchList<T>(fetchPage: (query: { limit: number; cursor?: string }) => Promise<ListPage<T>>, maxRows = MAX_LIST_ROWS): Promise<T[]> {
  const rows: T[] = [];
  let cursor: string | null = null;
  do {
    const page: ListPage<T> = await fetchPage(cursor === null ? { limit: PAGE_SIZE } : { limit: PAGE_SIZE, cursor });
    rows.push(...page.items);
    cursor = page.next_cursor ?? null;
  } while (cursor !== null && rows.length < maxRows);
  return rows;
}

export const keys = {
  sandboxes: ["sandboxes"] as const,
  sandbox: (id: string) => ["sandbox", id] as const,
  approvals: ["approvals"] as const,
  messages: (id: string) => ["messages", id] as const,
  agents: ["agents"] as const,
  providers: ["providers"] as const,
  projects: ["projects"] as const,
  sessions: ["sessions"] as const,
};

export function isSandboxList(key: readonly unknown[]): boolean {
  return key[0] === keys.sandboxes[0];
}

export function useSandboxes(): UseQueryResult<Sandbox[]> {
  return useQuery({
    queryKey: keys.sandboxes,
    queryFn: async () => keepNewer(await fetchList((query) => unwrap(api.GET("/api/v1/sandboxes", { params: { query } })))),
  });
}

/** A row of the list may be older than one that was fetched meanwhile. */
function keepNewer(rows: Sandbox[]): Sandbox[] {
  const known = new Map(queryClient.getQueryData<Sandbox[]>(keys.sandboxes)?.map((row) => [row.id, row] as const));
  return rows.map((row) => {
    const before = known.get(row.id);
    return before !== undefined && before.last_seq > row.last_seq ? before : row;
  });
}

export async function fetchSandbox(id: string): Promise<Sandbox> {
  return unwrap(api.GET("/api/v1/sandboxes/{id}", { params: { path: { id } } }));
}

export function useSandbox(id: string): UseQueryResult<Sandbox> {
  return useQuery({
    queryKey: keys.sandbox(id),
    queryFn: () => fetchSandbox(id),
    // The list usually has the row already.
    initialData: () => queryClient.getQueryData<Sandbox[]>(keys.sandboxes)?.find((row) => row.id === id),
    initialDataUpdatedAt: 0,
  });
}

/** All pending approvals of all sandboxes. */
export function useApprovals(): UseQueryResult<Approval[]> {
  return useQuery({
    queryKey: keys.approvals,
    queryFn: () => fetchList((query) => unwrap(api.GET("/api/v1/approvals", { params: { query } }))),
  });
}

/** All messages of a sandbox's session. */
export function useMessages(id: string): UseQueryResult<Message[]> {
  return useQuery({
    queryKey: keys.messages(id),
    queryFn: () => fetchList((query) => unwrap(api.GET("/api/v1/sandboxes/{id}/messages", { params: { path: { id }, query } })), Infinity),
  });
}

export function useAgents(): UseQueryResult<Agent[]> {
  return useQuery({ queryKey: keys.agents, queryFn: async () => (await unwrap(api.GET("/api/v1/agents"))).items });
}

export function useProviders(): UseQueryResult<Provider[]> {
  return useQuery({ queryKey: keys.providers, queryFn: async () => (await unwrap(api.GET("/api/v1/providers"))).items });
}

export function useProjects(): UseQueryResult<Project[]> {
  return useQuery({
    queryKey: keys.projects,
    queryFn: () => fetchList((query) => unwrap(api.GET("/api/v1/projects", { params: { query } }))),
  });
}

export function useSession(id: string | undefined): UseQueryResult<Session> {
  return useQuery({
    queryKey: ["session", id],
    enabled: id !== undefined,
    queryFn: () => unwrap(api.GET("/api/v1/sessions/{id}", { params: { path: { id: id ?? "" } } })),
  });
}
