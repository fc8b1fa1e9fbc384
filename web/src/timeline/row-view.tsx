import { memo, type ReactNode } from "react";
import { Ban, Brain, Check, ChevronRight, CircleCheck, CircleDashed, CircleDot, CircleX, Info, ListChecks, PackageOpen, ShieldHalf, TriangleAlert, User, Wrench, Zap } from "lucide-react";
import { LineCounts } from "@/changes/line-counts";
import { describeStep } from "@/sandboxes/steps";
import { AnsiText } from "@/text/ansi";
import { capitalize, firstLine, formatClock, formatDateTime, formatStepDuration, plural } from "@/text/format";
import { Markdown } from "@/text/markdown";
import { PartialNote } from "@/text/partial-text";
import { SafeText } from "@/text/safe-text-view";
import { ApprovalRowView } from "./approval-row";
import { describeGroup, type ChecksRow, type DisplayRow, type MessageRow, type NoticeRow, type PlanRow, type SetupRow, type TextRow, type ToolGroup, type TurnRow, type UnknownRow } from "./rows";
import { EditDiff, ToolCard } from "./tool-card";

export interface RowContext {
  sandboxId: string;
  /** A replay shows what was asked; it is not answered there. */
  isRecorded: boolean;
  isOpen: (key: string, byDefault: boolean) => boolean;
  toggle: (key: string, isOpen: boolean) => void;
  /** The whole content of a message that its event shows in part. */
  messageContent: (id: string) => string | null;
}

interface RowViewProps {
  row: DisplayRow;
  isNewest: boolean;
  context: RowContext;
}

export const RowView = memo(function RowView({ row, isNewest, context }: RowViewProps): ReactNode {
  switch (row.kind) {
    case "turn":
      return <TurnLine row={row} />;
    case "message":
      return <MessageCard row={row} content={context.messageContent(row.messageId)} />;
    case "text":
      return (
        <div>
          <Markdown text={row.text.text} />
          <PartialNote sandboxId={context.sandboxId} blob={row.text.blob} bytes={row.text.bytes} />
        </div>
      );
    case "thinking":
      return <Thinking row={row} context={context} />;
    case "tool": {
      const isOpen = context.isOpen(row.key, row.state === "failed" || row.state === "denied" || isNewest || row.state === "running");
      return (
        <ToolCard
          row={row}
          sandboxId={context.sandboxId}
          isOpen={isOpen}
          onToggle={context.toggle}
          renderChildren={(children) => <div className="flex flex-col gap-2">{children.map((child) => <RowView key={child.key} row={child} isNewest={false} context={context} />)}</div>}
        />
      );
    }
    case "edit":
      return <EditCard edit={row.edit} rowKey={row.key} isNewest={isNewest} context={context} />;
    case "group":
      return <GroupCard group={row} context={context} />;
    case "approval":
      return <ApprovalRowView row={row} sandboxId={context.sandboxId} isRecorded={context.isRecorded} />;
    case "plan":
      return <Plan row={row} />;
    case "setup":
      return <Setup row={row} context={context} />;
    case "checks":
      return <Checks row={row} context={context} />;
    case "notice":
      return <NoticeLine row={row} />;
    case "unknown":
      return <UnknownEvent row={row} context={context} />;
  }
});

const TURN_WORDS: Record<TurnRow["state"], string> = { running: "working", completed: "completed", interrupted: "interrupted", failed: "failed" };

function TurnLine({ row }: { row: TurnRow }) {
  const time = row.endedAt === null ? "" : formatStepDuration(Date.parse(row.endedAt) - Date.parse(row.at));
  const tone = row.state === "failed" ? "text-bad" : row.state === "interrupted" ? "text-attention" : "text-muted";
  return (
    <h3 data-turn={row.turn} className="flex items-center gap-3 pt-2 text-meta text-muted">
      <span className="font-semibold">Turn {row.turn}</span>
      <span className={tone}>{TURN_WORDS[row.state]}{time === "" ? "" : ` · ${time}`}</span>
      {row.agent !== "" && <span className="truncate"><SafeText text={row.model === "" ? row.agent : `${row.agent} · ${row.model}`} /></span>}
      <span className="h-px flex-1 bg-line" />
      <time dateTime={row.at} title={formatDateTime(row.at)}>{formatClock(row.at)}</time>
    </h3>
  );
}

