import { useEffect, useMemo, useRef, useState } from "react";
import { getRouteApi, Link } from "@tanstack/react-router";
import { useQuery } from "@tanstack/react-query";
import { ArrowLeft, Pause, Play, SkipBack, SkipForward } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { useMessages, useSandbox } from "@/api/queries";
import type { StoredEvent } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { Select } from "@/components/field";
import { FailureNotice, Skeleton } from "@/components/notice";
import { EMPTY_LOG } from "@/events/event-log";
import { useShortcuts } from "@/shell/shortcuts";
import { useTitle } from "@/shell/title";
import { formatCost, formatDateTime, formatDuration } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { Timeline } from "@/timeline/timeline";
import { useTimelineRows } from "@/timeline/use-rows";
import { dataOf, numberField } from "@/sandboxes/steps";
import { countAt, createPlayback, findMarks, type PlaybackMark } from "./playback";

const route = getRouteApi("/sandboxes/$id/replay");
const SPEEDS = [0.5, 1, 2, 5, 10, 50] as const;
const PAGE_LIMIT = 500;
const MAX_EVENTS = 100_000;

/** Fetches the whole log, oldest first. */
function useWholeLog(id: string) {
  const [loaded, setLoaded] = useState(0);
  const query = useQuery({
    queryKey: ["whole-log", id],
    staleTime: 60_000,
    queryFn: async ({ signal }) => {
      const events: StoredEvent[] = [];
      let cursor: string | null = null;
      do {
        const query: { limit: number; cursor?: string } = { limit: PAGE_LIMIT };
        if (cursor !== null) query.cursor = cursor;
        const page = await unwrap(api.GET("/api/v1/sandboxes/{id}/events", { params: { path: { id }, query }, signal }));
        events.push(...page.items);
        setLoaded(events.length);
        cursor = page.next_cursor ?? null;
      } while (cursor !== null && events.length < MAX_EVENTS);
      return events;
    },
  });
  return { ...query, loaded };
}

/** Plays a run again over time, at any speed, from any point. */
export function ReplayPage() {
  const { id } = route.useParams();
  const { seq } = route.useSearch();
  const sandbox = useSandbox(id).data;
  const log = useWholeLog(id);
  useTitle(`Replay: ${sandbox?.title ?? id}`);
  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <header className="flex min-h-13 shrink-0 items-center gap-3 border-b border-line px-4">
        <Link to="/sandboxes/$id" params={{ id }} aria-label="Back to the sandbox" title="Back to the sandbox" className="flex size-9 items-center justify-center rounded-md text-muted hover:bg-sunk"><ArrowLeft size={18} aria-hidden /></Link>
        <h1 className="min-w-0 truncate text-title font-semibold max-md:text-body"><SafeText text={sandbox?.title ?? id} /></h1>
        <span className="rounded-full bg-paused-tint px-2 py-1 text-meta font-semibold text-paused">Recorded</span>
      </header>
      {log.error !== null && <div className="p-4"><FailureNotice failure={log.error} onRetry={() => void log.refetch()} /></div>}
      {log.data === undefined && log.error === null && <><Skeleton lines={6} label="Loading the recording" /><p className="px-4 text-meta text-muted">{log.loaded.toLocaleString("en")} events</p></>}
      {log.data !== undefined && <Player sandboxId={id} events={log.data} startSeq={seq} />}
    </div>
  );
}

