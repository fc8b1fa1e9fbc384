import { lazy, Suspense, useEffect, useMemo } from "react";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Activity, Eye, FileDiff, FolderTree, GitBranch, Info, ListTree, TerminalSquare } from "lucide-react";
import { Problem } from "@/api/problem";
import { useApprovals, useMessages, useSandbox } from "@/api/queries";
import type { Sandbox, StoredEvent } from "@/api/types";
import { EmptyState, FailureNotice, Skeleton } from "@/components/notice";
import { SplitHandle, useSplit } from "@/components/splitter";
import { TabPanel, Tabs, type TabItem } from "@/components/tabs";
import { useEventLog } from "@/events/feed";
import { Composer } from "@/inbox/composer";
import type { SandboxTab } from "@/router";
import { isInTurn, statusOf } from "@/sandboxes/status";
import { dataOf, textField } from "@/sandboxes/steps";
import { approvalsOf } from "@/shell/notifications";
import { markSeen } from "@/shell/seen";
import { useTitle } from "@/shell/title";
import { Timeline } from "@/timeline/timeline";
import { useTimelineRows } from "@/timeline/use-rows";
import { SandboxHeader } from "./sandbox-header";
import { SandboxList } from "./sandbox-list";

const ChangesPanel = lazy(() => import("@/changes/changes-panel").then((module) => ({ default: module.ChangesPanel })));
const TerminalPanel = lazy(() => import("@/terminal/terminal-panel").then((module) => ({ default: module.TerminalPanel })));
const FilesPanel = lazy(() => import("@/files/files-panel").then((module) => ({ default: module.FilesPanel })));
const PreviewPanel = lazy(() => import("@/previews/preview-panel").then((module) => ({ default: module.PreviewPanel })));
const GitPanel = lazy(() => import("@/results/git-panel").then((module) => ({ default: module.GitPanel })));
const EventsPanel = lazy(() => import("@/events/events-panel").then((module) => ({ default: module.EventsPanel })));
const DetailsPanel = lazy(() => import("./details-panel").then((module) => ({ default: module.DetailsPanel })));

const route = getRouteApi("/sandboxes/$id");

const TABS: readonly TabItem<SandboxTab>[] = [
  { id: "changes", label: "Changes", icon: <FileDiff size={15} aria-hidden /> },
  { id: "terminal", label: "Terminal", icon: <TerminalSquare size={15} aria-hidden /> },
  { id: "files", label: "Files", icon: <FolderTree size={15} aria-hidden /> },
  { id: "preview", label: "Preview", icon: <Eye size={15} aria-hidden /> },
  { id: "git", label: "Git", icon: <GitBranch size={15} aria-hidden /> },
  { id: "events", label: "Events", icon: <ListTree size={15} aria-hidden /> },
  { id: "details", label: "Details", icon: <Info size={15} aria-hidden /> },
];
const TIMELINE_TAB: TabItem<SandboxTab> = { id: "timeline", label: "Timeline", icon: <Activity size={15} aria-hidden /> };

export function SandboxPage() {
  const { id } = route.useParams();
  const sandbox = useSandbox(id);
  if (sandbox.data === undefined) {
    if (sandbox.error instanceof Problem && sandbox.error.status === 404) {
      return (
        <EmptyState title="This sandbox does not exist" action={<Link to="/" className="text-accent underline">Go to Home</Link>}>
          It was removed, or you may not see its project.
        </EmptyState>
      );
    }
    if (sandbox.error !== null) return <div className="p-6"><FailureNotice failure={sandbox.error} onRetry={() => void sandbox.refetch()} /></div>;
    return <Skeleton lines={8} label="Loading the sandbox" />;
  }
  return <LoadedSandbox key={id} sandbox={sandbox.data} />;
}

