import { useState } from "react";
import { Link } from "@tanstack/react-router";
import { Hand } from "lucide-react";
import { useApprovals, useProjects, useSandboxes } from "@/api/queries";
import type { Approval } from "@/api/types";
import { EmptyState, FailureNotice, Skeleton } from "@/components/notice";
import { Page } from "@/components/page";
import { useNow } from "@/shell/clock";
import { useShortcuts } from "@/shell/shortcuts";
import { useTitle } from "@/shell/title";
import { formatAge, formatDateTime } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { ApprovalCard } from "./approval-card";

/** Everything that waits for a person, across all projects and sandboxes, the oldest first. */
export function ApprovalsPage() {
  useTitle("Approvals");
  const approvals = useApprovals();
  const [selected, setSelected] = useState(0);
  const items = approvals.data ?? [];
  const current = Math.min(selected, items.length - 1);
  const move = (step: number) => {
    const next = Math.min(Math.max(current + step, 0), items.length - 1);
    setSelected(next);
    document.querySelectorAll("[data-approval-row]")[next]?.scrollIntoView({ block: "nearest" });
  };
  useShortcuts([{ keys: "j", run: () => { move(1); } }, { keys: "k", run: () => { move(-1); } }]);
  return (
    <Page title="Approvals" width="max-w-3xl">
      {approvals.error !== null && <FailureNotice failure={approvals.error} onRetry={() => void approvals.refetch()} />}
      {approvals.data === undefined && approvals.error === null && <Skeleton label="Loading the approvals" />}
      {approvals.data?.length === 0 && (
        <EmptyState icon={<Hand size={32} />} title="Nothing waits for you">When an agent asks to run a tool or has a question, you can answer it here.</EmptyState>
      )}
      <ul className="flex flex-col gap-6">
        {items.map((approval, index) => (
          <li key={`${approval.sandbox_id}/${approval.approval_id}`} data-approval-row onPointerDown={() => { setSelected(index); }} className={index === current ? "rounded-lg outline-accent md:outline-2 md:outline-offset-8" : ""}>
            <ApprovalHeader approval={approval} />
            <ApprovalCard approval={approval} hasShortcuts={index === current} />
          </li>
        ))}
      </ul>
    </Page>
  );
}

function ApprovalHeader({ approval }: { approval: Approval }) {
  const now = useNow(5);
  const sandbox = useSandboxes().data?.find((row) => row.id === approval.sandbox_id);
  const project = useProjects().data?.find((each) => each.id === sandbox?.project_id);
  return (
    <div className="mb-1.5 flex flex-wrap items-baseline gap-x-3">
      <Link to="/sandboxes/$id" params={{ id: approval.sandbox_id }} className="min-w-0 truncate text-control font-semibold hover:underline"><SafeText text={sandbox?.title ?? approval.sandbox_id} /></Link>
      <span className="text-meta text-muted">
        {sandbox?.agent != null && <><SafeText text={sandbox.agent} /> · </>}
        {project !== undefined && !project.is_default && <><SafeText text={project.name} /> · </>}
        <time dateTime={approval.requested_at} title={formatDateTime(approval.requested_at)}>asked {formatAge(approval.requested_at, now)}</time>
      </span>
    </div>
  );
}
