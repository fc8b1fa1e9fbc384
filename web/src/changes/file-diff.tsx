import { memo, useMemo, useRef, type ReactNode } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { MessageSquarePlus } from "lucide-react";
import { HighlightedTokens, useHighlighted } from "@/text/highlighted-code";
import type { HighlightedLine } from "@/text/highlighter";
import { languageOf } from "@/text/language";
import { SafeText } from "@/text/safe-text-view";
import type { LineComment } from "./comments";
import { LINE_TINTS, signOf } from "./diff-text";
import { splitRows, type PatchFile, type PatchLine } from "./patch";

export interface LineTarget {
  line: number;
  isRemoved: boolean;
  quote: string;
}

interface FileDiffProps {
  file: PatchFile;
  isSplit: boolean;
  comments: readonly LineComment[];
  /** The row that the keyboard moves. */
  cursor: number;
  onCursor: (row: number) => void;
  onComment: (target: LineTarget) => void;
  /** What is shown below a line: its comments, or the form of a new one. */
  renderBelow: (target: LineTarget) => ReactNode;
}

type DiffRow = { left: PatchLine | null; right: PatchLine | null };

export function toRows(file: PatchFile, isSplit: boolean): DiffRow[] {
  return isSplit ? splitRows(file.lines) : file.lines.map((line) => (line.kind === "removed" ? { left: line, right: null } : { left: null, right: line }));
}

export function targetOf(row: DiffRow | undefined): LineTarget | null {
  const right = row?.right ?? null;
  if (right !== null && right.new !== null && right.kind !== "hunk") return { line: right.new, isRemoved: false, quote: right.text };
  const left = row?.left ?? null;
  if (left !== null && left.old !== null && left.kind !== "hunk") return { line: left.old, isRemoved: true, quote: left.text };
  return null;
}

/** The diff of one file: only the visible lines are in the document. */
export const FileDiff = memo(function FileDiff({ file, isSplit, cursor, onCursor, onComment, renderBelow }: FileDiffProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const rows = useMemo(() => toRows(file, isSplit), [file, isSplit]);
  const colours = useLineColours(file);
  const virtualizer = useVirtualizer({ count: rows.length, getScrollElement: () => scroller.current, estimateSize: () => 20, overscan: 20 });
  const lastCursor = useRef(cursor);
  if (lastCursor.current !== cursor) {
    lastCursor.current = cursor;
    virtualizer.scrollToIndex(cursor, { align: "auto" });
  }

  return (
    <div ref={scroller} tabIndex={0} role="region" aria-label={`Changes of ${file.path}`} className="scroll-area min-h-0 flex-1 font-mono text-code outline-offset-[-2px]">
      <div className="relative" style={{ height: virtualizer.getTotalSize() }}>
        {virtualizer.getVirtualItems().map((item) => {
          const row = rows[item.index];
          if (row === undefined) return null;
          const target = targetOf(row);
          return (
            <div key={item.key} data-index={item.index} ref={virtualizer.measureElement} className="absolute top-0 left-0 w-full" style={{ transform: `translateY(${item.start}px)` }}>
              <div
                onClick={() => { onCursor(item.index); }}
                className={`group relative flex ${item.index === cursor ? "shadow-[inset_2px_0_0_var(--accent)]" : ""}`}
              >
                {isSplit ? (
                  <>
                    <Half line={row.left} side="old" colours={colours} />
                    <Half line={row.right} side="new" colours={colours} />
                  </>
                ) : (
                  <InlineLine line={row.left ?? row.right} colours={colours} />
                )}
                {target !== null && (
                  <button
                    type="button"
                    aria-label={`Comment on line ${target.line}`}
                    title="Comment on this line (c)"
                    tabIndex={-1}
                    onClick={() => { onComment(target); }}
                    className={`absolute top-0 left-0 flex h-5 w-6 items-center justify-center rounded-sm bg-accent text-on-accent group-hover:opacity-100 max-md:h-6 ${item.index === cursor ? "opacity-100" : "opacity-0"}`}
                  >
                    <MessageSquarePlus size={13} aria-hidden />
                  </button>
                )}
              </div>
              {target !== null && renderBelow(target)}
            </div>
          );
        })}
      </div>
    </div>
  );
});

