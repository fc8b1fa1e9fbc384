import { useEffect, useState } from "react";

/** Buttons that appear under a moving finger or pointer do nothing for this time. */
const INERT_MS = 500;

/** The buttons of the thing with this key have just appeared. */
export function useIsInert(key: string): boolean {
  const [readyKey, setReadyKey] = useState<string | null>(null);
  useEffect(() => {
    const timer = setTimeout(() => { setReadyKey(key); }, INERT_MS);
    return () => { clearTimeout(timer); };
  }, [key]);
  return readyKey !== key;
}
