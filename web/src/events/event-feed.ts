import type { StoredEvent } from "@/api/types";
import { appendEvents, EMPTY_LOG, type EventLog, loadNewest, prependPage, truncateLog, type LiveText } from "./event-log";
import { addLiveData, isFinishedBy, NO_LIVE_TEXT } from "./live-text";
import { type EventsFrame, parseFrame } from "./frames";

export type ConnectionState = "connecting" | "live" | "offline";

export interface Connection {
  readonly state: ConnectionState;
  /** When the connection was lost, in milliseconds of this browser's clock. */
  readonly lostAt: number | null;
  readonly detail: string | null;
}

/** Fetches pages of one event log, newest first. */
export interface EventPage {
  events: StoredEvent[];
  olderCursor: string | null;
}
export type FetchEventPage = (sandboxId: string, cursor: string | null) => Promise<EventPage>;

type Listener = () => void;
type EventListener = (sandboxId: string, events: readonly StoredEvent[]) => void;

/** Logs that stay in memory after their page was left. */
const MAX_IDLE_LOGS = 3;
const FIRST_RETRY_MS = 300;
const MAX_RETRY_MS = 5_000;
/** The server sends a ping every 20 s; a connection without a frame for longer is dead. */
const SILENCE_LIMIT_MS = 50_000;
const MAX_OLDER_PAGES = 8;
const EVENTS_PER_OLDER_PAGE = 2_000;
/** The server follows at most this many positions that the page names. */
const MAX_CURSORS = 400;

interface FollowedLog {
  log: EventLog;
  live: LiveText;
  readers: number;
  buffered: StoredEvent[];
  loading: Promise<void> | null;
  loadingOlder: Promise<void> | null;
  failure: unknown;
}

/** Feeds all event logs of the page from one WebSocket. A cursor is the last applied seq, so no event is lost or repeated. */
export class EventFeed {
  private socket: WebSocket | null = null;
  private connection: Connection = { state: "connecting", lostAt: null, detail: null };
  private readonly logs = new Map<string, FollowedLog>();
  /** Last applied seq of each known sandbox, also of those whose log is not loaded. */
  private readonly cursors = new Map<string, number>();
  private readonly listeners = new Set<Listener>();
  private readonly eventListeners = new Set<EventListener>();
  private readonly reconnectListeners = new Set<Listener>();
  private retryMs = FIRST_RETRY_MS;
  private retryTimer: ReturnType<typeof setTimeout> | null = null;
  private silenceTimer: ReturnType<typeof setTimeout> | null = null;
  private flushRequest: number | null = null;
  private isStopped = true;
  private readonly url: string;
  private readonly fetchPage: FetchEventPage;
  /** Finds out why the server refused the connection: a WebSocket does not tell the page. */
  private readonly probe: () => void;

  constructor(url: string, fetchPage: FetchEventPage, probe: () => void = () => undefined) {
    this.url = url;
    this.fetchPage = fetchPage;
    this.probe = probe;
  }

  start(): void {
    if (!this.isStopped) return;
    this.isStopped = false;
    this.connect();
  }

  stop(): void {
    this.isStopped = true;
    if (this.retryTimer !== null) clearTimeout(this.retryTimer);
    this.socket?.close();
  }

  getConnection = (): Connection => this.connection;

  subscribe = (listener: Listener): (() => void) => {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  };

  /** Calls the listener with all new events of all sandboxes. */
  onEvents(listener: EventListener): () => void {
    this.eventListeners.add(listener);
    return () => this.eventListeners.delete(listener);
  }

  /** Calls the listener after each new subscription: lists may have changed meanwhile. */
  onReconnect(listener: Listener): () => void {
    this.reconnectListeners.add(listener);
    return () => this.reconnectListeners.delete(listener);
  }

  getLog(id: string): EventLog {
    return this.logs.get(id)?.log ?? EMPTY_LOG;
  }

  getLive(id: string): LiveText {
    return this.logs.get(id)?.live ?? NO_LIVE_TEXT;
  }

  getFailure(id: string): unknown {
    return this.logs.get(id)?.failure ?? null;
  }

  /** Notes the position that a fetched row has, so that a later subscription starts there. */
  noteRow(id: string, lastSeq: number): void {
    if (!this.cursors.has(id)) this.cursors.set(id, lastSeq);
  }

