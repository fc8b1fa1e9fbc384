import { useState } from "react";
import { Link } from "@tanstack/react-router";
import { ArrowLeft, Camera, Copy, Download, Ellipsis, GitFork, History, Pause, Pencil, Play, Square, Trash2 } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { useProviders } from "@/api/queries";
import type { Message, Sandbox } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { Menu, type MenuAction } from "@/components/menu";
import { reportSuccess } from "@/components/toast";
import { useAction } from "@/components/use-action";
import { useConnection } from "@/events/feed";
import type { EventLog } from "@/events/event-log";
import { storeRow } from "@/sandboxes/live-rows";
import { hasEnded, isInTurn, statusOf } from "@/sandboxes/status";
import { StatusBadge } from "@/sandboxes/status-badge";
import { useNow } from "@/shell/clock";
import { formatDuration, plural } from "@/text/format";
import { SafeText } from "@/text/safe-text-view";
import { ActionDialog, type ActionDialogKind } from "./action-dialogs";
import { SandboxMeters } from "./meters";
import { SandboxDrawer } from "./sandbox-list";

interface SandboxHeaderProps {
  sandbox: Sandbox;
  log: EventLog;
  messages: readonly Message[];
}

/** Title, state, meters and actions of a sandbox. */
export function SandboxHeader({ sandbox, log }: SandboxHeaderProps) {
  const [dialog, setDialog] = useState<ActionDialogKind | null>(null);
  const pausing = useAction("Not changed");
  const status = statusOf(sandbox);
  const isPaused = sandbox.activity === "paused";
  const provider = useProviders().data?.find((each) => each.name === sandbox.provider);
  const canPause = sandbox.state === "running" && provider?.capabilities.pause !== "none";
  const canStop = !hasEnded(sandbox) && sandbox.state !== "completing";
  const togglePause = () =>
    void pausing.run(async () => {
      const params = { params: { path: { id: sandbox.id } } };
      storeRow(await unwrap(isPaused ? api.POST("/api/v1/sandboxes/{id}/resume", params) : api.POST("/api/v1/sandboxes/{id}/pause", params)));
    });

  const phoneActions: MenuAction[] = [
    ...(canPause ? [{ label: isPaused ? "Resume" : "Pause", icon: isPaused ? <Play size={15} /> : <Pause size={15} />, run: togglePause }] : []),
    ...(canStop ? [{ label: "Stop", icon: <Square size={15} />, isDanger: true, run: () => { setDialog("stop"); } }] : []),
  ];

  return (
    <header className="flex min-h-13 shrink-0 flex-wrap items-center gap-x-4 gap-y-0.5 border-b border-line px-4 py-2 max-md:min-h-12 max-md:px-1 max-md:py-1" data-pane="Header">
      <div className="flex min-w-0 flex-1 basis-72 items-center gap-2.5 max-md:gap-1.5">
        <Link to="/" aria-label="Home" title="Home (g h)" className="flex size-9 shrink-0 items-center justify-center rounded-md text-muted hover:bg-sunk md:hidden"><ArrowLeft size={18} aria-hidden /></Link>
        <span className="max-md:hidden xl:hidden"><SandboxDrawer currentId={sandbox.id} /></span>
        <h1 className="min-w-0 truncate text-title font-semibold max-md:text-body" title={sandbox.title}><SafeText text={sandbox.title ?? sandbox.id} /></h1>
        <StatusBadge sandbox={sandbox} />
        <Freshness sandbox={sandbox} log={log} />
        <span className="ml-auto md:hidden"><ActionsMenu sandbox={sandbox} onChoose={setDialog} phoneActions={phoneActions} /></span>
      </div>
      <div className="flex items-center gap-4 max-md:w-full max-md:justify-between max-md:px-2">
        <div className="flex items-center gap-4"><SandboxMeters sandbox={sandbox} events={log.events} /></div>
        <div className="flex items-center gap-1">
          {canPause && (
            <Button size="small" className="max-md:hidden" isBusy={pausing.isBusy} icon={isPaused ? <Play size={14} aria-hidden /> : <Pause size={14} aria-hidden />} onClick={togglePause}>
              {isPaused ? "Resume" : "Pause"}
            </Button>
          )}
          {canStop && (
            <Button size="small" tone="danger" className="max-md:hidden" icon={<Square size={13} aria-hidden />} onClick={() => { setDialog("stop"); }}>Stop</Button>
          )}
          {hasEnded(sandbox) && (
            <Link to="/sandboxes/$id/replay" params={{ id: sandbox.id }} className="inline-flex h-7 items-center gap-1.5 rounded-md border border-line px-2 text-control font-semibold hover:bg-raised max-md:h-9"><History size={14} aria-hidden />Replay</Link>
          )}
          <span className="max-md:hidden"><ActionsMenu sandbox={sandbox} onChoose={setDialog} /></span>
        </div>
      </div>
      {status.detail !== null && status.group !== "working" && sandbox.activity !== "waiting_approval" && (
        <p className={`w-full pb-0.5 text-control [overflow-wrap:anywhere] max-md:px-2 ${status.icon === "failed" ? "text-bad" : status.group === "needs_you" ? "text-attention" : "text-muted"}`}><SafeText text={status.detail} /></p>
      )}
      {dialog !== null && <ActionDialog kind={dialog} sandbox={sandbox} onClose={() => { setDialog(null); }} />}
    </header>
  );
}

