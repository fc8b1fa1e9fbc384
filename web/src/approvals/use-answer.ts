import { useCallback, useState } from "react";
import { api, unwrap } from "@/api/client";
import { keys, queryClient } from "@/api/queries";
import type { Approval, ApprovalDecision } from "@/api/types";
import { reportFailure } from "@/components/toast";
import { readRequest } from "./approval-request";

export interface Answer {
  decision: ApprovalDecision;
  reason?: string;
  answers?: Record<string, string>;
}

/** Sends the answer with the hash of the input that the person saw. */
export function useAnswer(): { busyId: string | null; answer: (approval: Approval, answer: Answer) => Promise<boolean> } {
  const [busyId, setBusyId] = useState<string | null>(null);
  const answer = useCallback(async (approval: Approval, { decision, reason, answers }: Answer) => {
    setBusyId(approval.approval_id);
    try {
      const path = { id: approval.sandbox_id, approval_id: approval.approval_id };
      const body = { decision, reason: reason ?? null, answers: answers ?? null, sha256: readRequest(approval.request).sha256 };
      await unwrap(api.POST("/api/v1/sandboxes/{id}/approvals/{approval_id}", { params: { path }, body }));
      queryClient.setQueryData<Approval[]>(keys.approvals, (all) =>
        all?.filter((each) => each.sandbox_id !== approval.sandbox_id || each.approval_id !== approval.approval_id),
      );
      return true;
    } catch (failure) {
      reportFailure("Not answered", failure);
      return false;
    } finally {
      setBusyId(null);
      void queryClient.invalidateQueries({ queryKey: keys.approvals });
    }
  }, []);
  return { busyId, answer };
}

