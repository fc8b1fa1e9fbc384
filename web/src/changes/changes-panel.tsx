import { useCallback, useMemo, useState } from "react";
import { getRouteApi, useNavigate } from "@tanstack/react-router";
import { Check, ChevronDown, ChevronUp, Columns2, FileDiff as FileDiffIcon, Maximize2, Minimize2, Rows3 } from "lucide-react";
import { Problem } from "@/api/problem";
import { useAgents } from "@/api/queries";
import type { Sandbox } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { Select } from "@/components/field";
import { EmptyState, FailureNotice, Skeleton } from "@/components/notice";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import type { EventLog } from "@/events/event-log";
import { continueSession, sendMessage } from "@/inbox/send";
import { planSend } from "@/inbox/send-plan";
import { hasEnded } from "@/sandboxes/status";
import { readStored, writeStored } from "@/shell/stored";
import { useShortcuts } from "@/shell/shortcuts";
import { plural } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { CommentBar, CommentCard, CommentForm } from "./comment-views";
import { formatComments, type LineComment } from "./comments";
import { useChangedFiles, useFilePatch } from "./diff-queries";
import { FileDiff, targetOf, toRows, type LineTarget } from "./file-diff";
import { FileList } from "./file-list";
import { LineCounts } from "./line-counts";
import { useComments } from "./use-comments";

const route = getRouteApi("/sandboxes/$id");
const NO_FILES: never[] = [];

