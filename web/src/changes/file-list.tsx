import { memo, useMemo, useRef } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { Check, MessageSquare } from "lucide-react";
import type { DiffFile } from "@/api/types";
import { SafeText } from "@/text/safe-text-view";

interface FileListProps {
  files: readonly DiffFile[];
  current: string | null;
  viewed: ReadonlySet<string>;
  commented: ReadonlySet<string>;
  onChoose: (path: string) => void;
}

const MARKS: Record<string, readonly [string, string]> = {
  added: ["A", "text-ok"],
  deleted: ["D", "text-bad"],
  renamed: ["R", "text-paused"],
  modified: ["M", "text-muted"],
};

/** The changed files. Only the visible ones are in the document. */
export const FileList = memo(function FileList({ files, current, viewed, commented, onChoose }: FileListProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const virtualizer = useVirtualizer({ count: files.length, getScrollElement: () => scroller.current, estimateSize: () => 44, overscan: 10 });
  const currentIndex = useMemo(() => files.findIndex((file) => file.path === current), [files, current]);
  const lastIndex = useRef(currentIndex);
  if (lastIndex.current !== currentIndex && currentIndex >= 0) {
    lastIndex.current = currentIndex;
    virtualizer.scrollToIndex(currentIndex, { align: "auto" });
  }
  return (
    <div ref={scroller} className="scroll-area h-full" role="listbox" aria-label="Changed files" tabIndex={0}>
      <div className="relative" style={{ height: virtualizer.getTotalSize() }}>
        {virtualizer.getVirtualItems().map((item) => {
          const file = files[item.index];
          if (file === undefined) return null;
          const slash = file.path.lastIndexOf("/") + 1;
          const [mark, tone] = MARKS[file.change] ?? ["?", "text-muted"];
          return (
            <div
              key={file.path}
              role="option"
              aria-selected={file.path === current}
              onClick={() => { onChoose(file.path); }}
              title={file.path}
              className="absolute top-0 left-0 flex h-11 w-full cursor-default items-center gap-2 px-3 hover:bg-sunk aria-selected:bg-accent-tint"
              style={{ transform: `translateY(${item.start}px)` }}
            >
              <span className={`w-3 shrink-0 text-meta font-semibold ${tone}`} title={file.change}>{mark}</span>
              <span className={`min-w-0 flex-1 ${viewed.has(file.path) ? "opacity-65" : ""}`}>
                <span className="block truncate text-control"><SafeText text={file.path.slice(slash)} /></span>
                {slash > 0 && <span className="block truncate text-meta text-muted"><SafeText text={file.path.slice(0, slash - 1)} /></span>}
              </span>
              {commented.has(file.path) && <MessageSquare size={13} className="shrink-0 text-accent" aria-label="Has comments" />}
              {viewed.has(file.path) && <Check size={14} className="shrink-0 text-ok" aria-label="Viewed" />}
              <span className="shrink-0 text-right text-meta leading-tight">
                {file.binary === true ? <span className="text-muted">binary</span> : <><span className="block text-ok">+{file.added}</span><span className="block text-bad">−{file.removed}</span></>}
              </span>
            </div>
          );
        })}
      </div>
    </div>
  );
});