const HOW_WORDS: Record<string, string> = {
  injected: "reached the agent during its turn",
  new_turn: "started this turn",
  restarted: "the agent was interrupted and continued with it",
};

function MessageCard({ row, content }: { row: MessageRow; content: string | null }) {
  const text = row.isWhole || content === null ? row.content : content;
  if (row.messageType === "interrupt") {
    return <p className="flex items-center gap-2 text-control text-attention"><Zap size={15} aria-hidden />You interrupted the agent{text.trim() === "" ? "" : <>: <SafeText text={text} /></>}</p>;
  }
  const [Icon, who] = row.messageType === "guardian_nudge" ? ([ShieldHalf, "Guardian"] as const) : row.messageType === "system" ? ([Info, "Atoll"] as const) : ([User, "You"] as const);
  const isUnsure = row.state !== "acknowledged";
  return (
    <article className="rounded-lg bg-accent-tint px-4 py-2.5" aria-label={`Message: ${who}`}>
      <header className="mb-0.5 flex items-center gap-2 text-meta text-muted">
        <Icon size={13} aria-hidden />
        <span className="font-semibold text-text">{who}</span>
        <span className={isUnsure ? "font-semibold text-attention" : ""}>
          {row.state === "delivered_unconfirmed" ? "handed to the agent, which did not confirm it" : row.state === "undeliverable" ? `not delivered${row.reason === "" ? "" : `: ${row.reason}`}` : (HOW_WORDS[row.how] ?? row.how)}
        </span>
      </header>
      <p className="max-w-[45rem] text-body whitespace-pre-wrap [overflow-wrap:anywhere]"><SafeText text={text === "" ? "The content is not loaded." : text} /></p>
    </article>
  );
}

function Fold({ isOpen, onToggle, header, children }: { isOpen: boolean; onToggle: () => void; header: ReactNode; children: ReactNode }) {
  return (
    <div>
      <button type="button" aria-expanded={isOpen} onClick={onToggle} className="flex min-h-7 w-full items-center gap-2 rounded text-left text-control text-muted hover:text-text max-md:min-h-11">
        <ChevronRight size={14} className={`shrink-0 ${isOpen ? "rotate-90" : ""}`} aria-hidden />
        {header}
      </button>
      {isOpen && children}
    </div>
  );
}

function Thinking({ row, context }: { row: TextRow; context: RowContext }) {
  const isOpen = context.isOpen(row.key, false);
  return (
    <Fold
      isOpen={isOpen}
      onToggle={() => { context.toggle(row.key, !isOpen); }}
      header={<><Brain size={14} className="shrink-0" aria-hidden /><span className="shrink-0">Thinking</span>{!isOpen && <span className="min-w-0 truncate"><SafeText text={firstLine(row.text.text, 90)} /></span>}</>}
    >
      <div className="mt-1 ml-5 border-l-2 border-line pl-3 text-muted"><Markdown text={row.text.text} /></div>
    </Fold>
  );
}

