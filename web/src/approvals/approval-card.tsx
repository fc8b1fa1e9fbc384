import { useState } from "react";
import { Check, CheckCheck, Hand, MessageCircleQuestion, X } from "lucide-react";
import { sandboxPath } from "@/api/client";
import type { Approval } from "@/api/types";
import { DiffText } from "@/changes/diff-text";
import { Button } from "@/components/button";
import { useShortcuts } from "@/shell/shortcuts";
import { formatBytes } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { formatInput, readRequest, type ApprovalRequest } from "./approval-request";
import { QuestionForm } from "./question-form";
import { useAnswer } from "./use-answer";
import { useIsInert } from "./use-is-inert";

interface ApprovalCardProps {
  approval: Approval;
  /** `a` and `d` answer this card. */
  hasShortcuts?: boolean;
}

/** One approval: who asks, the whole input, and fixed answers. It never takes the focus. */
export function ApprovalCard({ approval, hasShortcuts = false }: ApprovalCardProps) {
  const request = readRequest(approval.request);
  const { busyId, answer } = useAnswer();
  const isInert = useIsInert(`${approval.sandbox_id}/${approval.approval_id}`);
  const [reason, setReason] = useState<string | null>(null);
  const isBusy = busyId !== null;
  const decide = (decision: "allow" | "allow_always" | "deny") => {
    if (isInert || isBusy) return;
    void answer(approval, { decision, ...(decision === "deny" && reason !== null && reason !== "" ? { reason } : {}) });
  };
  const Icon = request.isQuestion ? MessageCircleQuestion : Hand;

  return (
    <section aria-label={`Approval: ${title(request)}`} data-approval={approval.approval_id} className="flex max-h-full flex-col rounded-lg border border-attention/50 bg-attention-tint text-text">
      {hasShortcuts && <ApprovalShortcuts onAllow={() => { decide("allow"); }} onDeny={() => { decide("deny"); }} />}
      <h3 className="flex items-center gap-2 px-3 pt-2.5 text-control font-semibold text-attention">
        <Icon size={16} aria-hidden />
        {title(request)}
      </h3>
      <RequestBody approval={approval} request={request} />
      {request.questions.length > 0 ? (
        <QuestionForm
          questions={request.questions}
          isBusy={isBusy}
          isInert={isInert}
          onAnswer={(answers) => void answer(approval, { decision: "allow", answers })}
          onSkip={() => { decide("deny"); }}
        />
      ) : (
        <div className="flex flex-wrap items-center gap-2 px-3 pt-1 pb-3">
          <Button tone="allow" aria-disabled={isInert} isBusy={isBusy} icon={<Check size={16} aria-hidden />} onClick={() => { decide("allow"); }}>Allow</Button>
          <Button tone="deny" aria-disabled={isInert} disabled={isBusy} icon={<X size={16} aria-hidden />} onClick={() => { decide("deny"); }}>Deny</Button>
          {request.tool !== "" && (
            <Button aria-disabled={isInert} disabled={isBusy} icon={<CheckCheck size={16} aria-hidden />} title={`Also allow ${request.tool} from now on, in this sandbox`} onClick={() => { decide("allow_always"); }}>
              Always allow {request.tool}
            </Button>
          )}
          {reason === null ? (
            <Button tone="quiet" onClick={() => { setReason(""); }}>Add a reason</Button>
          ) : (
            <input
              aria-label="Reason for denying, shown to the agent"
              placeholder="Reason for denying, shown to the agent"
              value={reason}
              onChange={(event) => { setReason(event.target.value); }}
              className="h-8 min-w-40 flex-1 rounded-md border border-edge bg-bg px-2.5 text-control max-md:h-11"
            />
          )}
        </div>
      )}
    </section>
  );
}

function ApprovalShortcuts({ onAllow, onDeny }: { onAllow: () => void; onDeny: () => void }) {
  useShortcuts([{ keys: "a", run: onAllow }, { keys: "d", run: onDeny }]);
  return null;
}

function title(request: ApprovalRequest): string {
  if (request.isQuestion || request.questions.length > 0) return "The agent has a question";
  if (request.tool === "") return "The agent asks for approval";
  return `The agent asks to use ${request.tool}`;
}

function RequestBody({ approval, request }: { approval: Approval; request: ApprovalRequest }) {
  const isPlainQuestion = request.questions.length > 0;
  const hasInput = request.input !== null && !isPlainQuestion && request.diff === "";
  return (
    <div className="scroll-area mx-3 my-2 min-h-0 max-h-72 rounded-md border border-line bg-bg">
      {request.text !== "" && <p className="px-3 py-2 text-body whitespace-pre-wrap [overflow-wrap:anywhere]"><SafeText text={request.text} /></p>}
      {request.diff !== "" && <DiffText patch={request.diff} />}
      {hasInput && <pre className="px-3 py-2 font-mono text-code whitespace-pre-wrap [overflow-wrap:anywhere]"><SafeText text={formatInput(request.tool, request.input)} /></pre>}
      {request.isTruncated && request.sha256 !== null && (
        <p className="border-t border-line px-3 py-2 text-control text-attention">
          Only the start is shown.{" "}
          <a className="underline" href={sandboxPath(approval.sandbox_id, `/blobs/${request.sha256}`)} download>
            Download the whole input{request.inputBytes === null ? "" : ` (${formatBytes(request.inputBytes)})`}
          </a>{" "}
          before you decide.
        </p>
      )}
      {!hasInput && request.text === "" && request.diff === "" && !isPlainQuestion && <p className="px-3 py-2 text-control text-muted">The request has no input.</p>}
    </div>
  );
}