  /** Loads and follows a log until the returned function is called. */
  openLog(id: string): () => void {
    const followed = this.logs.get(id) ?? createFollowedLog();
    this.logs.delete(id);
    this.logs.set(id, followed);
    followed.readers += 1;
    if (!followed.log.isLoaded) void this.load(id, followed);
    return () => {
      followed.readers -= 1;
      this.evictIdleLogs();
    };
  }

  /** Tries again to load a log whose first page failed. */
  reload(id: string): void {
    const followed = this.logs.get(id);
    if (followed !== undefined) void this.load(id, followed);
  }

  async loadOlder(id: string): Promise<void> {
    const followed = this.logs.get(id);
    if (followed?.log.olderCursor == null) return;
    followed.loadingOlder ??= this.fetchOlder(id, followed).finally(() => {
      followed.loadingOlder = null;
    });
    await followed.loadingOlder;
  }

  /** Each older part builds the rows again. So the more events are loaded, the more are loaded at once. */
  private async fetchOlder(id: string, followed: FollowedLog): Promise<void> {
    let pages = Math.min(MAX_OLDER_PAGES, Math.ceil(followed.log.events.length / EVENTS_PER_OLDER_PAGE));
    do {
      const page = await this.fetchPage(id, followed.log.olderCursor);
      followed.log = prependPage(followed.log, page.events, page.olderCursor);
      pages -= 1;
    } while (pages > 0 && followed.log.olderCursor !== null);
    this.notifySoon();
  }

  private load(id: string, followed: FollowedLog): Promise<void> {
    followed.loading ??= this.fetchPage(id, null)
      .then((page) => {
        followed.failure = null;
        followed.log = loadNewest(page.events, page.olderCursor, 0);
        const buffered = followed.buffered;
        followed.buffered = [];
        this.cursors.set(id, followed.log.lastSeq);
        this.apply(id, followed, buffered);
        // Events between this page and the first frame of the socket are replayed.
        this.sendSubscription();
      })
      .catch((failure: unknown) => {
        followed.failure = failure;
      })
      .finally(() => {
        followed.loading = null;
        this.notifySoon();
      });
    return followed.loading;
  }

  private evictIdleLogs(): void {
    const idle = [...this.logs].filter(([, followed]) => followed.readers === 0);
    for (const [id] of idle.slice(0, Math.max(0, idle.length - MAX_IDLE_LOGS))) this.logs.delete(id);
  }

  private connect(): void {
    const socket = new WebSocket(this.url);
    let hasOpened = false;
    this.socket = socket;
    socket.onopen = () => {
      hasOpened = true;
      this.retryMs = FIRST_RETRY_MS;
      this.sendSubscription();
      this.setConnection({ state: "live", lostAt: null, detail: null });
      this.watchSilence();
      for (const listener of this.reconnectListeners) listener();
    };
    socket.onmessage = (message: MessageEvent<unknown>) => {
      this.watchSilence();
      const frame = typeof message.data === "string" ? parseFrame(message.data) : null;
      if (frame !== null && this.socket === socket) this.handleFrame(frame);
    };
    socket.onclose = () => {
      if (this.socket !== socket) return;
      this.socket = null;
      if (this.silenceTimer !== null) clearTimeout(this.silenceTimer);
      if (this.isStopped) return;
      if (!hasOpened) this.probe();
      const lostAt = this.connection.lostAt ?? Date.now();
      this.setConnection({ state: "offline", lostAt, detail: this.connection.detail });
      this.scheduleRetry();
    };
  }

  private scheduleRetry(): void {
    const delay = this.retryMs * (0.75 + Math.random() / 2);
    this.retryMs = Math.min(this.retryMs * 2, MAX_RETRY_MS);
    this.retryTimer = setTimeout(() => {
      this.connect();
    }, delay);
  }

  /** Reconnects without waiting for the next retry, such as when the browser is online again. */
  retryNow(): void {
    if (this.socket !== null || this.isStopped) return;
    if (this.retryTimer !== null) clearTimeout(this.retryTimer);
    this.retryMs = FIRST_RETRY_MS;
    this.connect();
  }

  private watchSilence(): void {
    if (this.silenceTimer !== null) clearTimeout(this.silenceTimer);
    this.silenceTimer = setTimeout(() => {
      this.socket?.close();
    }, SILENCE_LIMIT_MS);
  }

