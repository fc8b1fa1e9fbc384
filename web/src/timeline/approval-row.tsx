import { Check, Hand, X } from "lucide-react";
import { ApprovalCard } from "@/approvals/approval-card";
import { readRequest } from "@/approvals/approval-request";
import { useApprovals } from "@/api/queries";
import { describeTool } from "@/sandboxes/steps";
import { firstLine } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import type { ApprovalRow } from "./rows";

/** An approval in the timeline: to be answered in place, or as a line with its decision. */
export function ApprovalRowView({ row, sandboxId, isRecorded }: { row: ApprovalRow; sandboxId: string; isRecorded: boolean }) {
  const pending = useApprovals().data?.find((approval) => approval.sandbox_id === sandboxId && approval.approval_id === row.approvalId);
  if (row.state === "open" && !isRecorded && pending !== undefined) return <ApprovalCard approval={pending} />;
  const request = readRequest(row.request);
  const subject = request.text !== "" ? firstLine(request.text) : describeTool(request.tool, request.input);
  const isDenied = row.decision === "deny";
  const Icon = row.state === "open" ? Hand : isDenied ? X : Check;
  const word = row.state === "open" ? "Asked" : isDenied ? "Denied" : row.decision === "allow_always" ? "Always allowed" : "Allowed";
  return (
    <div className={`flex items-start gap-2 text-control ${isDenied ? "text-bad" : row.state === "open" ? "text-attention" : "text-ok"}`}>
      <Icon size={15} className="mt-0.5 shrink-0" aria-hidden />
      <p className="min-w-0 [overflow-wrap:anywhere]">
        <span className="font-semibold">{word}</span>
        {row.state === "answered" && <span className="text-muted"> (the agent does not know it yet)</span>}: <span className="text-text"><SafeText text={subject} /></span>
        {row.reason !== "" && <span className="block text-muted">Reason: <SafeText text={row.reason} /></span>}
      </p>
    </div>
  );
}
