import { memo, useMemo, useState } from "react";
import { Dialog as Drawer } from "@base-ui/react/dialog";
import { Link } from "@tanstack/react-router";
import { PanelLeft, Plus } from "lucide-react";
import { useSandboxes } from "@/api/queries";
import type { Sandbox } from "@/api/types";
import { IconButton } from "@/components/button";
import { GROUP_ORDER, groupSandboxes } from "@/home/grouping";
import { GROUP_TITLES, statusOf } from "@/sandboxes/status";
import { StatusMark } from "@/sandboxes/status-badge";
import { useLastStep } from "@/sandboxes/live-rows";
import { useIsUnread } from "@/shell/seen";
import { SafeText } from "@/text/safe-text-view";

const SHOWN_DONE = 30;

/** All sandboxes beside the open one, on wide screens. */
export function SandboxList({ currentId }: { currentId: string }) {
  return (
    <nav aria-label="Sandboxes" data-pane="Sandboxes" className="scroll-area hidden w-66 shrink-0 border-r border-line bg-raised xl:block">
      <SandboxEntries currentId={currentId} />
    </nav>
  );
}

/** The same list in a drawer, on narrower screens. */
export function SandboxDrawer({ currentId }: { currentId: string }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <Drawer.Root open={isOpen} onOpenChange={setOpen}>
      <Drawer.Trigger render={<IconButton label="Other sandboxes" className="xl:hidden"><PanelLeft size={18} aria-hidden /></IconButton>} />
      <Drawer.Portal>
        <Drawer.Backdrop className="fade-in fixed inset-0 z-40 bg-backdrop" />
        <Drawer.Popup className="scroll-area fade-in fixed inset-y-0 left-0 z-50 w-72 max-w-[85vw] border-r border-line bg-raised text-text" onClick={(event) => { if (event.target instanceof Element && event.target.closest("a") !== null) setOpen(false); }}>
          <Drawer.Title className="sr-only">Sandboxes</Drawer.Title>
          <SandboxEntries currentId={currentId} />
        </Drawer.Popup>
      </Drawer.Portal>
    </Drawer.Root>
  );
}

const SandboxEntries = memo(function SandboxEntries({ currentId }: { currentId: string }) {
  const rows = useSandboxes().data;
  const groups = useMemo(() => groupSandboxes(rows ?? [], {}), [rows]);
  return (
    <>
      <div className="sticky top-0 z-10 flex h-13 items-center justify-between border-b border-line bg-raised pr-2 pl-4">
        <h2 className="text-control font-semibold">Sandboxes</h2>
        <Link to="/new" aria-label="New sandbox" title="New sandbox (g n)" className="flex size-8 items-center justify-center rounded-md text-muted hover:bg-sunk hover:text-text"><Plus size={18} aria-hidden /></Link>
      </div>
      {GROUP_ORDER.map((group) => {
        const shown = group === "done" ? groups.done.slice(0, SHOWN_DONE) : groups[group];
        if (shown.length === 0) return null;
        return (
          <section key={group} className="py-2">
            <h3 className="px-4 pb-1 text-meta font-semibold text-muted">{GROUP_TITLES[group]}</h3>
            <ul>{shown.map((row) => <ListEntry key={row.id} sandbox={row} isCurrent={row.id === currentId} />)}</ul>
          </section>
        );
      })}
    </>
  );
});

const ListEntry = memo(function ListEntry({ sandbox, isCurrent }: { sandbox: Sandbox; isCurrent: boolean }) {
  const status = statusOf(sandbox);
  const step = useLastStep(sandbox.id);
  const isUnread = useIsUnread(sandbox.id, sandbox.last_seq) && !isCurrent;
  return (
    <li>
      <Link
        to="/sandboxes/$id"
        params={{ id: sandbox.id }}
        aria-current={isCurrent ? "page" : undefined}
        className="mx-2 flex items-start gap-2 rounded-md px-2 py-1.5 hover:bg-sunk aria-[current]:bg-accent-tint"
      >
        <span className="mt-0.5"><StatusMark status={status} size={15} /></span>
        <span className="min-w-0 flex-1">
          <span className={`block truncate text-control ${isUnread ? "font-semibold" : ""}`}><SafeText text={sandbox.title ?? sandbox.id} /></span>
          <span className="block truncate text-meta text-muted">{status.group === "working" && step !== null ? <SafeText text={step.text} /> : status.word}</span>
        </span>
        {isUnread && <span className="mt-1.5 size-2 rounded-full bg-accent"><span className="sr-only">New steps</span></span>}
      </Link>
    </li>
  );
});
