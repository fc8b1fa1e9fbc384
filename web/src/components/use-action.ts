import { useCallback, useRef, useState } from "react";
import { reportFailure } from "./toast";

/** Runs one asynchronous action at a time, and reports its failure. */
export function useAction(failureTitle: string): { isBusy: boolean; run: (action: () => Promise<unknown>) => Promise<boolean> } {
  const [isBusy, setBusy] = useState(false);
  const isRunning = useRef(false);
  const run = useCallback(
    async (action: () => Promise<unknown>) => {
      if (isRunning.current) return false;
      isRunning.current = true;
      setBusy(true);
      try {
        await action();
        return true;
      } catch (failure) {
        reportFailure(failureTitle, failure);
        return false;
      } finally {
        isRunning.current = false;
        setBusy(false);
      }
    },
    [failureTitle],
  );
  return { isBusy, run };
}