/** Reviews the changes: a file at a time, with comments that go to the agent as one message. */
export function ChangesPanel({ sandbox, log }: { sandbox: Sandbox; log: EventLog }) {
  const search = route.useSearch();
  const navigate = useNavigate({ from: "/sandboxes/$id" });
  const isEnded = hasEnded(sandbox);
  const version = useWorkspaceVersion(log);
  const all = useChangedFiles(sandbox.id, search.turn ?? null, version);
  // The workspace is gone after the end; the events of the last turn are still there.
  const isGone = all.error instanceof Problem && search.turn === undefined && isEnded && (sandbox.turn ?? 0) > 0;
  const turn = search.turn ?? (isGone ? (sandbox.turn ?? null) : null);
  const ofTurn = useChangedFiles(sandbox.id, turn, version);
  const query = isGone ? ofTurn : all;
  const files = query.data?.files ?? NO_FILES;
  const current = files.find((file) => file.path === search.file) ?? files[0] ?? null;
  // The next file is usually the next one to be shown.
  useFilePatch(sandbox.id, turn, files[files.findIndex((file) => file.path === current?.path) + 1] ?? null, version);
  const [isSplit, setSplit] = useState(() => readStored("diff.split") === "yes");
  const [isFull, setFull] = useState(false);
  const [viewed, setViewed] = useState<ReadonlySet<string>>(new Set());
  const comments = useComments(sandbox.id);
  const commented = useMemo(() => new Set(comments.all.map((comment) => comment.path)), [comments.all]);

  const choose = useCallback((path: string) => void navigate({ search: (before) => ({ ...before, file: path }), replace: true }), [navigate]);
  const moveFile = (step: number) => {
    const index = files.findIndex((file) => file.path === current?.path);
    const next = files[index + step];
    if (next !== undefined) choose(next.path);
  };
  const toggleViewed = () => {
    if (current === null) return;
    const next = new Set(viewed);
    if (!next.delete(current.path)) next.add(current.path);
    setViewed(next);
  };
  useShortcuts([
    { keys: "J", run: () => { moveFile(1); } },
    { keys: "K", run: () => { moveFile(-1); } },
    { keys: "v", run: toggleViewed },
    { keys: "f", run: () => { setFull(!isFull); } },
  ]);

  const hasNoRepository = query.error instanceof Problem && query.error.code === "no_repository";
  const added = files.reduce((sum, file) => sum + file.added, 0);
  const removed = files.reduce((sum, file) => sum + file.removed, 0);
  return (
    <div className={`@container flex min-h-0 flex-1 flex-col ${isFull ? "fixed inset-0 z-30 bg-bg" : ""}`}>
      <div className="flex min-h-11 shrink-0 flex-wrap items-center gap-2 border-b border-line px-3 py-1.5">
        <TurnSelect sandbox={sandbox} turn={turn} isGone={isGone} onChange={(next) => void navigate({ search: (before) => ({ ...before, turn: next ?? undefined, file: undefined }), replace: true })} />
        <span className="text-control text-muted">{plural(files.length, "file")}</span>
        <LineCounts added={added} removed={removed} />
        <div className="ml-auto flex items-center gap-1">
          <IconButton label={isSplit ? "Show inline" : "Show side by side"} size="small" onClick={() => { setSplit(!isSplit); writeStored("diff.split", isSplit ? null : "yes"); }}>
            {isSplit ? <Rows3 size={16} aria-hidden /> : <Columns2 size={16} aria-hidden />}
          </IconButton>
          <IconButton label={isFull ? "Leave the full width (f)" : "Use the full width (f)"} size="small" onClick={() => { setFull(!isFull); }}>
            {isFull ? <Minimize2 size={16} aria-hidden /> : <Maximize2 size={16} aria-hidden />}
          </IconButton>
        </div>
      </div>
      {hasNoRepository && <EmptyState icon={<FileDiffIcon size={28} />} title="No repository">The sandbox was created without one, so there is no base to compare with. Each edit of the agent is in the timeline.</EmptyState>}
      {query.error !== null && !hasNoRepository && <div className="p-3"><FailureNotice failure={query.error} onRetry={() => void query.refetch()} /></div>}
      {query.isPending && query.error === null && <Skeleton label="Loading the changes" />}
      {query.data !== undefined && files.length === 0 && <EmptyState icon={<FileDiffIcon size={28} />} title="No changes">{turn === null ? "The agent has not changed a file yet." : `Turn ${turn} changed no file.`}</EmptyState>}
      {current !== null && (
        <div className="flex min-h-0 flex-1 flex-col @3xl:flex-row">
          <div className="hidden w-60 shrink-0 border-r border-line @3xl:block">
            <FileList files={files} current={current.path} viewed={viewed} commented={commented} onChoose={choose} />
          </div>
          {files.length > 1 && (
            <div className="max-h-44 shrink-0 border-b border-line @3xl:hidden" style={{ height: Math.min(files.length, 4) * 44 }}>
              <FileList files={files} current={current.path} viewed={viewed} commented={commented} onChoose={choose} />
            </div>
          )}
          <div className="flex min-h-0 min-w-0 flex-1 flex-col">
            <div className="flex min-h-10 shrink-0 items-center gap-1.5 border-b border-line bg-raised py-1 pr-1.5 pl-3">
              <h3 className="min-w-0 flex-1 truncate font-mono text-code" title={current.path}>
                {current.old_path != null && <><SafeText text={current.old_path} /> → </>}
                <SafeText text={current.path} />
              </h3>
              <LineCounts added={current.added} removed={current.removed} />
              <Button size="small" tone="quiet" aria-pressed={viewed.has(current.path)} icon={<Check size={14} className={viewed.has(current.path) ? "text-ok" : ""} aria-hidden />} onClick={toggleViewed}>Viewed</Button>
              <IconButton label="Previous file (K)" size="small" onClick={() => { moveFile(-1); }}><ChevronUp size={16} aria-hidden /></IconButton>
              <IconButton label="Next file (J)" size="small" onClick={() => { moveFile(1); }}><ChevronDown size={16} aria-hidden /></IconButton>
            </div>
            <CurrentFile key={`${current.path}:${turn ?? ""}`} sandbox={sandbox} turn={turn} file={current} version={version} isSplit={isSplit} comments={comments} />
          </div>
        </div>
      )}
      <SendComments sandbox={sandbox} comments={comments} />
    </div>
  );
}

/** Changes with each finished edit, so that the diff is loaded again. */
function useWorkspaceVersion(log: EventLog): number {
  return useMemo(() => log.events.findLast((event) => event.type === "agent.file_edited" || event.type.startsWith("files.") || event.type.startsWith("worktree."))?.seq ?? 0, [log.events]);
}

