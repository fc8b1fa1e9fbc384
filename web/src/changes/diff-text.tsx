import { memo, useState } from "react";
import { SafeText } from "@/text/safe-text-view";
import { parsePatch, type PatchLine } from "./patch";

const SHOWN_LINES = 200;

export const LINE_TINTS: Record<PatchLine["kind"], string> = {
  added: "bg-ok-tint",
  removed: "bg-bad-tint",
  context: "",
  hunk: "bg-raised text-muted",
  note: "text-muted",
};
const SIGNS: Record<PatchLine["kind"], string> = { added: "+", removed: "−", context: " ", hunk: "", note: "" };

export function signOf(kind: PatchLine["kind"]): string {
  return SIGNS[kind];
}

/** A small diff in a card: inline, without comments. */
export const DiffText = memo(function DiffText({ patch }: { patch: string }) {
  const [isWhole, setWhole] = useState(false);
  const files = parsePatch(patch);
  const lines = files.flatMap((file) => file.lines);
  const shown = isWhole ? lines : lines.slice(0, SHOWN_LINES);
  return (
    <div className="scroll-area max-h-96 py-1 font-mono text-code" tabIndex={0} role="group" aria-label="Diff">
      <div className="w-max min-w-full">
        {shown.map((line, index) => (
          <div key={index} className={`flex whitespace-pre ${LINE_TINTS[line.kind]}`}>
            <span className="w-11 shrink-0 pr-2 text-right text-muted select-none" aria-hidden>{line.new ?? line.old ?? ""}</span>
            <span className={`w-4 shrink-0 select-none ${line.kind === "added" ? "text-ok" : line.kind === "removed" ? "text-bad" : ""}`}>{signOf(line.kind)}</span>
            <span className="pr-3"><SafeText text={line.kind === "hunk" ? `⋯ ${line.text}` : line.text} /></span>
          </div>
        ))}
      </div>
      {shown.length < lines.length && (
        <button type="button" className="sticky left-0 px-3 py-1 font-sans text-control text-accent underline" onClick={() => { setWhole(true); }}>
          Show all {lines.length} lines
        </button>
      )}
    </div>
  );
});
