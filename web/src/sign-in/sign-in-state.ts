import { useSyncExternalStore } from "react";
import { api, onUnauthorized, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import type { SignIn } from "@/api/types";
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

/** Exchanges a one-time code or an API key for the sign-in cookie. */
export async function signIn(credential: { code: string } | { api_key: string }): Promise<void> {
  await unwrap(api.POST("/api/v1/sign-in-sessions", { body: credential }));
  setSignedOut(false);
  await queryClient.resetQueries();
  feed.retryNow();
}

export async function signOut(): Promise<void> {
  await revokeSignIn("current");
  setSignedOut(true);
}

export async function listSignIns(): Promise<SignIn[]> {
  return (await unwrap(api.GET("/api/v1/sign-in-sessions"))).items;
}

export async function revokeSignIn(id: string): Promise<void> {
  await unwrap(api.DELETE("/api/v1/sign-in-sessions/{id}", { params: { path: { id } } }));
}
