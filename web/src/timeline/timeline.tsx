import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { useVirtualizer } from "@tanstack/react-virtual";
import { ArrowDown } from "lucide-react";
import type { Approval, Message, Sandbox } from "@/api/types";
import { ApprovalCard } from "@/approvals/approval-card";
import { Button } from "@/components/button";
import { FailureNotice, Skeleton } from "@/components/notice";
import { feed, useLiveText, useLogFailure } from "@/events/feed";
import type { EventLog } from "@/events/event-log";
import { useShortcuts } from "@/shell/shortcuts";
import { LiveMarkdown } from "@/text/markdown";
import { FindBar } from "./find-bar";
import type { DisplayRow } from "./rows";
import { RowView, type RowContext } from "./row-view";
import { StartProgress } from "./start-progress";

interface TimelineProps {
  sandboxId: string;
  sandbox?: Sandbox;
  log: EventLog;
  display: readonly DisplayRow[];
  messages: readonly Message[];
  approvals: readonly Approval[];
  isWorking: boolean;
  isRecorded?: boolean;
}

/** The rows on the screen, with their distance from its upper end. */
interface RowsInView {
  firstKey: string | undefined;
  rows: readonly { key: unknown; top: number }[];
}

/** Distance from the end, in pixels, at which the view still follows new rows. */
const END_THRESHOLD = 80;
const LOAD_OLDER_AT = 600;
/** Folds that the user opened or closed, by sandbox, for as long as the page is open. */
const openBySandbox = new Map<string, Map<string, boolean>>();

