import { useMemo, useState, type KeyboardEvent } from "react";
import { useNavigate } from "@tanstack/react-router";
import { Dialog as Base } from "@base-ui/react/dialog";
import { Activity, CirclePlus, FolderGit2, Hand, House, Keyboard, LogOut, Moon, Settings, Sun } from "lucide-react";
import { useSandboxes } from "@/api/queries";
import { reportFailure } from "@/components/toast";
import { statusOf } from "@/sandboxes/status";
import { StatusMark } from "@/sandboxes/status-badge";
import { signOut } from "@/sign-in/sign-in-state";
import { SafeText } from "@/text/safe-text-view";
import { matchesWords } from "@/text/search";
import { chooseTheme, isDark } from "./theme";

interface Command {
  id: string;
  label: string;
  hint?: string;
  words: string;
  icon: React.ReactNode;
  run: () => void;
}

const MAX_RESULTS = 50;

export function Palette({ onClose, onHelp }: { onClose: () => void; onHelp: () => void }) {
  const navigate = useNavigate();
  const sandboxes = useSandboxes().data;
  const [query, setQuery] = useState("");
  const [selected, setSelected] = useState(0);

  const commands = useMemo<Command[]>(() => {
    const go = (to: string) => () => void navigate({ to });
    const actions: Command[] = [
      { id: "new", label: "Start a new sandbox", words: "new task create", icon: <CirclePlus size={16} />, run: go("/new") },
      { id: "home", label: "Home", words: "list sandboxes", icon: <House size={16} />, run: go("/") },
      { id: "approvals", label: "Approvals", words: "allow deny", icon: <Hand size={16} />, run: go("/approvals") },
      { id: "monitor", label: "Monitor", words: "agents host load", icon: <Activity size={16} />, run: go("/monitor") },
      { id: "projects", label: "Projects", words: "repositories budgets members", icon: <FolderGit2 size={16} />, run: go("/projects") },
      { id: "settings", label: "Settings", words: "agents secrets tokens users", icon: <Settings size={16} />, run: go("/settings") },
      { id: "theme", label: isDark() ? "Use light colours" : "Use dark colours", words: "theme", icon: isDark() ? <Sun size={16} /> : <Moon size={16} />, run: () => { chooseTheme(isDark() ? "light" : "dark"); } },
      { id: "help", label: "Keyboard shortcuts", words: "help keys", icon: <Keyboard size={16} />, run: onHelp },
      { id: "sign-out", label: "Sign out", words: "log out leave", icon: <LogOut size={16} />, run: () => { signOut().catch((failure: unknown) => { reportFailure("Not signed out", failure); }); } },
    ];
    const rows = (sandboxes ?? []).map<Command>((row) => {
      const status = statusOf(row);
      return {
        id: row.id,
        label: row.title ?? row.id,
        hint: status.word,
        words: `${row.id} ${row.name ?? ""} ${row.branch ?? ""} ${row.agent ?? ""} ${status.word}`,
        icon: <StatusMark status={status} />,
        run: () => void navigate({ to: "/sandboxes/$id", params: { id: row.id } }),
      };
    });
    return [...actions, ...rows];
  }, [navigate, onHelp, sandboxes]);

  const results = commands.filter((command) => matchesWords(query, `${command.label} ${command.words}`)).slice(0, MAX_RESULTS);
  const current = Math.min(selected, results.length - 1);
  const choose = (command: Command | undefined) => {
    if (command === undefined) return;
    onClose();
    command.run();
  };
  const handleKey = (event: KeyboardEvent) => {
    if (event.key === "ArrowDown") setSelected(Math.min(current + 1, results.length - 1));
    else if (event.key === "ArrowUp") setSelected(Math.max(current - 1, 0));
    else if (event.key === "Enter" && !event.nativeEvent.isComposing) choose(results[current]);
    else return;
    event.preventDefault();
  };

  return (
    <Base.Root open onOpenChange={(open) => { if (!open) onClose(); }}>
      <Base.Portal>
        <Base.Backdrop className="fade-in fixed inset-0 z-40 bg-backdrop" />
        <Base.Popup className="fade-in fixed top-[12vh] left-1/2 z-50 flex max-h-[70vh] w-[min(36rem,calc(100vw-1.5rem))] -translate-x-1/2 flex-col overflow-hidden rounded-xl border border-line bg-bg max-md:top-4">
          <Base.Title className="sr-only">Find a sandbox or an action</Base.Title>
          <input
            autoFocus
            role="combobox"
            aria-label="Find a sandbox or an action"
            aria-expanded
            aria-controls="palette-results"
            aria-activedescendant={results[current] === undefined ? undefined : `palette-${results[current].id}`}
            placeholder="Find a sandbox or an action"
            value={query}
            onChange={(event) => { setQuery(event.target.value); setSelected(0); }}
            onKeyDown={handleKey}
            className="h-12 shrink-0 border-b border-line bg-transparent px-4 text-body outline-none"
          />
          <div id="palette-results" role="listbox" aria-label="Results" tabIndex={-1} className="scroll-area min-h-0 p-1.5">
            {results.map((command, index) => (
              <div
                key={command.id}
                id={`palette-${command.id}`}
                role="option"
                aria-selected={index === current}
                ref={(element) => { if (index === current) element?.scrollIntoView({ block: "nearest" }); }}
                onClick={() => { choose(command); }}
                onPointerMove={() => { setSelected(index); }}
                className="flex cursor-default items-center gap-3 rounded-md px-3 py-2 text-control aria-selected:bg-sunk max-md:py-3"
              >
                <span className="text-muted" aria-hidden>{command.icon}</span>
                <span className="min-w-0 flex-1 truncate"><SafeText text={command.label} /></span>
                {command.hint !== undefined && <span className="text-meta text-muted">{command.hint}</span>}
              </div>
            ))}
            {results.length === 0 && <p className="px-3 py-6 text-center text-control text-muted">Nothing matches “{query}”.</p>}
          </div>
        </Base.Popup>
      </Base.Portal>
    </Base.Root>
  );
}
