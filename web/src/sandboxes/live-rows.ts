import { useSyncExternalStore } from "react";
import { fetchSandbox, isSandboxList, keys, queryClient } from "@/api/queries";
import { Problem } from "@/api/problem";
import type { Sandbox, StoredEvent } from "@/api/types";
import { feed } from "@/events/feed";
import { describeStep } from "./steps";

/** Minimum time between two requests for rows, and for the list. */
const ROW_INTERVAL_MS = 400;
const LIST_INTERVAL_MS = 2_000;
/** More changed rows than this are fetched as a list. */
const MAX_SINGLE_ROWS = 8;

export interface LastStep {
  text: string;
  at: string;
  seq: number;
}

const lastSteps = new Map<string, LastStep>();
const stepListeners = new Set<() => void>();
const changedRows = new Set<string>();
let isRefreshing = false;

/** Keeps rows, approvals and messages current: each event that may change one causes a request for it. */
export function followRows(): () => void {
  const stopEvents = feed.onEvents((id, events) => {
    noteSteps(id, events);
    if (events.some((event) => changesRow(event.type))) refreshRow(id);
    if (events.some((event) => event.type.startsWith("approval."))) void queryClient.invalidateQueries({ queryKey: keys.approvals });
    if (events.some((event) => event.type.startsWith("message."))) void queryClient.invalidateQueries({ queryKey: keys.messages(id) });
  });
  const stopReconnect = feed.onReconnect(() => {
    void queryClient.invalidateQueries();
  });
  const stopCache = queryClient.getQueryCache().subscribe((change) => {
    if (change.type !== "updated" || !isSandboxList(change.query.queryKey)) return;
    for (const row of queryClient.getQueryData<Sandbox[]>(keys.sandboxes) ?? []) feed.noteRow(row.id, row.last_seq);
  });
  return () => {
    stopEvents();
    stopReconnect();
    stopCache();
  };
}

/** Streams of text and output change no field of a row. */
function changesRow(type: string): boolean {
  return type !== "setup.output" && type !== "agent.thinking" && type !== "agent.assistant_message" && type !== "agent.user_tool_result";
}

function noteSteps(id: string, events: readonly StoredEvent[]): void {
  for (const event of events.toReversed()) {
    const text = describeStep(event);
    if (text === null) continue;
    noteLastStep(id, { text, at: event.at, seq: event.seq });
    return;
  }
}

export function noteLastStep(id: string, step: LastStep): void {
  if ((lastSteps.get(id)?.seq ?? 0) >= step.seq) return;
  lastSteps.set(id, step);
  for (const listener of stepListeners) listener();
}

function subscribeSteps(listener: () => void): () => void {
  stepListeners.add(listener);
  return () => stepListeners.delete(listener);
}

export function useLastStep(id: string): LastStep | null {
  return useSyncExternalStore(subscribeSteps, () => lastSteps.get(id) ?? null);
}

export function getLastStep(id: string): LastStep | null {
  return lastSteps.get(id) ?? null;
}

/** Fetches the rows that changed: now, and once more later if some change meanwhile. */
function refreshRow(id: string): void {
  changedRows.add(id);
  if (!isRefreshing) void refreshRows();
}

async function refreshRows(): Promise<void> {
  isRefreshing = true;
  const ids = [...changedRows];
  changedRows.clear();
  const isMany = ids.length > MAX_SINGLE_ROWS;
  const isOpen = (id: string) => (queryClient.getQueryCache().find({ queryKey: keys.sandbox(id) })?.getObserversCount() ?? 0) > 0;
  // One request for the list costs less than one for each of its rows.
  const list = isMany ? [queryClient.refetchQueries({ queryKey: keys.sandboxes, exact: true })] : [];
  await Promise.all([...list, ...(isMany ? ids.filter(isOpen) : ids).map(fetchRow)]);
  setTimeout(() => {
    isRefreshing = false;
    if (changedRows.size > 0) void refreshRows();
  }, isMany ? LIST_INTERVAL_MS : ROW_INTERVAL_MS);
}

async function fetchRow(id: string): Promise<void> {
  try {
    storeRow(await fetchSandbox(id));
  } catch (failure) {
    if (failure instanceof Problem && failure.status === 404) removeRow(id);
  }
}

/** Stores a row that a response returned, in the list and by itself. */
export function storeRow(row: Sandbox): void {
  queryClient.setQueryData<Sandbox>(keys.sandbox(row.id), (before) => (isOlder(row, before) ? before : row));
  queryClient.setQueryData<Sandbox[]>(keys.sandboxes, (rows) => {
    if (rows === undefined) return rows;
    const index = rows.findIndex((each) => each.id === row.id);
    if (index < 0) return row.archived === true ? rows : [row, ...rows];
    if (isOlder(row, rows[index])) return rows;
    return row.archived === true ? rows.toSpliced(index, 1) : rows.with(index, row);
  });
}

function isOlder(row: Sandbox, before: Sandbox | undefined): boolean {
  return before !== undefined && before.last_seq > row.last_seq;
}

function removeRow(id: string): void {
  queryClient.setQueryData<Sandbox[]>(keys.sandboxes, (rows) => rows?.filter((row) => row.id !== id));
}