export function Timeline({ sandboxId, sandbox, log, display, messages, approvals, isWorking, isRecorded = false }: TimelineProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const [, renderFolds] = useState(0);
  const [isFinding, setFinding] = useState(false);
  const [isAtEnd, setAtEnd] = useState(true);
  const live = useLiveText(sandboxId);
  const failure = useLogFailure(sandboxId);
  const hasLive = isWorking && (live.text !== "" || live.thinking !== "");
  const count = display.length + (hasLive ? 1 : 0);

  const virtualizer = useVirtualizer({
    count,
    getScrollElement: () => scroller.current,
    estimateSize: () => 64,
    getItemKey: (index) => display[index]?.key ?? "live",
    overscan: 6,
    gap: 12,
    paddingStart: 16,
    paddingEnd: 16,
    anchorTo: "end",
    followOnAppend: true,
    scrollEndThreshold: END_THRESHOLD,
  });

  const context = useRowContext(sandboxId, isRecorded, messages, useCallback(() => { renderFolds((value) => value + 1); }, []));

  // Open at the newest step. Until the rows are measured, they would overlap.
  const hasOpened = useRef(false);
  const [isPlaced, setPlaced] = useState(false);
  useEffect(() => {
    if (hasOpened.current || count === 0) return;
    hasOpened.current = true;
    virtualizer.scrollToEnd();
    const place = () => { setPlaced(true); };
    if (document.hidden) place();
    else requestAnimationFrame(place);
  }, [count, virtualizer]);

  const rowsInView = useRef<RowsInView | null>(null);
  const readView = (element: HTMLElement) => {
    const top = element.scrollTop;
    const rows = virtualizer.getVirtualItems().filter((item) => item.end > top).map((item) => ({ key: item.key, top: item.start - top }));
    rowsInView.current = { firstKey: display[0]?.key, rows };
    const hasOlder = log.olderCursor !== null && !isRecorded;
    if (hasOpened.current && hasOlder && top < LOAD_OLDER_AT) void feed.loadOlder(sandboxId).catch(() => undefined);
  };
  const onScroll = () => {
    const element = scroller.current;
    if (element === null) return;
    setAtEnd(element.scrollHeight - element.scrollTop - element.clientHeight < END_THRESHOLD);
    readView(element);
  };
  // Older rows go above those in view, which stay where they are.
  useLayoutEffect(() => {
    const [element, before] = [scroller.current, rowsInView.current];
    if (element === null) return;
    if (before !== null && before.firstKey !== display[0]?.key) {
      const indexes = new Map<unknown, number>(display.map((row, index) => [row.key, index]));
      const kept = before.rows.find(({ key }) => indexes.has(key));
      const start = kept === undefined ? undefined : virtualizer.measurementsCache[indexes.get(kept.key) ?? 0]?.start;
      if (kept !== undefined && start !== undefined) element.scrollTop = start - kept.top;
    }
    readView(element);
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [display]);

  const goToEnd = () => {
    virtualizer.scrollToEnd();
    setAtEnd(true);
  };
  const goToTurn = (step: number) => {
    const first = virtualizer.range?.startIndex ?? 0;
    const turns = display.flatMap((row, index) => (row.kind === "turn" ? [index] : []));
    const target = step > 0 ? turns.find((index) => index > first + 1) : turns.findLast((index) => index < first);
    if (target !== undefined) virtualizer.scrollToIndex(target, { align: "start" });
  };
  useShortcuts([
    { keys: "[", run: () => { goToTurn(-1); } },
    { keys: "]", run: () => { goToTurn(1); } },
    { keys: "End", run: goToEnd },
    { keys: "Ctrl+F", run: () => { setFinding(true); } },
  ]);

  const range = virtualizer.range;
  const hidden = approvals.find((approval) => {
    const index = display.findIndex((row) => row.kind === "approval" && row.approvalId === approval.approval_id);
    return index < 0 || range === null || index < range.startIndex || index > range.endIndex;
  });

  return (
    <div className="relative flex min-h-0 flex-1 flex-col">
      {isFinding && <FindBar rows={display} onGo={(index) => { virtualizer.scrollToIndex(index, { align: "center" }); }} onClose={() => { setFinding(false); }} />}
      <div ref={scroller} onScroll={onScroll} tabIndex={0} aria-label="Timeline" role="region" className="scroll-area min-h-0 flex-1 overscroll-none outline-offset-[-2px]">
        {sandbox !== undefined && <StartProgress sandbox={sandbox} events={log.events} />}
        <LogStart log={log} failure={failure} sandboxId={sandboxId} />
        <div className={`relative mx-auto w-full max-w-[52rem] ${isPlaced ? "" : "invisible"}`} style={{ height: virtualizer.getTotalSize() }}>
          {virtualizer.getVirtualItems().map((item) => {
            const row = display[item.index];
            return (
              <div key={item.key} data-index={item.index} ref={virtualizer.measureElement} className="absolute top-0 left-0 w-full px-4 md:px-6" style={{ transform: `translateY(${item.start}px)` }}>
                {row === undefined ? <LiveRow text={live.text} thinking={live.thinking} /> : <RowView row={row} isNewest={!hasLive && item.index === display.length - 1} context={context} />}
              </div>
            );
          })}
        </div>
      </div>
      {!isAtEnd && (
        <Button size="small" className="absolute bottom-3 left-1/2 -translate-x-1/2 rounded-full" icon={<ArrowDown size={14} aria-hidden />} onClick={goToEnd}>Newest</Button>
      )}
      {hidden !== undefined && count > 0 && (
        <div className="max-h-[45%] shrink-0 overflow-auto border-t border-line px-4 py-2 md:px-6"><ApprovalCard approval={hidden} hasShortcuts /></div>
      )}
      {hidden === undefined && approvals[0] !== undefined && <ShownApprovalShortcuts id={approvals[0].approval_id} />}
    </div>
  );
}

/** `a` and `d` press the buttons of the approval in view. */
function ShownApprovalShortcuts({ id }: { id: string }) {
  const press = (label: string) => {
    const card = document.querySelector(`[data-approval="${CSS.escape(id)}"]`);
    const button = [...(card?.querySelectorAll("button") ?? [])].find((each) => each.textContent === label);
    button?.click();
  };
  useShortcuts([{ keys: "a", run: () => { press("Allow"); } }, { keys: "d", run: () => { press("Deny"); } }]);
  return null;
}

function useRowContext(sandboxId: string, isRecorded: boolean, messages: readonly Message[], onFold: () => void): RowContext {
  const [version, setVersion] = useState(0);
  return useMemo<RowContext>(() => {
    const open = openBySandbox.get(sandboxId) ?? new Map<string, boolean>();
    openBySandbox.set(sandboxId, open);
    const contents = new Map(messages.map((message) => [message.id, message.content]));
    return {
      sandboxId,
      isRecorded,
      isOpen: (key, byDefault) => open.get(key) ?? byDefault,
      toggle: (key, isOpen) => {
        open.set(key, isOpen);
        setVersion((value) => value + 1);
        onFold();
      },
      messageContent: (id) => contents.get(id) ?? null,
    };
    // A new context renders the visible rows again after a fold.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [sandboxId, isRecorded, messages, onFold, version]);
}

function LiveRow({ text, thinking }: { text: string; thinking: string }) {
  return (
    <div aria-live="off">
      {thinking !== "" && text === "" && <p className="border-l-2 border-line pl-3 text-body whitespace-pre-wrap text-muted">{thinking.slice(-600)}</p>}
      {text !== "" && <LiveMarkdown text={text} />}
      <span className="mt-1 inline-block size-2 animate-pulse-dot rounded-full bg-accent" aria-hidden />
    </div>
  );
}

function LogStart({ log, failure, sandboxId }: { log: EventLog; failure: unknown; sandboxId: string }) {
  if (failure !== null && !log.isLoaded) return <div className="p-4"><FailureNotice failure={failure} onRetry={() => { feed.reload(sandboxId); }} /></div>;
  if (!log.isLoaded) return <Skeleton lines={6} label="Loading the timeline" />;
  if (log.olderCursor !== null) return <p className="pt-3 text-center text-meta text-muted">Loading earlier steps…</p>;
  if (log.truncatedBefore !== null || (log.events[0]?.seq ?? 1) > 1) {
    return <p className="mx-auto mt-3 max-w-md text-center text-meta text-muted">Retention has removed the steps before event {log.truncatedBefore ?? log.events[0]?.seq}.</p>;
  }
  return null;
}