function GroupCard({ group, context }: { group: ToolGroup; context: RowContext }) {
  const isOpen = context.isOpen(group.key, false);
  const edits = group.tools.flatMap((tool) => (tool.kind === "edit" ? [tool.edit] : tool.edits));
  return (
    <div className="rounded-md border border-line">
      <button type="button" aria-expanded={isOpen} onClick={() => { context.toggle(group.key, !isOpen); }} className="flex min-h-9 w-full items-center gap-2.5 px-2.5 py-1.5 text-left text-control text-muted hover:bg-raised max-md:min-h-11">
        <ChevronRight size={14} className={`shrink-0 ${isOpen ? "rotate-90" : ""}`} aria-hidden />
        <Wrench size={15} className="shrink-0" aria-hidden />
        <span className="min-w-0 flex-1 truncate">{describeGroup(group.tools)}</span>
        <LineCounts added={edits.reduce((sum, edit) => sum + edit.added, 0)} removed={edits.reduce((sum, edit) => sum + edit.removed, 0)} />
      </button>
      {isOpen && <div className="flex flex-col gap-2 border-t border-line p-2">{group.tools.map((tool) => <RowView key={tool.key} row={tool} isNewest={false} context={context} />)}</div>}
    </div>
  );
}

function EditCard({ edit, rowKey, isNewest, context }: { edit: Parameters<typeof EditDiff>[0]["edit"]; rowKey: string; isNewest: boolean; context: RowContext }) {
  const isOpen = context.isOpen(rowKey, isNewest);
  return (
    <Fold isOpen={isOpen} onToggle={() => { context.toggle(rowKey, !isOpen); }} header={<><span className="min-w-0 truncate font-mono text-code"><SafeText text={`${capitalize(edit.change)} ${edit.path}`} /></span><LineCounts added={edit.added} removed={edit.removed} /></>}>
      <div className="overflow-hidden rounded-md border border-line"><EditDiff edit={edit} sandboxId={context.sandboxId} /></div>
    </Fold>
  );
}

const PLAN_ICONS: Record<string, ReactNode> = {
  completed: <Check size={15} className="text-ok" aria-label="Done" />,
  done: <Check size={15} className="text-ok" aria-label="Done" />,
  in_progress: <CircleDot size={15} className="text-accent" aria-label="In progress" />,
};

function Plan({ row }: { row: PlanRow }) {
  return (
    <section aria-label="Plan" className="rounded-md border border-line px-3 py-2">
      <h4 className="mb-1 flex items-center gap-2 text-meta font-semibold text-muted"><ListChecks size={14} aria-hidden />Plan</h4>
      <ol className="flex flex-col gap-1">
        {row.items.map((item, index) => (
          <li key={index} className={`flex items-start gap-2 text-control ${item.state === "completed" ? "text-muted" : ""}`}>
            <span className="mt-0.5 shrink-0">{PLAN_ICONS[item.state] ?? <CircleDashed size={15} className="text-muted" aria-label="Open" />}</span>
            <SafeText text={item.text} />
          </li>
        ))}
      </ol>
    </section>
  );
}

function Setup({ row, context }: { row: SetupRow; context: RowContext }) {
  const isOpen = context.isOpen(row.key, row.state !== "done");
  const word = row.state === "running" ? `Set-up: step ${Math.min(row.completed + 1, row.steps.length)} of ${row.steps.length}` : row.state === "failed" ? "Set-up failed" : `Set-up: ${row.summary}`;
  return (
    <Fold isOpen={isOpen} onToggle={() => { context.toggle(row.key, !isOpen); }} header={<><PackageOpen size={14} aria-hidden /><span className={row.state === "failed" ? "font-semibold text-bad" : ""}>{word}</span></>}>
      <div className="mt-1 overflow-hidden rounded-md border border-line">
        {row.state === "failed" && <p className="px-3 py-2 text-control text-bad"><SafeText text={capitalize(row.summary)} />{row.remedy !== "" && <> <SafeText text={capitalize(row.remedy)} />.</>}</p>}
        <ol className="px-3 py-2 font-mono text-code">
          {row.steps.map((step, index) => <li key={index} className={index < row.completed ? "text-muted" : ""}>{index < row.completed ? "✓" : index === row.completed && row.state === "running" ? "›" : "·"} <SafeText text={step} /></li>)}
        </ol>
        {row.output !== "" && <pre tabIndex={0} aria-label="Output of the set-up" className="scroll-area max-h-60 border-t border-line px-3 py-2 font-mono text-code whitespace-pre-wrap"><AnsiText text={row.output} /></pre>}
      </div>
    </Fold>
  );
}