/** Seconds without a step after which the header shows how old the last step is. */
const QUIET_S = 60;

/** How current the view is: events behind, and the age of the last step if the agent is quiet. */
function Freshness({ sandbox, log }: { sandbox: Sandbox; log: EventLog }) {
  const now = useNow(5);
  const connection = useConnection();
  const behind = sandbox.last_seq - log.lastSeq;
  const last = log.events.at(-1);
  if (connection.state === "offline") return null;
  if (log.isLoaded && (log.isFillingGap || behind > 20)) {
    return <span className="shrink-0 text-meta font-semibold text-attention">{behind > 0 ? `${plural(behind, "event")} behind` : "Loading missed events"}</span>;
  }
  const age = last === undefined ? 0 : now - Date.parse(last.received_at);
  if (sandbox.state !== "running" || sandbox.activity !== "working" || age < QUIET_S * 1000) return null;
  return <span className="shrink-0 text-meta text-muted max-md:hidden" title="The agent or its tool is still running">last event {formatDuration(age)} ago</span>;
}

interface ActionsMenuProps {
  sandbox: Sandbox;
  onChoose: (kind: ActionDialogKind) => void;
  /** Actions that have no button of their own on a phone. */
  phoneActions?: readonly MenuAction[];
}

function ActionsMenu({ sandbox, onChoose, phoneActions = [] }: ActionsMenuProps) {
  const provider = useProviders().data?.find((each) => each.name === sandbox.provider);
  const isEnded = hasEnded(sandbox);
  const inTurn = isInTurn(sandbox);
  const betweenTurns = inTurn ? "Possible between two turns: interrupt the agent first." : null;
  const gone = isEnded ? "The sandbox has ended." : null;
  const noFork = provider !== undefined && provider.capabilities.fork === "none" ? `The provider ${provider.name} cannot fork.` : null;
  const noSnapshot = provider !== undefined && provider.capabilities.snapshot === "none" ? `The provider ${provider.name} cannot make snapshots.` : null;
  const noRepo = sandbox.settings.repo == null ? "The sandbox has no repository." : null;
  const copy = (text: string, name: string) => () => void navigator.clipboard.writeText(text).then(() => { reportSuccess(`Copied the ${name}`); });
  const actions: (MenuAction | "separator")[] = [
    ...phoneActions,
    { label: "Export results", icon: <Download size={15} />, unavailable: noRepo, run: () => { onChoose("results"); } },
    { label: "Fork", icon: <GitFork size={15} />, unavailable: gone ?? noFork ?? betweenTurns, run: () => { onChoose("fork"); } },
    { label: "Snapshot", icon: <Camera size={15} />, unavailable: gone ?? noSnapshot ?? betweenTurns, run: () => { onChoose("snapshot"); } },
    { label: "Rename", icon: <Pencil size={15} />, run: () => { onChoose("rename"); } },
    "separator",
    { label: "Copy the id", icon: <Copy size={15} />, run: copy(sandbox.id, "id") },
    ...(sandbox.branch == null ? [] : [{ label: "Copy the branch", icon: <Copy size={15} />, run: copy(sandbox.branch, "branch") }]),
    "separator",
    { label: "Remove", icon: <Trash2 size={15} />, isDanger: true, run: () => { onChoose("remove"); } },
  ];
  return <Menu label="Actions" trigger={<IconButton label="Actions"><Ellipsis size={18} aria-hidden /></IconButton>} actions={actions} />;
}
