import { Ban, Check, CircleDot, Clock, Gauge, Hand, Hourglass, MessageCircle, Pause, Unplug, X, type LucideIcon } from "lucide-react";
import type { Sandbox } from "@/api/types";
import { statusOf, type Status, type StatusIcon } from "./status";

const ICONS: Record<StatusIcon, LucideIcon> = {
  approval: Hand,
  limit: Gauge,
  stalled: Hourglass,
  unreachable: Unplug,
  working: CircleDot,
  message: MessageCircle,
  rate: Clock,
  paused: Pause,
  succeeded: Check,
  cancelled: Ban,
  failed: X,
};

const TONES: Record<StatusIcon, string> = {
  approval: "text-attention",
  limit: "text-attention",
  stalled: "text-attention",
  unreachable: "text-attention",
  working: "text-accent",
  message: "text-muted",
  rate: "text-muted",
  paused: "text-paused",
  succeeded: "text-ok",
  cancelled: "text-muted",
  failed: "text-bad",
};

const TINTS: Partial<Record<StatusIcon, string>> = {
  approval: "bg-attention-tint",
  limit: "bg-attention-tint",
  stalled: "bg-attention-tint",
  unreachable: "bg-attention-tint",
  working: "bg-accent-tint",
  paused: "bg-paused-tint",
  succeeded: "bg-ok-tint",
  failed: "bg-bad-tint",
};

export function StatusMark({ status, size = 15 }: { status: Status; size?: number }) {
  const Icon = ICONS[status.icon];
  if (status.icon === "working") {
    return (
      <span className="inline-flex size-4 shrink-0 items-center justify-center" aria-hidden>
        <span className="size-2 animate-pulse-dot rounded-full bg-accent" />
      </span>
    );
  }
  return <Icon size={size} className={`shrink-0 ${TONES[status.icon]}`} aria-hidden />;
}

/** The state of a sandbox by icon and word. */
export function StatusBadge({ sandbox }: { sandbox: Sandbox }) {
  const status = statusOf(sandbox);
  return (
    <span
      title={status.detail ?? undefined}
      className={`inline-flex h-6 shrink-0 items-center gap-1 rounded-full px-2 text-meta font-semibold whitespace-nowrap ${TONES[status.icon]} ${TINTS[status.icon] ?? "bg-sunk"}`}
    >
      <StatusMark status={status} size={13} />
      {status.word}
    </span>
  );
}

