import { ArrowUp, CornerDownRight, ListEnd, Pencil, ShieldHalf, X } from "lucide-react";
import { Problem } from "@/api/problem";
import type { Message } from "@/api/types";
import { IconButton } from "@/components/button";
import { reportFailure } from "@/components/toast";
import { SafeText } from "@/text/safe-text-view";
import { cancelMessage, changeMessage } from "./send";

interface QueueStripProps {
  sandboxId: string;
  messages: readonly Message[];
  canSteer: boolean;
  onEdit: (text: string) => void;
}

/** Messages that the agent does not have yet. Each can be edited, moved and cancelled until it is delivered. */
export function QueueStrip({ sandboxId, messages, canSteer, onEdit }: QueueStripProps) {
  if (messages.length === 0) return null;
  const act = (action: () => Promise<unknown>) => {
    action().catch((failure: unknown) => {
      const isDelivered = failure instanceof Problem && failure.code === "message_not_queued";
      reportFailure(isDelivered ? "The agent already has this message" : "Not changed", failure);
    });
  };
  return (
    <section aria-label="Queued messages" className="scroll-area max-h-52 border-t border-line bg-raised px-4 py-2 md:px-6">
      <h3 className="mb-1 text-meta font-semibold text-muted">Queued: {messages.length}</h3>
      <ol className="flex flex-col gap-1">
        {messages.map((message, index) => {
          const isQueued = message.state === "queued";
          const previous = messages[index - 1];
          const Icon = message.type === "guardian_nudge" ? ShieldHalf : message.delivery === "steer" ? CornerDownRight : ListEnd;
          return (
            <li key={message.id} className="flex items-start gap-2 rounded-md border border-line bg-bg py-1 pr-1 pl-2.5">
              <Icon size={15} className="mt-1.5 shrink-0 text-muted" aria-hidden />
              <div className="min-w-0 flex-1 py-1">
                <p className="scroll-area max-h-24 text-control whitespace-pre-wrap [overflow-wrap:anywhere]"><SafeText text={message.content} /></p>
                <p className="text-meta text-muted">{describeState(message)}</p>
              </div>
              {isQueued && (
                <div className="flex shrink-0">
                  {message.delivery === "queue" && canSteer && (
                    <IconButton label="Steer with it now" size="small" onClick={() => { act(() => changeMessage(sandboxId, message.id, { delivery: "steer" })); }}><CornerDownRight size={15} aria-hidden /></IconButton>
                  )}
                  {previous !== undefined && previous.state === "queued" && (
                    <IconButton label="Move up" size="small" onClick={() => { act(() => changeMessage(sandboxId, message.id, { before: previous.id })); }}><ArrowUp size={15} aria-hidden /></IconButton>
                  )}
                  <IconButton
                    label="Edit: take it out of the queue and into the message box"
                    size="small"
                    onClick={() => { act(async () => { await cancelMessage(sandboxId, message.id); onEdit(message.content); }); }}
                  >
                    <Pencil size={14} aria-hidden />
                  </IconButton>
                  <IconButton label="Cancel the message" size="small" onClick={() => { act(() => cancelMessage(sandboxId, message.id)); }}><X size={15} aria-hidden /></IconButton>
                </div>
              )}
            </li>
          );
        })}
      </ol>
    </section>
  );
}

function describeState(message: Message): string {
  if (message.state === "leased") return "On its way to the agent";
  return message.delivery === "steer" ? "Waits for the agent to take it" : "Waits for the end of the turn";
}
