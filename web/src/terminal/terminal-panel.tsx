import { useState } from "react";
import { useQuery } from "@tanstack/react-query";
import { Bot, Plus, SquareTerminal, TerminalSquare, X } from "lucide-react";
import { api, unwrap } from "@/api/client";
import { queryClient } from "@/api/queries";
import type { Sandbox } from "@/api/types";
import { Button, IconButton } from "@/components/button";
import { EmptyState } from "@/components/notice";
import { useAction } from "@/components/use-action";
import { hasEnded } from "@/sandboxes/status";
import type { TimelineRow, ToolRow } from "@/timeline/rows";
import { CommandList } from "./command-list";
import { TerminalView } from "./terminal-view";

interface OpenTerminal {
  key: string;
  exec: string | null;
}

/** Live shells, and the commands of the agent with their output. */
export function TerminalPanel({ sandbox, rows }: { sandbox: Sandbox; rows: readonly TimelineRow[] }) {
  const isEnded = hasEnded(sandbox) || sandbox.state === "completing";
  const execs = useQuery({
    queryKey: ["exec", sandbox.id],
    enabled: !isEnded && sandbox.state === "running",
    queryFn: async () => (await unwrap(api.GET("/api/v1/sandboxes/{id}/exec", { params: { path: { id: sandbox.id } } }))).items,
  });
  const [opened, setOpened] = useState<readonly OpenTerminal[]>([]);
  const [current, setCurrent] = useState<string>("agent");
  const [counter, setCounter] = useState(1);
  const ending = useAction("Not ended");

  const known = new Set(opened.map((terminal) => terminal.exec));
  const running = (execs.data ?? []).filter((exec) => exec.terminal != null && exec.exit == null && !known.has(exec.id));
  const terminals: OpenTerminal[] = [...running.map((exec) => ({ key: exec.id, exec: exec.id })), ...opened];
  const refresh = () => void queryClient.invalidateQueries({ queryKey: ["exec", sandbox.id] });

  const start = () => {
    const key = `new-${counter}`;
    setCounter(counter + 1);
    setOpened([...opened, { key, exec: null }]);
    setCurrent(key);
  };
  const close = ({ key, exec }: OpenTerminal) => {
    setOpened(opened.filter((terminal) => terminal.key !== key));
    if (current === key) setCurrent("agent");
    if (exec !== null) void ending.run(async () => {
      await unwrap(api.DELETE("/api/v1/sandboxes/{id}/exec/{eid}", { params: { path: { id: sandbox.id, eid: exec } } }));
      refresh();
    });
  };
  const shown = terminals.find((terminal) => terminal.key === current);

  return (
    <div className="flex min-h-0 flex-1 flex-col">
      <div role="group" aria-label="Terminals" className="flex h-10 shrink-0 items-center gap-1 overflow-x-auto border-b border-line px-2 max-md:h-12">
        <Choice isCurrent={shown === undefined} onClick={() => { setCurrent("agent"); }}><Bot size={15} aria-hidden />Agent&apos;s commands</Choice>
        {terminals.map((terminal, index) => (
          <span key={terminal.key} className="flex shrink-0 items-center">
            <Choice isCurrent={terminal.key === current} onClick={() => { setCurrent(terminal.key); }}><SquareTerminal size={15} aria-hidden />Shell {index + 1}</Choice>
            <IconButton label={`End shell ${index + 1}`} size="small" className="-ml-1" onClick={() => { close(terminal); }}><X size={13} aria-hidden /></IconButton>
          </span>
        ))}
        <Button size="small" tone="quiet" disabled={isEnded || sandbox.state !== "running"} icon={<Plus size={15} aria-hidden />} onClick={start}>New shell</Button>
      </div>
      {shown === undefined ? (
        <AgentCommands rows={rows} sandbox={sandbox} />
      ) : (
        <TerminalView
          key={shown.key}
          sandboxId={sandbox.id}
          exec={shown.exec}
          onOpened={(exec) => { setOpened((before) => before.map((each) => (each.key === shown.key ? { ...each, exec } : each))); }}
          onEnded={refresh}
        />
      )}
    </div>
  );
}

function Choice({ isCurrent, onClick, children }: { isCurrent: boolean; onClick: () => void; children: React.ReactNode }) {
  return (
    <button type="button" aria-pressed={isCurrent} onClick={onClick} className={`flex h-7 shrink-0 items-center gap-1.5 rounded-md px-2.5 text-control whitespace-nowrap max-md:h-10 ${isCurrent ? "bg-accent-tint font-semibold text-accent" : "text-muted hover:bg-sunk"}`}>
      {children}
    </button>
  );
}

function AgentCommands({ rows, sandbox }: { rows: readonly TimelineRow[]; sandbox: Sandbox }) {
  const commands = collectCommands(rows);
  if (commands.length === 0) return <EmptyState icon={<TerminalSquare size={28} />} title="The agent ran no command">Its commands and their output appear here. Open a shell to run your own.</EmptyState>;
  return <CommandList commands={commands} sandboxId={sandbox.id} />;
}

const COMMAND_TOOLS = new Set(["Bash", "shell", "exec"]);

function collectCommands(rows: readonly TimelineRow[]): ToolRow[] {
  return rows.flatMap((row) => {
    if (row.kind !== "tool") return [];
    return [...(COMMAND_TOOLS.has(row.tool) ? [row] : []), ...collectCommands(row.children)];
  });
}
