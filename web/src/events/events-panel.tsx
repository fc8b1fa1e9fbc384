import { useMemo, useRef, useState } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ListTree } from "lucide-react";
import { sandboxPath } from "@/api/client";
import type { Sandbox, StoredEvent } from "@/api/types";
import { EmptyState } from "@/components/notice";
import { CopyButton } from "@/text/code-block";
import { formatClock, formatDateTime } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { matchesWords } from "@/text/search";
import { feed } from "./feed";
import type { EventLog } from "./event-log";

/** The raw event log: filter, look at the data, copy. */
export function EventsPanel({ sandbox, log }: { sandbox: Sandbox; log: EventLog }) {
  const [filter, setFilter] = useState("");
  const [open, setOpen] = useState<number | null>(null);
  const scroller = useRef<HTMLDivElement>(null);
  const shown = useMemo(
    () => (filter.trim() === "" ? log.events : log.events.filter((event) => matchesWords(filter, `${event.seq} ${event.type} ${event.source} ${event.actor ?? ""} ${JSON.stringify(event.data)}`))),
    [log.events, filter],
  );
  const virtualizer = useVirtualizer({
    count: shown.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => 28,
    getItemKey: (index) => shown[index]?.seq ?? index,
    overscan: 20,
    anchorTo: "end",
    followOnAppend: true,
    scrollEndThreshold: 40,
  });
  const hasOpened = useRef(false);
  if (!hasOpened.current && shown.length > 0 && scroller.current !== null) {
    hasOpened.current = true;
    requestAnimationFrame(() => { virtualizer.scrollToEnd(); });
  }
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div className="flex min-h-11 shrink-0 items-center gap-2 border-b border-line px-3 max-md:min-h-12">
        <input type="search" aria-label="Filter events" placeholder="Filter by type, source or text" value={filter} onChange={(event) => { setFilter(event.target.value); }} className="h-8 min-w-0 flex-1 rounded-md border border-edge bg-bg px-2.5 text-control" />
        <span className="shrink-0 text-meta text-muted" role="status">{shown.length.toLocaleString("en")} of {sandbox.last_seq.toLocaleString("en")}</span>
        <a href={sandboxPath(sandbox.id, "/logs")} target="_blank" rel="noreferrer" className="shrink-0 text-control text-accent underline">As text</a>
      </div>
      {shown.length === 0 && <EmptyState icon={<ListTree size={28} />} title={log.isLoaded ? "No event matches" : "Loading"} />}
      <div
        ref={scroller}
        tabIndex={0}
        role="region"
        aria-label="Events"
        className="scroll-area min-h-0 flex-1"
        onScroll={(event) => { if (event.currentTarget.scrollTop < 400 && log.olderCursor !== null) void feed.loadOlder(sandbox.id).catch(() => undefined); }}
      >
        <div className="relative" style={{ height: virtualizer.getTotalSize() }}>
          {virtualizer.getVirtualItems().map((item) => {
            const event = shown[item.index];
            if (event === undefined) return null;
            return (
              <div key={item.key} data-index={item.index} ref={virtualizer.measureElement} className="absolute top-0 left-0 w-full border-b border-line" style={{ transform: `translateY(${item.start}px)` }}>
                <EventLine event={event} isOpen={open === event.seq} onToggle={() => { setOpen(open === event.seq ? null : event.seq); }} />
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

function EventLine({ event, isOpen, onToggle }: { event: StoredEvent; isOpen: boolean; onToggle: () => void }) {
  return (
    <>
      <button type="button" aria-expanded={isOpen} onClick={onToggle} className="flex h-7 w-full items-center gap-3 px-3 text-left font-mono text-code hover:bg-raised max-md:h-10">
        <span className="w-12 shrink-0 text-right text-muted">{event.seq}</span>
        <time className="shrink-0 text-muted max-md:hidden" dateTime={event.at} title={formatDateTime(event.at)}>{formatClock(event.at)}</time>
        <span className="shrink-0 font-semibold"><SafeText text={event.type} /></span>
        <span className="min-w-0 flex-1 truncate text-muted"><SafeText text={JSON.stringify(event.data).slice(0, 300)} /></span>
      </button>
      {isOpen && (
        <div className="relative bg-raised">
          <div className="absolute top-1 right-1"><CopyButton text={JSON.stringify(event, null, 2)} label="Copy the event" /></div>
          <pre tabIndex={0} aria-label="Data of the event" className="scroll-area max-h-96 px-3 py-2 font-mono text-code whitespace-pre-wrap [overflow-wrap:anywhere]"><SafeText text={JSON.stringify(event, null, 2)} /></pre>
        </div>
      )}
    </>
  );
}