function LoadedSandbox({ sandbox }: { sandbox: Sandbox }) {
  useTitle(sandbox.title ?? sandbox.id);
  const { tab } = route.useSearch();
  const navigate = useNavigate({ from: "/sandboxes/$id" });
  const log = useEventLog(sandbox.id);
  const { display, rows } = useTimelineRows(log);
  const messages = useMessages(sandbox.id).data;
  const allApprovals = useApprovals().data;
  const approvals = useMemo(() => approvalsOf(allApprovals, sandbox.id), [allApprovals, sandbox.id]);
  const split = useSplit("sandbox", 46);
  const panel = tab === undefined || tab === "timeline" ? "changes" : tab;
  const phoneTab = tab ?? "timeline";
  const shownMessages = messages ?? NO_MESSAGES;

  const lastSeq = log.lastSeq;
  useEffect(() => { markSeen(sandbox.id, lastSeq); }, [sandbox.id, lastSeq]);

  const changedFiles = useMemo(() => countChangedFiles(log.events), [log.events]);
  const tabs = useMemo(() => TABS.map((item) => (item.id === "changes" ? { ...item, count: changedFiles } : item)), [changedFiles]);

  const choose = (next: SandboxTab) => void navigate({ search: (before) => ({ ...before, tab: next }), replace: true });
  return (
    <div className="flex min-h-0 flex-1">
      <SandboxList currentId={sandbox.id} />
      <p role="status" className="sr-only">{announce(sandbox)}</p>
      <div className="flex min-h-0 min-w-0 flex-1 flex-col">
        <SandboxHeader sandbox={sandbox} log={log} messages={shownMessages} />
        <div className="lg:hidden"><Tabs label="Parts of the sandbox" items={[TIMELINE_TAB, ...tabs]} current={phoneTab} onChange={choose} /></div>
        <div className="flex min-h-0 flex-1">
          <section aria-label="Conversation" data-pane="Conversation" className={`min-h-0 min-w-0 flex-1 flex-col ${phoneTab === "timeline" ? "flex" : "hidden lg:flex"}`}>
            <Timeline sandboxId={sandbox.id} sandbox={sandbox} log={log} display={display} messages={shownMessages} approvals={approvals} isWorking={isInTurn(sandbox)} />
            <Composer key={sandbox.id} sandbox={sandbox} messages={shownMessages} />
          </section>
          <SplitHandle split={split} label="Width of the panel" />
          <section
            aria-label="Panel"
            data-pane="Panel"
            style={{ "--panel": `${split.percent}%` } as React.CSSProperties}
            className={`min-h-0 min-w-0 flex-col max-lg:w-full lg:w-(--panel) lg:min-w-[26rem] lg:shrink-0 ${phoneTab === "timeline" ? "hidden lg:flex" : "flex"}`}
          >
            <div className="max-lg:hidden"><Tabs label="Panel" items={tabs} current={panel} onChange={choose} /></div>
            <TabPanel id={panel} className="flex flex-col">
              <Suspense fallback={<Skeleton lines={5} />}>
                <Panel tab={panel} sandbox={sandbox} log={log} rows={rows} />
              </Suspense>
            </TabPanel>
          </section>
        </div>
      </div>
    </div>
  );
}

/** Files that the loaded events changed. */
function countChangedFiles(events: readonly StoredEvent[]): number {
  const paths = events.flatMap((event) => (event.type === "agent.file_edited" ? [textField(dataOf<"agent.file_edited">(event), "file_path")] : []));
  return new Set(paths).size;
}

/** Turn ends, approvals and failures, for screen readers. Steps are not announced. */
function announce(sandbox: Sandbox): string {
  const { group, word, detail } = statusOf(sandbox);
  return group === "working" ? "" : [word, detail].filter(Boolean).join(". ");
}

const NO_MESSAGES: never[] = [];

interface PanelProps {
  tab: Exclude<SandboxTab, "timeline">;
  sandbox: Sandbox;
  log: ReturnType<typeof useEventLog>;
  rows: ReturnType<typeof useTimelineRows>["rows"];
}

function Panel({ tab, sandbox, log, rows }: PanelProps) {
  switch (tab) {
    case "changes":
      return <ChangesPanel sandbox={sandbox} log={log} />;
    case "terminal":
      return <TerminalPanel sandbox={sandbox} rows={rows} />;
    case "files":
      return <FilesPanel sandbox={sandbox} />;
    case "preview":
      return <PreviewPanel sandbox={sandbox} />;
    case "git":
      return <GitPanel sandbox={sandbox} log={log} />;
    case "events":
      return <EventsPanel sandbox={sandbox} log={log} />;
    case "details":
      return <DetailsPanel sandbox={sandbox} />;
  }
}
