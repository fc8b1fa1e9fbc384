import { useDeferredValue, useMemo, useRef, useState } from "react";
import { getRouteApi, Link, useNavigate } from "@tanstack/react-router";
import { Inbox, Plus, Search } from "lucide-react";
import { MAX_LIST_ROWS, useApprovals, useProjects, useSandboxes } from "@/api/queries";
import type { Approval } from "@/api/types";
import { buttonClass } from "@/components/button";
import { Select } from "@/components/field";
import { EmptyState, FailureNotice, Skeleton } from "@/components/notice";
import { GROUP_TITLES, type StatusGroup } from "@/sandboxes/status";
import { useShortcuts } from "@/shell/shortcuts";
import { useTitle } from "@/shell/title";
import { InlineCode } from "@/text/inline-code";
import { GROUP_ORDER, groupSandboxes } from "./grouping";
import { SandboxRow } from "./sandbox-row";

const route = getRouteApi("/");
/** Ended sandboxes that the list shows before "Show all". */
const SHOWN_DONE = 20;

export function HomePage() {
  useTitle("");
  const filter = route.useSearch();
  const navigate = useNavigate({ from: "/" });
  const sandboxes = useSandboxes();
  const approvals = useApprovals().data;
  const projects = useProjects().data ?? [];
  const [query, setQuery] = useState(filter.q ?? "");
  const [selected, setSelected] = useState<string | null>(null);
  const [showsAllDone, setShowsAllDone] = useState(false);
  const searchInput = useRef<HTMLInputElement>(null);
  const deferredQuery = useDeferredValue(query);

  const rows = sandboxes.data;
  const groups = useMemo(
    () => groupSandboxes(rows ?? [], { q: deferredQuery === "" ? undefined : deferredQuery, project: filter.project, agent: filter.agent }),
    [rows, deferredQuery, filter.project, filter.agent],
  );
  const agents = useMemo(() => [...new Set((rows ?? []).flatMap((row) => (row.agent == null ? [] : [row.agent])))].sort(), [rows]);
  const approvalsBySandbox = useMemo(() => groupApprovals(approvals ?? []), [approvals]);
  const shownGroups = GROUP_ORDER.filter((group) => filter.group === undefined || filter.group === group);
  const shownOf = (group: StatusGroup) => (group === "done" && !showsAllDone ? groups.done.slice(0, SHOWN_DONE) : groups[group]);
  const ids = shownGroups.flatMap((group) => shownOf(group).map((row) => row.id));

  const move = (step: number) => {
    const index = selected === null ? (step > 0 ? -1 : 0) : ids.indexOf(selected);
    const next = ids[Math.min(Math.max(index + step, 0), ids.length - 1)];
    if (next === undefined) return;
    setSelected(next);
    document.querySelector(`[data-row="${CSS.escape(next)}"]`)?.scrollIntoView({ block: "nearest" });
  };
  useShortcuts([
    { keys: "j", run: () => { move(1); } },
    { keys: "k", run: () => { move(-1); } },
    { keys: "/", run: () => { searchInput.current?.focus(); } },
    { keys: "Enter", run: () => { if (selected !== null) void navigate({ to: "/sandboxes/$id", params: { id: selected } }); } },
  ]);

  const total = GROUP_ORDER.reduce((sum, group) => sum + groups[group].length, 0);
  return (
    <div className="flex min-h-0 flex-1 flex-col" data-pane="Sandboxes">
      <header className="flex flex-wrap items-center gap-3 border-b border-line px-4 py-3 md:px-6">
        <h1 className="text-title font-semibold max-md:sr-only">Sandboxes</h1>
        <div className="relative min-w-44 flex-1 md:ml-4 md:max-w-sm">
          <Search size={15} className="absolute top-1/2 left-2.5 -translate-y-1/2 text-muted" aria-hidden />
          <input
            ref={searchInput}
            type="search"
            aria-label="Search sandboxes"
            placeholder="Search title, branch, agent, label"
            value={query}
            onChange={(event) => { setQuery(event.target.value); }}
            onBlur={() => void navigate({ search: (before) => ({ ...before, q: query === "" ? undefined : query }), replace: true })}
            className="h-8 w-full rounded-md border border-edge bg-bg pr-2 pl-8 text-control max-md:h-11"
          />
        </div>
        {projects.length > 1 && (
          <Select aria-label="Project" value={filter.project ?? ""} className="w-auto max-md:hidden" onChange={(event) => void navigate({ search: (before) => ({ ...before, project: event.target.value || undefined }) })}>
            <option value="">All projects</option>
            {projects.map((project) => <option key={project.id} value={project.id}>{project.name}</option>)}
          </Select>
        )}
        {agents.length > 1 && (
          <Select aria-label="Agent" value={filter.agent ?? ""} className="w-auto max-md:hidden" onChange={(event) => void navigate({ search: (before) => ({ ...before, agent: event.target.value || undefined }) })}>
            <option value="">All agents</option>
            {agents.map((agent) => <option key={agent} value={agent}>{agent}</option>)}
          </Select>
        )}
        <Link to="/new" className={`${buttonClass("primary")} md:ml-auto`}><Plus size={16} aria-hidden /><span className="max-md:sr-only">New sandbox</span></Link>
      </header>
      <div role="group" aria-label="Filter by state" className="flex shrink-0 gap-1 overflow-x-auto border-b border-line px-3 py-1.5 [scrollbar-width:none] md:px-5">
        <GroupFilter label="All" count={total} isCurrent={filter.group === undefined} onClick={() => void navigate({ search: (before) => ({ ...before, group: undefined }) })} />
        {GROUP_ORDER.map((group) => (
          <GroupFilter
            key={group}
            label={GROUP_TITLES[group]}
            count={groups[group].length}
            isCurrent={filter.group === group}
            isUrgent={group === "needs_you" && groups[group].length > 0}
            onClick={() => void navigate({ search: (before) => ({ ...before, group: filter.group === group ? undefined : group }) })}
          />
        ))}
      </div>
      <div className="scroll-area min-h-0 flex-1">
        {sandboxes.error !== null && <div className="p-4"><FailureNotice failure={sandboxes.error} onRetry={() => void sandboxes.refetch()} /></div>}
        {rows === undefined && sandboxes.error === null && <Skeleton lines={8} label="Loading sandboxes" />}
        {shownGroups.map((group) => {
          const shown = shownOf(group);
          if (shown.length === 0) return null;
          return (
            <section key={group} aria-labelledby={`group-${group}`}>
              <h2 id={`group-${group}`} className="sticky top-0 z-10 flex items-center gap-2 border-b border-line bg-raised px-4 py-1.5 text-meta font-semibold text-muted md:px-6">
                {GROUP_TITLES[group]}
                <span className="font-normal">{groups[group].length}</span>
              </h2>
              <ul className="border-b border-line">
                {shown.map((row) => (
                  <SandboxRow key={row.id} sandbox={row} approvals={approvalsBySandbox.get(row.id) ?? NONE} isSelected={row.id === selected} />
                ))}
              </ul>
              {shown.length < groups[group].length && (
                <button type="button" className="px-4 py-3 text-control text-accent underline md:px-6" onClick={() => { setShowsAllDone(true); }}>
                  Show all {groups[group].length}
                </button>
              )}
            </section>
          );
        })}
        {rows !== undefined && rows.length >= MAX_LIST_ROWS && <p className="px-4 py-3 text-control text-muted md:px-6">The list shows the newest {rows.length.toLocaleString("en")} sandboxes; <InlineCode text="`atoll sandbox ls`" /> lists all.</p>}
        {rows !== undefined && total === 0 && <NoRows isFiltered={rows.length > 0} />}
      </div>
    </div>
  );
}

