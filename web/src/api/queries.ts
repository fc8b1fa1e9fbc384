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

const LIST_LIMIT = 200;

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
    queryFn: async () => (await unwrap(api.GET("/api/v1/sandboxes", { params: { query: { limit: LIST_LIMIT } } }))).items,
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
    queryFn: async () => (await unwrap(api.GET("/api/v1/approvals", { params: { query: { limit: LIST_LIMIT } } }))).items,
  });
}

/** The newest messages of a sandbox's session. */
export function useMessages(id: string): UseQueryResult<Message[]> {
  return useQuery({
    queryKey: keys.messages(id),
    queryFn: async () => {
      const all: Message[] = [];
      let cursor: string | undefined;
      do {
        const query: { limit: number; cursor?: string } = cursor === undefined ? { limit: LIST_LIMIT } : { limit: LIST_LIMIT, cursor };
        const page = await unwrap(api.GET("/api/v1/sandboxes/{id}/messages", { params: { path: { id }, query } }));
        all.push(...page.items);
        cursor = page.next_cursor ?? undefined;
      } while (cursor !== undefined);
      return all;
    },
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
    queryFn: async () => (await unwrap(api.GET("/api/v1/projects", { params: { query: { limit: LIST_LIMIT } } }))).items,
  });
}

export function useSession(id: string | undefined): UseQueryResult<Session> {
  return useQuery({
    queryKey: ["session", id],
    enabled: id !== undefined,
    queryFn: () => unwrap(api.GET("/api/v1/sessions/{id}", { params: { path: { id: id ?? "" } } })),
  });
}