interface LineColours {
  of: (line: PatchLine) => HighlightedLine | null;
}

/** Colours both versions of the file as far as the diff shows them. */
function useLineColours(file: PatchFile): LineColours {
  const language = languageOf(file.path);
  const [oldText, newText] = useMemo(() => {
    const oldLines = file.lines.filter((line) => line.kind === "removed" || line.kind === "context");
    const newLines = file.lines.filter((line) => line.kind === "added" || line.kind === "context");
    return [oldLines.map(({ text }) => text).join("\n"), newLines.map(({ text }) => text).join("\n")];
  }, [file]);
  const oldColours = useHighlighted(oldText, language);
  const newColours = useHighlighted(newText, language);
  return useMemo(() => {
    const positions = new Map<PatchLine, HighlightedLine | undefined>();
    let before = 0;
    let after = 0;
    for (const line of file.lines) {
      if (line.kind === "removed") positions.set(line, oldColours?.[before++]);
      else if (line.kind === "added") positions.set(line, newColours?.[after++]);
      else if (line.kind === "context") {
        positions.set(line, newColours?.[after++]);
        before += 1;
      }
    }
    return { of: (line) => positions.get(line) ?? null };
  }, [file, oldColours, newColours]);
}

function LineText({ line, colours }: { line: PatchLine; colours: LineColours }) {
  const tokens = colours.of(line);
  return <span className="min-w-0 flex-1 pr-2 whitespace-pre-wrap [overflow-wrap:anywhere]">{tokens === null ? <SafeText text={line.text} /> : <HighlightedTokens line={tokens} />}</span>;
}

const NUMBER = "w-11 shrink-0 pr-2 text-right text-muted select-none";

function InlineLine({ line, colours }: { line: PatchLine | null; colours: LineColours }) {
  if (line === null) return null;
  if (line.kind === "hunk") return <HunkLine text={line.text} />;
  return (
    <div className={`flex min-h-5 w-full ${LINE_TINTS[line.kind]}`}>
      <span className={NUMBER} aria-hidden>{line.old ?? ""}</span>
      <span className={NUMBER} aria-hidden>{line.new ?? ""}</span>
      <Sign kind={line.kind} />
      <LineText line={line} colours={colours} />
    </div>
  );
}

function Half({ line, side, colours }: { line: PatchLine | null; side: "old" | "new"; colours: LineColours }) {
  if (line?.kind === "hunk") return side === "old" ? <div className="w-1/2"><HunkLine text={line.text} /></div> : <div className="w-1/2 bg-raised" />;
  return (
    <div className={`flex min-h-5 w-1/2 ${side === "new" ? "border-l border-line" : ""} ${line === null ? "bg-raised" : LINE_TINTS[line.kind]}`}>
      {line !== null && (
        <>
          <span className={NUMBER} aria-hidden>{(side === "old" ? line.old : line.new) ?? ""}</span>
          <Sign kind={line.kind} />
          <LineText line={line} colours={colours} />
        </>
      )}
    </div>
  );
}

function HunkLine({ text }: { text: string }) {
  return <div className="w-full border-y border-line bg-raised px-3 py-0.5 text-muted">⋯ <SafeText text={text} /></div>;
}

function Sign({ kind }: { kind: PatchLine["kind"] }) {
  const word = kind === "added" ? "Added:" : kind === "removed" ? "Removed:" : "";
  return (
    <span className={`w-4 shrink-0 select-none ${kind === "added" ? "text-ok" : kind === "removed" ? "text-bad" : ""}`}>
      <span aria-hidden>{signOf(kind)}</span>
      {word !== "" && <span className="sr-only">{word}</span>}
    </span>
  );
}