function Player({ sandboxId, events, startSeq }: { sandboxId: string; events: readonly StoredEvent[]; startSeq: number | undefined }) {
  const playback = useMemo(() => createPlayback(events), [events]);
  const marks = useMemo(() => findMarks(playback), [playback]);
  const [position, setPosition] = useState(() => (startSeq === undefined ? 0 : (playback.offsets[events.findIndex((event) => event.seq >= startSeq)] ?? 0)));
  const [isPlaying, setPlaying] = useState(true);
  const [speed, setSpeed] = useState(1);
  const messages = useMessages(sandboxId).data ?? NONE;
  const count = countAt(playback, position);
  const shown = useMemo(() => playback.events.slice(0, count), [playback, count]);
  const { display } = useTimelineRows({ events: shown });
  const log = useMemo(() => ({ ...EMPTY_LOG, isLoaded: true, events: shown, lastSeq: shown.at(-1)?.seq ?? 0 }), [shown]);
  const current = shown.at(-1);
  const cost = useMemo(() => shown.reduce((sum, event) => sum + (event.type === "agent.usage" ? (numberField(dataOf<"agent.usage">(event), "cost_usd") ?? 0) : 0), 0), [shown]);

  const lastFrame = useRef<number | null>(null);
  useEffect(() => {
    if (!isPlaying) return;
    let request = requestAnimationFrame(function step(now) {
      const elapsed = lastFrame.current === null ? 0 : now - lastFrame.current;
      lastFrame.current = now;
      setPosition((before) => Math.min(before + elapsed * speed, playback.duration));
      request = requestAnimationFrame(step);
    });
    return () => {
      cancelAnimationFrame(request);
      lastFrame.current = null;
    };
  }, [isPlaying, speed, playback.duration]);
  const isAtEnd = position >= playback.duration;
  if (isAtEnd && isPlaying) setPlaying(false);

  const toggle = () => {
    if (isAtEnd) setPosition(0);
    setPlaying(!isPlaying);
  };
  const jump = (step: number) => {
    const next = step > 0 ? marks.find((mark) => mark.position > position + 1) : marks.findLast((mark) => mark.position < position - 500);
    setPosition(next?.position ?? (step > 0 ? playback.duration : 0));
  };
  useShortcuts([
    { keys: " ", run: toggle },
    { keys: "ArrowLeft", run: () => { jump(-1); } },
    { keys: "ArrowRight", run: () => { jump(1); } },
  ]);

  return (
    <>
      <Timeline sandboxId={sandboxId} log={log} display={display} messages={messages} approvals={NONE} isWorking={false} isRecorded />
      <footer className="shrink-0 border-t border-line bg-raised px-4 pt-2 pb-[max(0.75rem,env(safe-area-inset-bottom))]">
        <Scrubber position={position} duration={playback.duration} marks={marks} onChange={setPosition} />
        <div className="mt-1 flex flex-wrap items-center gap-2">
          <IconButton label="Previous mark (←)" onClick={() => { jump(-1); }}><SkipBack size={17} aria-hidden /></IconButton>
          <Button tone="primary" className="w-24" icon={isPlaying ? <Pause size={16} aria-hidden /> : <Play size={16} aria-hidden />} onClick={toggle}>{isPlaying ? "Pause" : "Play"}</Button>
          <IconButton label="Next mark (→)" onClick={() => { jump(1); }}><SkipForward size={17} aria-hidden /></IconButton>
          <Select aria-label="Speed" value={speed} className="w-auto" onChange={(event) => { setSpeed(Number(event.target.value)); }}>
            {SPEEDS.map((each) => <option key={each} value={each}>{each}×</option>)}
          </Select>
          <p className="ml-auto text-meta text-muted">
            {formatDuration(position)} of {formatDuration(playback.duration)}
            {current !== undefined && <> · event {current.seq} of {playback.events.at(-1)?.seq} · {formatDateTime(current.at)}</>}
            {cost > 0 && <> · {formatCost(cost)}</>}
          </p>
        </div>
      </footer>
    </>
  );
}

const NONE: never[] = [];
const MARK_TONES: Record<PlaybackMark["kind"], string> = { turn: "bg-edge", approval: "bg-attention", problem: "bg-bad", end: "bg-ok" };

function Scrubber({ position, duration, marks, onChange }: { position: number; duration: number; marks: readonly PlaybackMark[]; onChange: (position: number) => void }) {
  return (
    <div className="relative">
      <div className="pointer-events-none absolute inset-x-2 top-0 h-2" aria-hidden>
        {marks.map((mark, index) => <span key={index} title={mark.label} className={`absolute h-2 w-0.5 ${MARK_TONES[mark.kind]}`} style={{ left: `${duration === 0 ? 0 : (mark.position / duration) * 100}%` }} />)}
      </div>
      <input
        type="range"
        aria-label="Position"
        aria-valuetext={formatDuration(position)}
        min={0}
        max={Math.max(duration, 1)}
        step={10}
        value={position}
        onChange={(event) => { onChange(Number(event.target.value)); }}
        className="h-7 w-full accent-(--accent) max-md:h-11"
      />
    </div>
  );
}
