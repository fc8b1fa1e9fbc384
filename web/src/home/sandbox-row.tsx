import { memo, useRef } from "react";
import { Link } from "@tanstack/react-router";
import { Bot, GitBranch } from "lucide-react";
import type { Approval, Sandbox } from "@/api/types";
import { QuickAnswer } from "@/approvals/quick-answer";
import { LineCounts } from "@/changes/line-counts";
import { useIsVisible } from "@/components/use-is-visible";
import { statusOf } from "@/sandboxes/status";
import { StatusBadge } from "@/sandboxes/status-badge";
import { useStep } from "@/sandboxes/use-first-step";
import { useNow } from "@/shell/clock";
import { formatAge, formatCost, formatDateTime } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { useLineCounts } from "./use-line-counts";

interface SandboxRowProps {
  sandbox: Sandbox;
  approvals: readonly Approval[];
  isSelected: boolean;
}

/** One sandbox of the list: who is blocked and why, without a click. */
export const SandboxRow = memo(function SandboxRow({ sandbox, approvals, isSelected }: SandboxRowProps) {
  const status = statusOf(sandbox);
  const element = useRef<HTMLLIElement>(null);
  const isVisible = useIsVisible(element);
  const step = useStep(sandbox, isVisible);
  const isDone = status.group === "done";
  const approval = approvals[0];
  const line = isDone ? (status.detail ?? step?.text) : status.group === "needs_you" && approval === undefined ? status.detail : step?.text;

  return (
    <li ref={element} data-row={sandbox.id} className={`relative border-b border-line [contain-intrinsic-size:auto_5.75rem] [content-visibility:auto] last:border-b-0 ${isSelected ? "bg-accent-tint" : "hover:bg-raised"}`}>
      <div className="flex items-start gap-4 px-4 py-3 md:px-6">
        <div className="min-w-0 flex-1">
          <div className="flex items-center gap-2.5">
            <Link
              to="/sandboxes/$id"
              params={{ id: sandbox.id }}
              className="min-w-0 truncate text-body font-semibold text-text outline-offset-2 before:absolute before:inset-0 md:max-w-xl"
            >
              <SafeText text={sandbox.title ?? sandbox.id} />
            </Link>
            <StatusBadge sandbox={sandbox} />
          </div>
          <p className="mt-0.5 truncate text-control text-muted">{line != null && line !== "" ? <SafeText text={line} /> : "No steps yet"}</p>
          <div className="mt-1 flex flex-wrap items-center gap-x-4 gap-y-0.5 text-meta text-muted">
            <span className="inline-flex items-center gap-1"><Bot size={13} aria-hidden /><SafeText text={sandbox.agent ?? "no agent"} /></span>
            {sandbox.branch != null && (
              <span className="inline-flex min-w-0 items-center gap-1"><GitBranch size={13} className="shrink-0" aria-hidden /><span className="truncate"><SafeText text={sandbox.branch} /></span></span>
            )}
            <span className="md:hidden"><RowFigures sandbox={sandbox} at={step?.at} isVisible={isVisible} /></span>
          </div>
        </div>
        <div className="hidden shrink-0 text-right text-meta text-muted md:block"><RowFigures sandbox={sandbox} at={step?.at} isVisible={isVisible} /></div>
      </div>
      {approval !== undefined && <QuickAnswer approval={approval} more={approvals.length - 1} />}
    </li>
  );
});

function RowFigures({ sandbox, at, isVisible }: { sandbox: Sandbox; at: string | undefined; isVisible: boolean }) {
  const now = useNow(5);
  const counts = useLineCounts(sandbox, isVisible);
  const cost = sandbox.cost.model;
  const time = at ?? sandbox.updated_at;
  return (
    <>
      <time dateTime={time} title={`Last step: ${formatDateTime(time)}`}>{formatAge(time, now)}</time>
      <span className="mx-1.5 md:hidden" aria-hidden>·</span>
      <span className="md:mt-1 md:block">{cost == null ? "cost unknown" : formatCost(cost)}</span>
      {counts !== null && <span className="max-md:ml-1.5 md:mt-1 md:block" title={`Lines changed, at ${formatDateTime(counts.at)}`}><LineCounts {...counts} /></span>}
    </>
  );
}
