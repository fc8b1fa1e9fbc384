import { useQuery, type UseQueryResult } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import type { User } from "@/api/types";

export const USERS_KEY = ["users"] as const;

export function useUsers(): UseQueryResult<User[]> {
  return useQuery({ queryKey: USERS_KEY, retry: false, queryFn: async () => (await unwrap(api.GET("/api/v1/users", { params: { query: { limit: 200 } } }))).items });
}
