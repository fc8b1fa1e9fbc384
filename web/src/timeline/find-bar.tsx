import { useMemo, useState } from "react";
import { ChevronDown, ChevronUp, X } from "lucide-react";
import { IconButton } from "@/components/button";
import type { DisplayRow } from "./rows";

/** The text of a row that a search looks at. */
function textOf(row: DisplayRow): string {
  return JSON.stringify(row).toLowerCase();
}

interface FindBarProps {
  rows: readonly DisplayRow[];
  onGo: (index: number) => void;
  onClose: () => void;
}

export function FindBar({ rows, onGo, onClose }: FindBarProps) {
  const [query, setQuery] = useState("");
  const [at, setAt] = useState(0);
  const found = useMemo(() => {
    const words = query.trim().toLowerCase();
    if (words.length < 2) return [];
    const quoted = JSON.stringify(words).slice(1, -1);
    return rows.flatMap((row, index) => (textOf(row).includes(quoted) ? [index] : []));
  }, [rows, query]);
  const go = (step: number) => {
    if (found.length === 0) return;
    const next = (at + step + found.length) % found.length;
    setAt(next);
    const index = found[next];
    if (index !== undefined) onGo(index);
  };
  return (
    <search className="flex items-center gap-2 border-b border-line bg-raised px-4 py-1.5">
      <input
        autoFocus
        aria-label="Find in the timeline"
        placeholder="Find in the loaded steps"
        value={query}
        onChange={(event) => { setQuery(event.target.value); setAt(-1); }}
        onKeyDown={(event) => {
          if (event.key === "Enter") go(event.shiftKey ? -1 : 1);
          if (event.key === "Escape") onClose();
        }}
        className="h-8 min-w-0 flex-1 rounded-md border border-edge bg-bg px-2.5 text-control"
      />
      <span role="status" className="text-meta text-muted">{query.trim().length < 2 ? "" : found.length === 0 ? "Not found" : `${Math.max(at + 1, 0)} of ${found.length}`}</span>
      <IconButton label="Previous match" size="small" onClick={() => { go(-1); }}><ChevronUp size={16} aria-hidden /></IconButton>
      <IconButton label="Next match" size="small" onClick={() => { go(1); }}><ChevronDown size={16} aria-hidden /></IconButton>
      <IconButton label="Close" size="small" onClick={onClose}><X size={16} aria-hidden /></IconButton>
    </search>
  );
}
