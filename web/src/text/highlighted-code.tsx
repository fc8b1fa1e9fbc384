import { Fragment, memo, useEffect, useState } from "react";
import type { HighlightedLine } from "./highlighter";
import { SafeText } from "./safe-text-view";

/** Longer code is shown without colours. */
const MAX_HIGHLIGHTED = 40_000;

/** Colours code when its grammar has loaded; shows it plain until then. */
export const HighlightedCode = memo(function HighlightedCode({ text, language }: { text: string; language: string | null }) {
  const lines = useHighlighted(text, language);
  if (lines === null) return <SafeText text={text} />;
  return lines.map((line, index) => (
    <Fragment key={index}>
      {index > 0 && "\n"}
      <HighlightedTokens line={line} />
    </Fragment>
  ));
});

export function HighlightedTokens({ line }: { line: HighlightedLine }) {
  return line.map((token, index) => (
    <span key={index} style={{ color: `light-dark(${token.light}, ${token.dark})` }}><SafeText text={token.text} /></span>
  ));
}

/** The lines of a text in colours; `null` without a grammar, or before it has loaded. */
export function useHighlighted(text: string, language: string | null): HighlightedLine[] | null {
  const [result, setResult] = useState<{ text: string; lines: HighlightedLine[] } | null>(null);
  useEffect(() => {
    if (language === null || text.length > MAX_HIGHLIGHTED) return;
    let isCurrent = true;
    void import("./highlighter")
      .then(({ highlight }) => highlight(text, language))
      .then((lines) => {
        if (isCurrent && lines !== null) setResult({ text, lines });
      })
      // Without colours the code is still there.
      .catch(() => undefined);
    return () => { isCurrent = false; };
  }, [text, language]);
  return result?.text === text ? result.lines : null;
}
