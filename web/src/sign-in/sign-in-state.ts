import { useSyncExternalStore } from "react";
import { onUnauthorized, requestJson } from "@/api/client";
import { queryClient } from "@/api/queries";
import { feed } from "@/events/feed";

/** The server rejected a request for lack of a valid sign-in session. */
let isSignedOut = false;
const listeners = new Set<() => void>();

function setSignedOut(value: boolean): void {
  if (isSignedOut === value) return;
  isSignedOut = value;
  for (const listener of listeners) listener();
}

onUnauthorized(() => {
  setSignedOut(true);
});

export function useSignedOut(): boolean {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => isSignedOut,
  );
}

export interface SignInSession {
  id: string;
  created_at: string;
  last_used_at?: string | null;
  expires_at: string;
  user_agent?: string | null;
  is_current?: boolean;
}

const PATH = "/api/v1/sign-in-sessions";

/** Exchanges a one-time code or an API key for the sign-in cookie. */
export async function signIn(credential: { code: string } | { api_key: string }): Promise<void> {
  await requestJson<SignInSession>(PATH, "POST", credential);
  setSignedOut(false);
  await queryClient.resetQueries();
  feed.retryNow();
}

export async function signOut(): Promise<void> {
  await requestJson(`${PATH}/current`, "DELETE");
  setSignedOut(true);
}

export async function listSignInSessions(): Promise<SignInSession[]> {
  return (await requestJson<{ items: SignInSession[] }>(PATH)).items;
}

export async function revokeSignInSession(id: string): Promise<void> {
  await requestJson(`${PATH}/${encodeURIComponent(id)}`, "DELETE");
}
