import { memo, type ReactNode } from "react";
import { ChevronRight, CircleAlert, CircleSlash, FilePen, FileText, Globe, LoaderCircle, Search, ShieldAlert, Terminal, Users, Wrench, type LucideIcon } from "lucide-react";
import { formatInput } from "@/approvals/approval-request";
import { DiffText } from "@/changes/diff-text";
import { LineCounts } from "@/changes/line-counts";
import { describeTool } from "@/sandboxes/steps";
import { useNow } from "@/shell/clock";
import { AnsiText } from "@/text/ansi";
import { formatClock, formatDateTime, formatStepDuration } from "@/text/format";
import { PartialNote } from "@/text/partial-text";
import { SafeText } from "@/text/safe-text-view";
import type { FileEdit, ToolRow } from "./rows";

const TOOL_ICONS: Record<string, LucideIcon> = {
  Bash: Terminal,
  shell: Terminal,
  Read: FileText,
  Write: FilePen,
  Edit: FilePen,
  MultiEdit: FilePen,
  Glob: Search,
  Grep: Search,
  WebFetch: Globe,
  WebSearch: Globe,
  Task: Users,
};

interface ToolCardProps {
  row: ToolRow;
  sandboxId: string;
  isOpen: boolean;
  onToggle: (key: string, isOpen: boolean) => void;
  /** Renders the rows of a subagent. */
  renderChildren: (rows: ToolRow["children"]) => ReactNode;
}

/** One tool call: a line when folded; input, output and changes when open. */
export const ToolCard = memo(function ToolCard({ row, sandboxId, isOpen, onToggle, renderChildren }: ToolCardProps) {
  const Icon = TOOL_ICONS[row.tool] ?? Wrench;
  const added = row.edits.reduce((sum, edit) => sum + edit.added, 0);
  const removed = row.edits.reduce((sum, edit) => sum + edit.removed, 0);
  const summary = row.title !== "" ? row.title : describeTool(row.tool, row.input);
  const isBad = row.state === "failed" || row.state === "denied";
  return (
    <div className={`overflow-hidden rounded-md border ${isBad ? "border-bad/45" : "border-line"}`}>
      <button
        type="button"
        aria-expanded={isOpen}
        onClick={() => { onToggle(row.key, !isOpen); }}
        className="flex min-h-9 w-full items-center gap-2.5 px-2.5 py-1.5 text-left text-control hover:bg-raised max-md:min-h-11"
      >
        <ChevronRight size={14} className={`shrink-0 text-muted ${isOpen ? "rotate-90" : ""}`} aria-hidden />
        <Icon size={15} className="shrink-0 text-muted" aria-hidden />
        <span className="min-w-0 flex-1 truncate font-mono text-code"><SafeText text={summary} /></span>
        <LineCounts added={added} removed={removed} />
        <ToolState row={row} />
      </button>
      {isOpen && (
        <div className="border-t border-line">
          <ToolInput row={row} sandboxId={sandboxId} />
          {row.edits.map((edit) => <EditDiff key={edit.path} edit={edit} sandboxId={sandboxId} />)}
          {row.children.length > 0 && <div className="border-t border-line bg-raised px-3 py-2">{renderChildren(row.children)}</div>}
          <ToolOutput row={row} sandboxId={sandboxId} />
          <p className="border-t border-line px-3 py-1.5 text-meta text-muted" title={formatDateTime(row.at)}>
            <SafeText text={row.tool} /> · {formatClock(row.at)} · event {row.seq}
          </p>
        </div>
      )}
    </div>
  );
});

function ToolState({ row }: { row: ToolRow }) {
  switch (row.state) {
    case "running":
      return <RunningTime at={row.at} />;
    case "failed":
      return <span className="flex shrink-0 items-center gap-1 text-meta font-semibold text-bad"><CircleAlert size={14} aria-hidden />{row.detail === "" ? "Failed" : row.detail}</span>;
    case "denied":
      return <span className="flex shrink-0 items-center gap-1 text-meta font-semibold text-bad"><ShieldAlert size={14} aria-hidden />Denied</span>;
    case "unfinished":
      return <span className="flex shrink-0 items-center gap-1 text-meta text-muted"><CircleSlash size={14} aria-hidden />No result</span>;
    case "done":
      return <span className="shrink-0 text-meta text-muted">{row.endedAt === null ? "" : formatStepDuration(Date.parse(row.endedAt) - Date.parse(row.at))}</span>;
  }
}

function RunningTime({ at }: { at: string }) {
  const now = useNow();
  return (
    <span className="flex shrink-0 items-center gap-1 text-meta font-semibold text-accent">
      <LoaderCircle size={14} aria-hidden />
      Running {formatStepDuration(now - Date.parse(at))}
    </span>
  );
}

function ToolInput({ row, sandboxId }: { row: ToolRow; sandboxId: string }) {
  // The diff of an edit says more than its input.
  if (row.input === null || (row.edits.length > 0 && row.state === "done")) return null;
  return (
    <>
      <pre tabIndex={0} aria-label="Input" className="scroll-area max-h-80 bg-raised px-3 py-2 font-mono text-code whitespace-pre-wrap [overflow-wrap:anywhere]">
        <SafeText text={formatInput(row.tool, row.input)} />
      </pre>
      {row.inputBlob !== null && <PartialNote sandboxId={sandboxId} blob={row.inputBlob} bytes={null} />}
    </>
  );
}

function ToolOutput({ row, sandboxId }: { row: ToolRow; sandboxId: string }) {
  const hasReason = row.state === "denied" && row.detail !== "";
  if (row.output === null) return hasReason ? <p className="border-t border-line px-3 py-2 text-control text-bad"><SafeText text={row.detail} /></p> : null;
  if (row.output.text === "") return <p className="border-t border-line px-3 py-2 text-control text-muted">No output</p>;
  return (
    <>
      {hasReason && <p className="border-t border-line px-3 py-2 text-control text-bad"><SafeText text={row.detail} /></p>}
      <pre tabIndex={0} aria-label="Output" className={`scroll-area max-h-80 border-t border-line px-3 py-2 font-mono text-code whitespace-pre-wrap [overflow-wrap:anywhere] ${row.state === "failed" ? "text-bad" : ""}`}>
        <AnsiText text={row.output.text} />
      </pre>
      <PartialNote sandboxId={sandboxId} blob={row.output.blob} bytes={row.output.bytes} />
    </>
  );
}

export function EditDiff({ edit, sandboxId }: { edit: FileEdit; sandboxId: string }) {
  return (
    <div className="border-t border-line first:border-t-0">
      <p className="flex items-center gap-2 bg-raised px-3 py-1.5 font-mono text-code [overflow-wrap:anywhere]">
        <span className="min-w-0 flex-1">
          {edit.oldPath !== null && <><SafeText text={edit.oldPath} /> → </>}
          <SafeText text={edit.path} />
        </span>
        <span className="font-sans text-meta text-muted">{edit.change}</span>
        <LineCounts added={edit.added} removed={edit.removed} />
      </p>
      {edit.isBinary ? <p className="px-3 py-2 text-control text-muted">Binary file</p> : edit.diff.text !== "" && <DiffText patch={edit.diff.text} />}
      <PartialNote sandboxId={sandboxId} blob={edit.diff.blob} bytes={edit.diff.bytes} />
    </div>
  );
}