function TurnSelect({ sandbox, turn, isGone, onChange }: { sandbox: Sandbox; turn: number | null; isGone: boolean; onChange: (turn: number | null) => void }) {
  const turns = Array.from({ length: sandbox.turn ?? 0 }, (_, index) => index + 1).toReversed();
  return (
    <Select aria-label="Changes of" value={turn ?? ""} className="w-auto max-md:h-9" onChange={(event) => { onChange(event.target.value === "" ? null : Number(event.target.value)); }}>
      {!isGone && <option value="">All changes</option>}
      {turns.map((each) => <option key={each} value={each}>Turn {each}</option>)}
    </Select>
  );
}

interface CurrentFileProps {
  sandbox: Sandbox;
  turn: number | null;
  file: Parameters<typeof useFilePatch>[2];
  version: number;
  isSplit: boolean;
  comments: ReturnType<typeof useComments>;
}

function CurrentFile({ sandbox, turn, file, version, isSplit, comments }: CurrentFileProps) {
  const patch = useFilePatch(sandbox.id, turn, file, version);
  const [cursor, setCursor] = useState(0);
  const [form, setForm] = useState<(LineTarget & { id: string | null; text: string }) | null>(null);
  const rows = useMemo(() => (patch.data === undefined ? [] : toRows(patch.data, isSplit)), [patch.data, isSplit]);
  const path = file?.path ?? "";
  const own = comments.all.filter((comment) => comment.path === path);
  const openForm = (target: LineTarget) => { setForm({ ...target, id: null, text: "" }); };
  useShortcuts([
    { keys: "j", run: () => { setCursor(Math.min(cursor + 1, rows.length - 1)); } },
    { keys: "k", run: () => { setCursor(Math.max(cursor - 1, 0)); } },
    { keys: "c", run: () => { const target = targetOf(rows[cursor]); if (target !== null) openForm(target); } },
  ]);

  if (patch.error !== null) return <div className="p-3"><FailureNotice failure={patch.error} onRetry={() => void patch.refetch()} /></div>;
  if (patch.data === undefined) return <Skeleton lines={6} label="Loading the diff" />;
  if (file?.binary === true) return <EmptyState title="Binary file">Download it in Files.</EmptyState>;
  if (patch.data.lines.length === 0) return <EmptyState title="No changed lines">{file?.modes == null ? "Only the name of the file changed, or it is empty." : `The mode changed: ${file.modes.join(" → ")}.`}</EmptyState>;

  const isAt = (comment: LineTarget, target: LineTarget) => comment.line === target.line && comment.isRemoved === target.isRemoved;
  const save = (text: string) => {
    if (form === null) return;
    const comment: LineComment = { id: form.id ?? `${Date.now()}-${form.line}`, path, line: form.line, isRemoved: form.isRemoved, quote: form.quote, text, isSent: false };
    comments.save(comment);
    setForm(null);
  };
  return (
    <FileDiff
      file={patch.data}
      isSplit={isSplit}
      comments={own}
      cursor={cursor}
      onCursor={setCursor}
      onComment={openForm}
      renderBelow={(target) => (
        <>
          {own.filter((comment) => isAt(comment, target) && comment.id !== form?.id).map((comment) => (
            <CommentCard key={comment.id} comment={comment} onEdit={() => { setForm({ ...comment }); }} onRemove={() => { comments.remove(comment.id); }} />
          ))}
          {form !== null && isAt(form, target) && <CommentForm initial={form.text} onSave={save} onCancel={() => { setForm(null); }} />}
        </>
      )}
    />
  );
}

function SendComments({ sandbox, comments }: { sandbox: Sandbox; comments: ReturnType<typeof useComments> }) {
  const sending = useAction("Comments not sent");
  const navigate = useNavigate();
  const agent = useAgents().data?.find((each) => each.name === sandbox.agent) ?? null;
  const plan = planSend(sandbox, agent?.abilities ?? null);
  const send = () =>
    void sending.run(async () => {
      const message = formatComments(comments.drafts);
      if (plan.startsSandbox) {
        const next = await continueSession(sandbox, message);
        comments.markSent();
        if (next !== null) await navigate({ to: "/sandboxes/$id", params: { id: next } });
      } else {
        await sendMessage(sandbox.id, message, plan.delivery);
        comments.markSent();
      }
      reportSuccess("Comments sent");
    });
  return <CommentBar count={comments.drafts.length} verb={plan.label} isBusy={sending.isBusy} blocked={plan.blocked} onSend={send} />;
}

