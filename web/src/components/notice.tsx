import type { ReactNode } from "react";
import { CircleAlert, Info, TriangleAlert } from "lucide-react";
import { describeFailure } from "@/api/problem";
import { InlineCode } from "@/text/inline-code";
import { Button } from "./button";

type NoticeTone = "info" | "attention" | "bad";

const TONES: Record<NoticeTone, string> = {
  info: "border-line bg-raised text-text",
  attention: "border-attention/40 bg-attention-tint text-attention",
  bad: "border-bad/40 bg-bad-tint text-bad",
};
const ICONS = { info: Info, attention: TriangleAlert, bad: CircleAlert };

export function Notice({ tone = "info", children, action }: { tone?: NoticeTone; children: ReactNode; action?: ReactNode }) {
  const Icon = ICONS[tone];
  return (
    <div role={tone === "bad" ? "alert" : undefined} className={`flex items-start gap-2 rounded-md border px-3 py-2 text-control ${TONES[tone]}`}>
      <Icon size={16} className="mt-0.5 shrink-0" aria-hidden />
      <div className="min-w-0 flex-1 [overflow-wrap:anywhere]">{children}</div>
      {action}
    </div>
  );
}

/** A failed request, with what to do. */
export function FailureNotice({ failure, onRetry }: { failure: unknown; onRetry?: () => void }) {
  if (failure == null) return null;
  return (
    <Notice tone="bad" action={onRetry && <Button size="small" onClick={onRetry}>Try again</Button>}>
      <InlineCode text={describeFailure(failure)} />
    </Notice>
  );
}

/** The state of a list without entries: what belongs here, and how to get it. */
export function EmptyState({ icon, title, children, action }: { icon?: ReactNode; title: string; children?: ReactNode; action?: ReactNode }) {
  return (
    <div className="flex flex-col items-center justify-center gap-2 px-6 py-12 text-center">
      {icon !== undefined && <div className="mb-1 text-edge" aria-hidden>{icon}</div>}
      <p className="text-control font-semibold text-text">{title}</p>
      {children !== undefined && <div className="max-w-md text-control text-muted">{children}</div>}
      {action !== undefined && <div className="mt-2">{action}</div>}
    </div>
  );
}

/** Placeholder lines while data loads. */
export function Skeleton({ lines = 4, label = "Loading" }: { lines?: number; label?: string }) {
  return (
    <div role="status" aria-label={label} className="flex flex-col gap-3 p-4">
      {Array.from({ length: lines }, (_, index) => (
        <div key={index} className="h-4 rounded bg-sunk" style={{ width: `${88 - ((index * 23) % 45)}%` }} />
      ))}
    </div>
  );
}
