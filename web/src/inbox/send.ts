import { api, unwrap } from "@/api/client";
import { keys, queryClient } from "@/api/queries";
import type { Delivery, Message, Sandbox } from "@/api/types";
import { storeRow } from "@/sandboxes/live-rows";

function refreshMessages(sandboxId: string): void {
  void queryClient.invalidateQueries({ queryKey: keys.messages(sandboxId) });
}

/** A key that makes a repeated request store the message once. */
function idempotencyKey(): string {
  // `randomUUID` exists only on https and localhost.
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export async function sendMessage(sandboxId: string, content: string, delivery: Delivery): Promise<void> {
  const params = { path: { id: sandboxId }, header: { "Idempotency-Key": idempotencyKey() } };
  await unwrap(api.POST("/api/v1/sandboxes/{id}/messages", { params, body: { content, delivery } }));
  refreshMessages(sandboxId);
}

/** Sends to the session, which gets a new sandbox. Returns that sandbox's id. */
export async function continueSession(sandbox: Sandbox, content: string): Promise<string | null> {
  const params = { path: { id: sandbox.session_id }, header: { "Idempotency-Key": idempotencyKey() } };
  const sent = await unwrap(api.POST("/api/v1/sessions/{id}/messages", { params, body: { content } }));
  if (sent.sandbox == null) return null;
  storeRow(sent.sandbox);
  return sent.sandbox.id;
}

export async function sendInterrupt(sandboxId: string, content: string): Promise<void> {
  const params = { path: { id: sandboxId }, header: { "Idempotency-Key": idempotencyKey() } };
  await unwrap(api.POST("/api/v1/sandboxes/{id}/messages", { params, body: { content: content.trim() === "" ? "Stop." : content, type: "interrupt" } }));
  refreshMessages(sandboxId);
}

export async function cancelMessage(sandboxId: string, messageId: string): Promise<void> {
  try {
    await unwrap(api.DELETE("/api/v1/sandboxes/{id}/messages/{mid}", { params: { path: { id: sandboxId, mid: messageId } } }));
  } finally {
    refreshMessages(sandboxId);
  }
}

export async function changeMessage(sandboxId: string, messageId: string, change: { delivery?: Delivery; before?: string }): Promise<void> {
  try {
    await unwrap(api.PATCH("/api/v1/sandboxes/{id}/messages/{mid}", { params: { path: { id: sandboxId, mid: messageId } }, body: change }));
  } finally {
    refreshMessages(sandboxId);
  }
}

/** Messages that the agent does not have yet, in order. */
export function pendingMessages(messages: readonly Message[]): Message[] {
  const pending = messages.filter((message) => (message.state === "queued" || message.state === "leased") && message.type !== "interrupt");
  return pending.sort((a, b) => a.position - b.position);
}

/** An interrupt that the agent has not confirmed. */
export function isStopping(messages: readonly Message[]): boolean {
  return messages.some((message) => message.type === "interrupt" && (message.state === "queued" || message.state === "leased"));
}