function Checks({ row, context }: { row: ChecksRow; context: RowContext }) {
  const failed = row.checks.filter((check) => check.verdict !== "passed").length;
  const isOpen = context.isOpen(row.key, row.verdict === null || row.verdict === "failed");
  const word = row.verdict === null ? "running the checks" : failed === 0 ? "all checks passed" : `${plural(failed, "check")} did not pass`;
  return (
    <Fold isOpen={isOpen} onToggle={() => { context.toggle(row.key, !isOpen); }} header={<><ListChecks size={14} aria-hidden /><span>Round {row.round}: {word}</span></>}>
      <ul className="mt-1 rounded-md border border-line">
        {row.checks.map((check, index) => (
          <li key={index} className="border-b border-line px-3 py-2 last:border-b-0">
            <p className="flex items-center gap-2 font-mono text-code">
              {check.verdict === "passed" ? <CircleCheck size={15} className="text-ok" aria-label="Passed" /> : check.verdict === "failed" ? <CircleX size={15} className="text-bad" aria-label="Failed" /> : <CircleDashed size={15} className="text-attention" aria-label="Unknown" />}
              <SafeText text={check.name} />
              {check.detail !== "" && <span className="font-sans text-meta text-muted"><SafeText text={check.detail} /></span>}
            </p>
            {check.verdict !== "passed" && check.output !== "" && <pre className="scroll-area mt-1 max-h-48 font-mono text-code whitespace-pre-wrap text-muted"><AnsiText text={check.output} /></pre>}
          </li>
        ))}
      </ul>
    </Fold>
  );
}

const NOTICE_STYLES: Record<NoticeRow["tone"], { tone: string; icon: ReactNode }> = {
  plain: { tone: "text-muted", icon: <Info size={14} aria-hidden /> },
  ok: { tone: "text-ok", icon: <CircleCheck size={14} aria-hidden /> },
  attention: { tone: "text-attention", icon: <TriangleAlert size={14} aria-hidden /> },
  bad: { tone: "text-bad", icon: <Ban size={14} aria-hidden /> },
  guardian: { tone: "text-paused", icon: <ShieldHalf size={14} aria-hidden /> },
};

function NoticeLine({ row }: { row: NoticeRow }) {
  const { tone, icon } = NOTICE_STYLES[row.tone];
  return (
    <div className={`flex items-start gap-2 text-control ${tone}`}>
      <span className="mt-[3px] shrink-0">{icon}</span>
      <div className="min-w-0 flex-1 [overflow-wrap:anywhere]">
        <SafeText text={row.text} />
        {row.detail !== "" && <p className="scroll-area max-h-40 text-meta whitespace-pre-wrap text-muted"><SafeText text={row.detail} /></p>}
      </div>
      <time dateTime={row.at} className="shrink-0 text-meta text-muted max-md:hidden" title={formatDateTime(row.at)}>{formatClock(row.at)}</time>
    </div>
  );
}

function UnknownEvent({ row, context }: { row: UnknownRow; context: RowContext }) {
  const isOpen = context.isOpen(row.key, false);
  return (
    <Fold isOpen={isOpen} onToggle={() => { context.toggle(row.key, !isOpen); }} header={<><Zap size={14} aria-hidden /><span className="font-mono text-code"><SafeText text={row.event.type} /></span><span className="min-w-0 truncate"><SafeText text={describeStep(row.event) ?? firstLine(JSON.stringify(row.event.data), 80)} /></span></>}>
      <pre className="scroll-area mt-1 max-h-80 rounded-md border border-line bg-raised px-3 py-2 font-mono text-code"><SafeText text={JSON.stringify(row.event.data, null, 2)} /></pre>
    </Fold>
  );
}
