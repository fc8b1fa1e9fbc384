import { Check, X } from "lucide-react";
import { Link } from "@tanstack/react-router";
import type { Approval } from "@/api/types";
import { Button, buttonClass } from "@/components/button";
import { plural } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { formatInput, readRequest } from "./approval-request";
import { useAnswer } from "./use-answer";
import { useIsInert } from "./use-is-inert";

/** Inputs above this length are answered where they are shown whole. */
const MAX_QUICK_CHARACTERS = 300;

/** Answers an approval from a list, if the list can show the whole input. */
export function QuickAnswer({ approval, more }: { approval: Approval; more: number }) {
  const request = readRequest(approval.request);
  const { busyId, answer } = useAnswer();
  const text = request.text !== "" ? request.text : request.input === null ? "" : formatInput(request.tool, request.input);
  const isWhole = text.length <= MAX_QUICK_CHARACTERS && request.diff === "" && !request.isTruncated && request.questions.length === 0;
  const isBusy = busyId !== null;
  const isInert = useIsInert(`${approval.sandbox_id}/${approval.approval_id}`);
  const decide = (decision: "allow" | "deny") => {
    if (!isInert) void answer(approval, { decision });
  };
  return (
    <div className="relative flex flex-wrap items-end gap-x-4 gap-y-2 px-4 pb-3 md:px-6">
      <div className="min-w-0 flex-1 basis-60 rounded-md bg-attention-tint px-3 py-2">
        {request.tool !== "" && <p className="text-meta font-semibold text-attention">{request.tool}</p>}
        <p className="font-mono text-code whitespace-pre-wrap [overflow-wrap:anywhere]">
          {isWhole ? <SafeText text={text} /> : "The request is long. Open it to see all of it."}
        </p>
        {more > 0 && <p className="mt-1 text-meta text-muted">and {plural(more, "more approval")}</p>}
      </div>
      <div className="flex gap-2">
        {isWhole ? (
          <>
            <Button tone="allow" aria-disabled={isInert} isBusy={isBusy} icon={<Check size={16} aria-hidden />} onClick={() => { decide("allow"); }}>Allow</Button>
            <Button tone="deny" aria-disabled={isInert} disabled={isBusy} icon={<X size={16} aria-hidden />} onClick={() => { decide("deny"); }}>Deny</Button>
          </>
        ) : (
          <Link to="/sandboxes/$id" params={{ id: approval.sandbox_id }} className={buttonClass("plain")}>Review</Link>
        )}
      </div>
    </div>
  );
}