const NONE: readonly Approval[] = [];

function groupApprovals(approvals: readonly Approval[]): Map<string, Approval[]> {
  return Map.groupBy(approvals, (approval) => approval.sandbox_id);
}

interface GroupFilterProps {
  label: string;
  count: number;
  isCurrent: boolean;
  isUrgent?: boolean;
  onClick: () => void;
}

function GroupFilter({ label, count, isCurrent, isUrgent = false, onClick }: GroupFilterProps) {
  return (
    <button
      type="button"
      aria-pressed={isCurrent}
      onClick={onClick}
      className={`flex h-8 shrink-0 items-center gap-1.5 rounded-full px-3 text-control max-md:h-10 ${isCurrent ? "bg-accent-tint font-semibold text-accent" : "text-muted hover:bg-sunk hover:text-text"}`}
    >
      {label}
      <span className={isUrgent ? "rounded-full bg-attention px-1.5 text-meta font-semibold text-bg" : "text-meta"}>{count}</span>
    </button>
  );
}

function NoRows({ isFiltered }: { isFiltered: boolean }) {
  if (isFiltered) return <EmptyState icon={<Search size={28} />} title="No sandbox matches">Change the search or the filters.</EmptyState>;
  return (
    <EmptyState icon={<Inbox size={32} />} title="No sandboxes yet" action={<Link to="/new" className={buttonClass("primary")}>Start the first one</Link>}>
      A sandbox runs an agent on a copy of your repository. You watch every step here, steer the agent while it works, and get a branch at the end.
    </EmptyState>
  );
}
