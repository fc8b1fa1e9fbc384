import createClient, { type FetchResponse, type MaybeOptionalInit } from "openapi-fetch";
import type { MediaType } from "openapi-typescript-helpers";
import type { paths } from "./generated/schema";
import { type Problem, problemFromBody, problemFromResponse, unreachable } from "./problem";

/** The server rejects a change by cookie without this header, so that no other site can cause one. */
const PAGE_HEADER = { "X-Atoll-Page": "1" };

type UnauthorizedListener = () => void;
let reportUnauthorized: UnauthorizedListener = () => undefined;

/** Registers the listener that shows the sign-in screen. */
export function onUnauthorized(listener: UnauthorizedListener): void {
  reportUnauthorized = listener;
}

async function fetchSameOrigin(request: Request): Promise<Response> {
  const response = await fetchOrFail(request);
  if (response.status === 401) reportUnauthorized();
  return response;
}

async function fetchOrFail(request: Request): Promise<Response> {
  try {
    return await fetch(request);
  } catch (failure) {
    if (failure instanceof DOMException && failure.name === "AbortError") throw failure;
    throw unreachable();
  }
}

export const api = createClient<paths>({
  baseUrl: globalThis.location.origin,
  credentials: "same-origin",
  headers: PAGE_HEADER,
  fetch: fetchSameOrigin,
});

type AnyOperation = Record<string | number, unknown>;

/** Returns the data of a response, or throws its problem. */
export async function unwrap<T extends AnyOperation, O extends MaybeOptionalInit<AnyOperation, never>, M extends MediaType>(
  pending: Promise<FetchResponse<T, O, M>>,
): Promise<NonNullable<FetchResponse<T, O, M>["data"]>> {
  const { data, error, response } = await pending;
  if (!response.ok || data === undefined) {
    throw problemFromBody(response.status, error) satisfies Problem;
  }
  return data as NonNullable<FetchResponse<T, O, M>["data"]>;
}

/** Sends a request that the generated client does not cover: text or bytes. */
export async function requestRaw(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  headers.set("X-Atoll-Page", "1");
  const url = new URL(path, globalThis.location.origin);
  const response = await fetchSameOrigin(new Request(url, { ...init, headers, credentials: "same-origin" }));
  if (!response.ok) throw await problemFromResponse(response);
  return response;
}

/** Reads the server's metrics. They may need a token; then the page has none, but is still signed in. */
export async function fetchMetrics(): Promise<string> {
  const response = await fetchOrFail(new Request(new URL("/metrics", globalThis.location.origin), { credentials: "same-origin" }));
  if (!response.ok) throw await problemFromResponse(response);
  return response.text();
}

export function sandboxPath(id: string, rest = "", query: Record<string, string | undefined> = {}): string {
  const search = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined) search.set(key, value);
  const suffix = search.size > 0 ? `?${search.toString()}` : "";
  return `/api/v1/sandboxes/${encodeURIComponent(id)}${rest}${suffix}`;
}
