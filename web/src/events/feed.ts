import { useEffect, useSyncExternalStore } from "react";
import { api, unwrap } from "@/api/client";
import { type Connection, EventFeed, type EventPage } from "./event-feed";
import type { EventLog, LiveText } from "./event-log";

const PAGE_SIZE = 500;

async function fetchEventPage(id: string, cursor: string | null): Promise<EventPage> {
  const query = { order: "desc" as const, limit: PAGE_SIZE, ...(cursor === null ? {} : { cursor }) };
  let page = await unwrap(api.GET("/api/v1/sandboxes/{id}/events", { params: { path: { id }, query } }));
  // A page can be empty and still have a successor.
  while (page.items.length === 0 && page.next_cursor != null) {
    const next = { ...query, cursor: page.next_cursor };
    page = await unwrap(api.GET("/api/v1/sandboxes/{id}/events", { params: { path: { id }, query: next } }));
  }
  return { events: page.items.toReversed(), olderCursor: page.next_cursor ?? null };
}

const socketUrl = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/api/v1/events/ws`;

/** The feed of this tab. */
export const feed = new EventFeed(socketUrl, fetchEventPage, () => {
  // An expired sign-in shows the sign-in screen; without a server, nothing changes.
  api.GET("/api/v1/projects", { params: { query: { limit: 1 } } }).catch(() => undefined);
});

export function useConnection(): Connection {
  return useSyncExternalStore(feed.subscribe, feed.getConnection);
}

/** Follows the event log of a sandbox while the component is mounted. */
export function useEventLog(id: string): EventLog {
  useEffect(() => feed.openLog(id), [id]);
  return useSyncExternalStore(feed.subscribe, () => feed.getLog(id));
}

export function useLiveText(id: string): LiveText {
  return useSyncExternalStore(feed.subscribe, () => feed.getLive(id));
}

export function useLogFailure(id: string): unknown {
  return useSyncExternalStore(feed.subscribe, () => feed.getFailure(id));
}
