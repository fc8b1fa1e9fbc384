/** Frames of the server on `/sandboxes/{id}/terminal`; output is in binary frames. */
type TerminalFrame =
  | { type: "opened"; exec: string; cursor: number; until: number; may_type: boolean }
  | { type: "gap"; cursor: number }
  | { type: "exit"; exit: Record<string, unknown> }
  | { type: "problem"; code: string; detail: string };

export type TerminalState =
  | { kind: "connecting" }
  | { kind: "open"; mayType: boolean }
  | { kind: "reconnecting" }
  | { kind: "ended"; text: string };

export interface TerminalScreen {
  write: (data: Uint8Array | string, done?: () => void) => void;
  size: () => { cols: number; rows: number };
}

const RETRY_MS = 1_000;
const MAX_RETRIES = 30;
/** Problems after which the terminal does not come back. */
const FINAL_CODES = new Set(["not_found", "forbidden", "sandbox_gone", "sandbox_ended", "sandbox_ending", "unauthorized", "provider_unsupported"]);

/** One terminal over a WebSocket. It reconnects to the running shell and continues after the last received byte. */
export class TerminalConnection {
  private socket: WebSocket | null = null;
  private exec: string | null;
  private cursor = 0;
  /** Output up to this position is a replay; what the screen answers to it is not typed. */
  private replayUntil = 0;
  private retries = 0;
  private mayType = false;
  private isClosed = false;
  private isReplaying = false;
  private timer: ReturnType<typeof setTimeout> | null = null;
  private readonly path: string;
  private readonly screen: TerminalScreen;
  private readonly onState: (state: TerminalState) => void;
  private readonly onOpened: (exec: string) => void;

  constructor(path: string, exec: string | null, screen: TerminalScreen, onState: (state: TerminalState) => void, onOpened: (exec: string) => void) {
    this.path = path;
    this.exec = exec;
    this.screen = screen;
    this.onState = onState;
    this.onOpened = onOpened;
    this.connect();
  }

  close(): void {
    this.isClosed = true;
    if (this.timer !== null) clearTimeout(this.timer);
    this.socket?.close();
  }

  type(data: string): void {
    if (!this.mayType || this.isReplaying || this.socket?.readyState !== WebSocket.OPEN) return;
    this.socket.send(new TextEncoder().encode(data));
  }

  resize(cols: number, rows: number): void {
    if (this.socket?.readyState === WebSocket.OPEN && this.mayType) this.socket.send(JSON.stringify({ type: "resize", cols, rows }));
  }

  private connect(): void {
    const { cols, rows } = this.screen.size();
    const url = new URL(this.path, location.href);
    url.protocol = location.protocol === "https:" ? "wss:" : "ws:";
    url.searchParams.set("cols", String(cols));
    url.searchParams.set("rows", String(rows));
    if (this.exec !== null) {
      url.searchParams.set("exec", this.exec);
      url.searchParams.set("cursor", String(this.cursor));
    }
    const socket = new WebSocket(url);
    socket.binaryType = "arraybuffer";
    this.socket = socket;
    socket.onmessage = (message: MessageEvent<unknown>) => {
      if (message.data instanceof ArrayBuffer) this.receive(new Uint8Array(message.data));
      else if (typeof message.data === "string") this.handleFrame(JSON.parse(message.data) as TerminalFrame);
    };
    socket.onclose = () => {
      if (this.isClosed || this.socket !== socket) return;
      this.retries += 1;
      if (this.retries > MAX_RETRIES || (this.exec === null && this.retries > 2)) {
        this.end("The terminal cannot be opened. Check that the sandbox runs, then open a new one.");
        return;
      }
      this.onState({ kind: "reconnecting" });
      this.timer = setTimeout(() => { this.connect(); }, RETRY_MS);
    };
  }

  private receive(data: Uint8Array): void {
    this.cursor += data.length;
    if (this.cursor <= this.replayUntil) {
      this.isReplaying = true;
      this.screen.write(data, () => { if (this.cursor >= this.replayUntil) this.isReplaying = false; });
    } else {
      this.screen.write(data);
    }
  }

  private handleFrame(frame: TerminalFrame): void {
    switch (frame.type) {
      case "opened":
        this.retries = 0;
        this.exec = frame.exec;
        this.cursor = frame.cursor;
        this.replayUntil = frame.until;
        this.mayType = frame.may_type;
        this.onState({ kind: "open", mayType: frame.may_type });
        this.onOpened(frame.exec);
        break;
      case "gap":
        this.cursor = frame.cursor;
        this.screen.write("\r\n[earlier output is not stored]\r\n");
        break;
      case "exit":
        this.end(describeExit(frame.exit));
        break;
      case "problem":
        if (FINAL_CODES.has(frame.code)) this.end(frame.detail);
        break;
    }
  }

  private end(text: string): void {
    this.isClosed = true;
    this.onState({ kind: "ended", text });
    this.socket?.close();
  }
}

function describeExit(exit: Record<string, unknown>): string {
  if (exit.kind === "exited") return exit.code === 0 ? "The shell has ended." : `The shell ended with exit code ${String(exit.code)}.`;
  return "The shell has ended.";
}
