import { useEffect } from "react";
import { setTitleText } from "./notifications";

export function useTitle(text: string): void {
  useEffect(() => {
    setTitleText(text);
  }, [text]);
}