  private sendSubscription(): void {
    if (this.socket?.readyState !== WebSocket.OPEN) return;
    const since: Record<string, number> = {};
    // Ids sort by time. The newest ones are enough: others start with their newest event.
    const newest = [...this.cursors.keys()].sort().slice(-MAX_CURSORS);
    for (const id of [...newest, ...this.logs.keys()]) {
      const cursor = this.cursors.get(id);
      if (cursor !== undefined) since[id] = cursor;
    }
    this.socket.send(JSON.stringify({ type: "subscribe", sandboxes: "*", types: [], since }));
  }

  private handleFrame(frame: EventsFrame): void {
    switch (frame.type) {
      case "events":
        this.handleEvents(frame.events);
        break;
      case "live": {
        const followed = this.logs.get(frame.sandbox_id);
        if (followed === undefined) return;
        followed.live = addLiveData(followed.live, frame.after_seq, frame.data);
        this.notifySoon();
        break;
      }
      case "caught_up":
        break;
      case "lagged":
        // The server continues after these positions; what the page misses is requested again.
        this.sendSubscription();
        break;
      case "truncated": {
        const followed = this.logs.get(frame.sandbox_id);
        if (followed !== undefined) followed.log = truncateLog(followed.log, frame.first_seq);
        this.cursors.set(frame.sandbox_id, frame.first_seq - 1);
        this.notifySoon();
        break;
      }
      case "problem":
        if (frame.code === "not_found") this.forgetIdleCursors();
        this.setConnection({ ...this.connection, detail: frame.detail });
        break;
      case "ping":
        this.socket?.send('{"type":"pong"}');
        break;
    }
  }

  /** A named sandbox no longer exists. Keep only the cursors of open logs, and find out again. */
  private forgetIdleCursors(): void {
    for (const id of this.cursors.keys()) {
      if ((this.logs.get(id)?.readers ?? 0) === 0) this.cursors.delete(id);
    }
  }

  private handleEvents(events: readonly StoredEvent[]): void {
    const bySandbox = new Map<string, StoredEvent[]>();
    for (const event of events) {
      const group = bySandbox.get(event.sandbox_id);
      if (group === undefined) bySandbox.set(event.sandbox_id, [event]);
      else group.push(event);
    }
    for (const [id, group] of bySandbox) {
      const followed = this.logs.get(id);
      if (followed === undefined) {
        const before = this.cursors.get(id) ?? 0;
        const fresh = group.filter((event) => event.seq > before);
        const last = fresh.at(-1);
        if (last === undefined) continue;
        this.cursors.set(id, last.seq);
        this.report(id, fresh);
      } else if (followed.log.isLoaded) {
        this.apply(id, followed, group);
      } else {
        followed.buffered.push(...group);
      }
    }
  }

  private apply(id: string, followed: FollowedLog, events: readonly StoredEvent[]): void {
    const wasFilling = followed.log.isFillingGap;
    const { log, applied, hasGap } = appendEvents(followed.log, events);
    followed.log = log;
    this.cursors.set(id, log.lastSeq);
    const finished = applied.findLast((event) => isFinishedBy(event));
    if (finished !== undefined) followed.live = { ...NO_LIVE_TEXT, afterSeq: finished.seq };
    if (hasGap && !wasFilling) this.sendSubscription();
    if (applied.length > 0) this.report(id, applied);
    this.notifySoon();
  }

  private report(id: string, events: readonly StoredEvent[]): void {
    for (const listener of this.eventListeners) listener(id, events);
  }

  private setConnection(next: Connection): void {
    const { state, detail } = this.connection;
    if (state === next.state && detail === next.detail) return;
    this.connection = next;
    this.notifySoon();
  }

  /** Notifies once per frame, so that a burst of frames renders once. */
  private notifySoon(): void {
    if (this.flushRequest !== null) return;
    const flush = () => {
      this.flushRequest = null;
      for (const listener of this.listeners) listener();
    };
    // A hidden tab gets no animation frames.
    this.flushRequest = document.hidden ? Number(setTimeout(flush, 100)) : requestAnimationFrame(flush);
  }
}

function createFollowedLog(): FollowedLog {
  return { log: EMPTY_LOG, live: NO_LIVE_TEXT, readers: 0, buffered: [], loading: null, loadingOlder: null, failure: null };
}
