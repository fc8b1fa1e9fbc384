import { useQuery } from "@tanstack/react-query";
import { api, unwrap } from "@/api/client";
import type { Sandbox } from "@/api/types";
import { noteLastStep, useLastStep, type LastStep } from "./live-rows";
import { describeStep } from "./steps";

/** Events to search for the last step. */
const TAIL = 30;

/** The last step of a sandbox: from the live events, or once from its log if the row is visible. */
export function useStep(sandbox: Sandbox, isVisible = true): LastStep | null {
  const step = useLastStep(sandbox.id);
  useQuery({
    queryKey: ["last-step", sandbox.id],
    enabled: isVisible && step === null && sandbox.last_seq > 0,
    staleTime: Infinity,
    queryFn: async () => {
      const query = { order: "desc" as const, limit: TAIL };
      const page = await unwrap(api.GET("/api/v1/sandboxes/{id}/events", { params: { path: { id: sandbox.id }, query } }));
      for (const event of page.items) {
        const text = describeStep(event);
        if (text === null) continue;
        noteLastStep(sandbox.id, { text, at: event.at, seq: event.seq });
        break;
      }
      return null;
    },
  });
  return step;
}
