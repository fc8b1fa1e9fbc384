import { useEffect, useRef, useState, type KeyboardEvent } from "react";
import { useNavigate } from "@tanstack/react-router";
import { ListEnd, SendHorizontal, Zap } from "lucide-react";
import { useAgents } from "@/api/queries";
import type { Message, Sandbox } from "@/api/types";
import { Button } from "@/components/button";
import { useAction } from "@/components/use-action";
import { readStored, writeStored } from "@/shell/stored";
import { useShortcuts } from "@/shell/shortcuts";
import { QueueStrip } from "./queue-strip";
import { continueSession, isStopping, pendingMessages, sendInterrupt, sendMessage } from "./send";
import { planSend } from "./send-plan";

const MAX_ROWS = 10;
/** The server's limit for a message, in bytes. */
const MAX_MESSAGE_BYTES = 10_240;

interface ComposerProps {
  sandbox: Sandbox;
  messages: readonly Message[];
}

/** The message box. Its button and Enter do what the state and the agent's abilities allow, and say so. */
export function Composer({ sandbox, messages }: ComposerProps) {
  const draftName = `draft.${sandbox.id}`;
  const [text, setText] = useState(() => readStored(draftName) ?? "");
  const input = useRef<HTMLTextAreaElement>(null);
  const navigate = useNavigate();
  const agent = useAgents().data?.find((each) => each.name === sandbox.agent) ?? null;
  const plan = planSend(sandbox, agent?.abilities ?? null);
  const sending = useAction("Not sent");
  const stopping = useAction("Not interrupted");
  const waitsForStop = isStopping(messages);
  const bytes = new TextEncoder().encode(text).length;
  const isTooLong = bytes > MAX_MESSAGE_BYTES;
  const canSend = text.trim() !== "" && !isTooLong && plan.blocked === null;

  useEffect(() => {
    const timer = setTimeout(() => { writeStored(draftName, text === "" ? null : text); }, 250);
    return () => { clearTimeout(timer); };
  }, [draftName, text]);
  useShortcuts([
    { keys: "i", run: () => input.current?.focus() },
    { keys: "Ctrl+.", run: () => { interrupt(); }, inInputs: true },
  ]);

  const clear = () => {
    setText("");
    writeStored(draftName, null);
  };
  const send = (delivery: Message["delivery"]) => {
    if (!canSend) return;
    void sending.run(async () => {
      if (plan.startsSandbox) {
        const id = await continueSession(sandbox, text);
        clear();
        if (id !== null) await navigate({ to: "/sandboxes/$id", params: { id } });
      } else {
        await sendMessage(sandbox.id, text, delivery);
        clear();
      }
    });
  };
  const interrupt = () => {
    if (plan.canInterrupt && !waitsForStop) void stopping.run(() => sendInterrupt(sandbox.id, ""));
  };
  const onKeyDown = (event: KeyboardEvent) => {
    // Enter confirms an input method's suggestion; on a touch keyboard it starts a line.
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing || matchMedia("(pointer: coarse)").matches) return;
    event.preventDefault();
    send(event.altKey && plan.canQueue ? "queue" : plan.delivery);
  };
  const rows = Math.min(MAX_ROWS, Math.max(2, text.split("\n").length));

  return (
    <div className="shrink-0">
      <QueueStrip
        sandboxId={sandbox.id}
        messages={pendingMessages(messages)}
        canSteer={agent?.abilities.steer ?? true}
        onEdit={(content) => {
          setText((before) => (before.trim() === "" ? content : `${content}\n\n${before}`));
          input.current?.focus();
        }}
      />
      <div className="border-t border-line px-4 pt-2.5 pb-[max(0.625rem,env(safe-area-inset-bottom))] md:px-6" data-pane="Message">
        <div className="mx-auto flex max-w-[49rem] flex-col gap-2">
          <textarea
            ref={input}
            aria-label="Message to the agent"
            placeholder={plan.blocked ?? `Message ${agent?.title ?? sandbox.agent ?? "the agent"}`}
            rows={rows}
            value={text}
            disabled={plan.blocked !== null}
            onChange={(event) => { setText(event.target.value); }}
            onKeyDown={onKeyDown}
            className="w-full resize-none rounded-lg border border-edge bg-bg px-3 py-2 text-body outline-offset-0 placeholder:text-muted disabled:bg-raised"
          />
          <div className="flex flex-wrap items-center justify-end gap-2">
            <p className={`min-w-0 flex-1 text-meta max-md:basis-full ${isTooLong ? "text-bad" : "text-muted"}`}>
              {isTooLong ? `The message has ${bytes.toLocaleString("en")} bytes; the limit is ${MAX_MESSAGE_BYTES.toLocaleString("en")}. Put long text into a file.` : <EnterHint label={plan.label} hint={plan.hint} />}
            </p>
            {plan.canInterrupt && (
              <Button tone="danger" isBusy={stopping.isBusy || waitsForStop} icon={<Zap size={15} aria-hidden />} title="End the agent's turn (Ctrl+.)" onClick={interrupt}>
                {waitsForStop ? "Stopping" : "Interrupt"}
              </Button>
            )}
            {plan.canQueue && plan.label !== "Queue" && (
              <Button disabled={!canSend} icon={<ListEnd size={15} aria-hidden />} title="Deliver after this turn (Alt+Enter)" onClick={() => { send("queue"); }}>Queue</Button>
            )}
            <Button tone="primary" disabled={!canSend} isBusy={sending.isBusy} icon={<SendHorizontal size={15} aria-hidden />} onClick={() => { send(plan.delivery); }}>{plan.label}</Button>
          </div>
        </div>
      </div>
    </div>
  );
}

function EnterHint({ label, hint }: { label: string; hint: string }) {
  return (
    <>
      <span className="max-md:hidden">Enter: {label.toLowerCase()}. </span>
      {hint}
    </>
  );
}
