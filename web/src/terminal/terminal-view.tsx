import "@xterm/xterm/css/xterm.css";
import { useEffect, useRef, useState } from "react";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal, type ITheme } from "@xterm/xterm";
import { sandboxPath } from "@/api/client";
import { Button } from "@/components/button";
import { Dialog, DialogActions } from "@/components/dialog";
import { useTheme } from "@/shell/theme";
import { safeUrl } from "@/text/safe-text";
import { TerminalConnection, type TerminalState } from "./terminal-connection";

const SCROLLBACK = 5_000;

const LIGHT: ITheme = {
  background: "#ffffff", foreground: "#1a1f26", cursor: "#1d5bcb", cursorAccent: "#ffffff", selectionBackground: "#c7d9fb",
  black: "#1a1f26", red: "#b0261c", green: "#17693a", yellow: "#8a5300", blue: "#1d5bcb", magenta: "#653bab", cyan: "#0b6b78", white: "#56606d",
  brightBlack: "#56606d", brightRed: "#b0261c", brightGreen: "#17693a", brightYellow: "#8a5300", brightBlue: "#1d5bcb", brightMagenta: "#653bab", brightCyan: "#0b6b78", brightWhite: "#1a1f26",
};
const DARK: ITheme = {
  background: "#0f1216", foreground: "#e6eaf0", cursor: "#7eabff", cursorAccent: "#0f1216", selectionBackground: "#2a4476",
  black: "#2d3540", red: "#ff8d83", green: "#6ecb8d", yellow: "#f0b64a", blue: "#7eabff", magenta: "#c3a6ff", cyan: "#6fd0dd", white: "#e6eaf0",
  brightBlack: "#9aa6b4", brightRed: "#ff8d83", brightGreen: "#6ecb8d", brightYellow: "#f0b64a", brightBlue: "#7eabff", brightMagenta: "#c3a6ff", brightCyan: "#6fd0dd", brightWhite: "#ffffff",
};

interface TerminalViewProps {
  sandboxId: string;
  /** A running terminal to attach to; `null` starts one. */
  exec: string | null;
  onOpened: (exec: string) => void;
  onEnded: () => void;
}

/** A live shell in the sandbox. */
export function TerminalView({ sandboxId, exec, onOpened, onEnded }: TerminalViewProps) {
  const container = useRef<HTMLDivElement>(null);
  const terminal = useRef<Terminal | null>(null);
  const callbacks = useRef({ onOpened, onEnded });
  const firstExec = useRef(exec);
  const [state, setState] = useState<TerminalState>({ kind: "connecting" });
  const [link, setLink] = useState<string | null>(null);
  const { isDark } = useTheme();
  useEffect(() => {
    callbacks.current = { onOpened, onEnded };
  });

  useEffect(() => {
    if (container.current === null) return;
    const screen = new Terminal({
      scrollback: SCROLLBACK,
      fontFamily: 'ui-monospace, "SF Mono", "Cascadia Mono", "Liberation Mono", Menlo, Consolas, monospace',
      fontSize: 13,
      lineHeight: 1.3,
      cursorBlink: false,
      // A link of a program can hide its target: the page asks with the full address.
      linkHandler: { activate: (_, uri) => { setLink(uri); }, allowNonHttpProtocols: false },
      theme: document.documentElement.dataset.theme === "dark" ? DARK : LIGHT,
    });
    const fit = new FitAddon();
    screen.loadAddon(fit);
    screen.open(container.current);
    fit.fit();
    // F6 leaves the terminal.
    screen.attachCustomKeyEventHandler((event) => event.key !== "F6");
    terminal.current = screen;
    const connection = new TerminalConnection(
      sandboxPath(sandboxId, "/terminal"),
      firstExec.current,
      { write: (data, done) => { screen.write(data, done); }, size: () => ({ cols: screen.cols, rows: screen.rows }) },
      (next) => {
        setState(next);
        if (next.kind === "ended") callbacks.current.onEnded();
      },
      (id) => { callbacks.current.onOpened(id); },
    );
    const input = screen.onData((data) => { connection.type(data); });
    const resize = screen.onResize(({ cols, rows }) => { connection.resize(cols, rows); });
    const observer = new ResizeObserver(() => { fit.fit(); });
    observer.observe(container.current);
    screen.focus();
    return () => {
      observer.disconnect();
      input.dispose();
      resize.dispose();
      connection.close();
      screen.dispose();
      terminal.current = null;
    };
  }, [sandboxId]);

  useEffect(() => {
    if (terminal.current !== null) terminal.current.options.theme = isDark ? DARK : LIGHT;
  }, [isDark]);

  return (
    <div className="flex min-h-0 flex-1 flex-col">
      {state.kind !== "open" && (
        <p role="status" className="border-b border-line bg-raised px-3 py-1 text-meta text-muted">
          {state.kind === "connecting" ? "Opening the terminal" : state.kind === "reconnecting" ? "Connection lost. The page reconnects to the running shell." : state.text}
        </p>
      )}
      {state.kind === "open" && !state.mayType && <p className="border-b border-line bg-raised px-3 py-1 text-meta text-muted">You can view this terminal, but not type.</p>}
      <div ref={container} data-terminal className="min-h-0 flex-1 overflow-hidden bg-bg p-2" />
      <LinkDialog link={link} onClose={() => { setLink(null); }} />
    </div>
  );
}

function LinkDialog({ link, onClose }: { link: string | null; onClose: () => void }) {
  const url = link === null ? null : safeUrl(link);
  return (
    <Dialog isOpen={link !== null} onClose={onClose} title="Open this address?" description="A program in the sandbox printed the link.">
      <p className="rounded-md bg-sunk px-3 py-2 font-mono text-code [overflow-wrap:anywhere]">{url ?? link}</p>
      {url === null && <p className="mt-2 text-control text-bad">The page opens only http and https addresses.</p>}
      <DialogActions>
        <Button onClick={onClose}>Cancel</Button>
        {url !== null && <a href={url} target="_blank" rel="noopener noreferrer" onClick={onClose} className="inline-flex h-8 items-center rounded-md bg-accent px-3 text-control font-semibold text-on-accent">Open</a>}
      </DialogActions>
    </Dialog>
  );
}
