/**
 * Measures the page in a browser and prints the figures as JSON: `E2E_URL=… E2E_TOKEN=… E2E_REPO=… tsx e2e/measure.ts`.
 *
 * The script creates its sandboxes. `MEASURE_EVENTS`, `MEASURE_FILES`, `MEASURE_AGENTS` and `MEASURE_ROUNDS` are sizes.
 */
import { gzipSync } from "node:zlib";
import type { BrowserContext, Page } from "playwright-core";
import { launchBrowser, openContext, REPOSITORY, SERVER, signIn, timeline } from "./browser";

const sizeOf = (name: string, size: number): number => Number(process.env[name] ?? size);
const EVENTS = sizeOf("MEASURE_EVENTS", 50_000);
const FILES = sizeOf("MEASURE_FILES", 300);
const AGENTS = sizeOf("MEASURE_AGENTS", 300);
const ROUNDS = sizeOf("MEASURE_ROUNDS", 5);
const BATCH = 500;
/** Live events in one second of the list's measurement. */
const LIVE_EVENTS_PER_SECOND = 60;
const LIVE_SECONDS = 6;
const SCROLL_SECONDS = 40;
const AT = "2026-01-01T00:00:00Z";

async function request(path: string, body: unknown, token = SERVER.token): Promise<Record<string, unknown>> {
  const response = await fetch(`${SERVER.url}/api/v1${path}`, { method: "POST", headers: { "Content-Type": "application/json", Authorization: `Bearer ${token ?? ""}` }, body: JSON.stringify(body) });
  const text = await response.text();
  if (!response.ok) throw new Error(`${path}: ${text}`);
  return JSON.parse(text) as Record<string, unknown>;
}

/** An external sandbox, whose worker is this script. */
interface ExternalSandbox {
  id: string;
  token: string;
  stream: string;
  sent: number;
}

async function createExternal(title: string): Promise<ExternalSandbox> {
  const created = await request("/sandboxes", { provider: "external", title });
  const sandbox = { id: String(created.id), token: String((created.worker as { token: string }).token), stream: crypto.randomUUID(), sent: 0 };
  await request(`/sandboxes/${sandbox.id}/heartbeat`, { stream: sandbox.stream, boot: 1, protocol: 1, at: AT, last_key: 0, activity: "working" }, sandbox.token);
  return sandbox;
}

type Step = [type: string, data: Record<string, unknown>];

/** Sends steps as the worker. Returns the time when they were stored. */
async function sendSteps(sandbox: ExternalSandbox, steps: readonly Step[]): Promise<number> {
  const events = steps.map(([type, data]) => ({ key: ++sandbox.sent, type, source: "agent", at: new Date().toISOString(), data }));
  await request(`/sandboxes/${sandbox.id}/events`, { stream: sandbox.stream, boot: 1, events }, sandbox.token);
  return Date.now();
}

/** A typical run: a message, then calls with output, some with an edit. */
function stepAt(index: number): Step {
  const call = Math.floor(index / 2);
  const id = `call-${call}`;
  if (index % 12 === 11) return ["agent.message", { text: `Step **${index}**: I read \`src/module_${call % 40}.rs\` and change the comparison, so that the rounding comes first.` }];
  if (index % 12 === 10) return ["agent.file_edited", { file_path: `src/module_${call % 40}.rs`, change_type: "modified", lines_added: 3, lines_removed: 1, diff_preview: `@@ -1,2 +1,4 @@\n-fn old() {}\n+fn new_${index}() {\n+    check();\n+}` }];
  if (index % 2 === 0) return ["agent.tool_use", { tool: "Bash", tool_use_id: id, input: { command: `cargo test module_${call % 40}` } }];
  return ["agent.tool_completed", { tool: "Bash", tool_use_id: id, output: `running 4 tests\n${"test posting::rounds ... ok\n".repeat(6)}`, is_error: false }];
}

async function createLongLog(): Promise<ExternalSandbox> {
  const sandbox = await createExternal("A long run");
  await sendSteps(sandbox, [["agent.started", { turn: 1, agent: "demo" }]]);
  for (let next = 0; next < EVENTS; next += BATCH) {
    await sendSteps(sandbox, Array.from({ length: Math.min(BATCH, EVENTS - next) }, (_, index) => stepAt(next + index)));
  }
  await sendSteps(sandbox, [["agent.message", { text: "The newest step." }]]);
  return sandbox;
}

/** A sandbox whose agent has written many files, each of 60 lines. */
async function createManyFiles(): Promise<string> {
  const command = `mkdir -p many && for i in $(seq ${FILES}); do for line in $(seq 60); do echo "let value_$line = compute($i, $line);"; done > many/file_$i.rs; done`;
  const created = await request("/sandboxes", { agent: "demo", end: "keep", title: "Many files", prompt: `run ${command}\nsay All written.`, repo: { path: REPOSITORY } });
  return String(created.id);
}

interface Spread {
  p50: number;
  p95: number;
}

function spreadOf(samples: readonly number[]): Spread {
  const sorted = [...samples].sort((a, b) => a - b);
  const at = (share: number) => sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * share))] ?? Number.NaN;
  return { p50: at(0.5), p95: at(0.95) };
}

async function timed(action: () => Promise<unknown>): Promise<number> {
  const began = performance.now();
  await action();
  return performance.now() - began;
}

async function repeat(action: (round: number) => Promise<number>, rounds = ROUNDS): Promise<Spread> {
  const samples: number[] = [];
  for (let round = 0; round < rounds; round += 1) samples.push(await action(round));
  return spreadOf(samples);
}

/** Tasks of the page that took longer than 50 ms, which is the least that browsers report. */
async function takeLongestTask(page: Page): Promise<number> {
  return page.evaluate(() => {
    const scope = globalThis as unknown as { longTasks: number[] };
    const longest = Math.max(0, ...scope.longTasks);
    scope.longTasks = [];
    return longest;
  });
}

/** The time, by the browser's clock, at which a text appears. */
function watchText(page: Page, text: string): Promise<number> {
  return page.evaluate(
    (wanted) =>
      new Promise<number>((resolve) => {
        const observer = new MutationObserver(() => {
          if (document.body.textContent.includes(wanted)) {
            observer.disconnect();
            resolve(Date.now());
          }
        });
        observer.observe(document.body, { childList: true, subtree: true, characterData: true });
      }),
    text,
  );
}

/** The time at which a bare WebSocket in the browser gets a frame with a text. */
function watchSocket(page: Page, id: string, text: string): { opened: Promise<void>; seen: Promise<number> } {
  const opened = page.evaluate(
    ([sandbox, wanted]) =>
      new Promise<void>((resolve) => {
        const socket = new WebSocket(`${location.origin.replace("http", "ws")}/api/v1/events/ws`);
        const scope = globalThis as unknown as { frameSeen: Promise<number> };
        scope.frameSeen = new Promise((seen) => {
          socket.onmessage = ({ data }) => {
            if (String(data).includes("caught_up")) resolve();
            if (!String(data).includes(wanted ?? "")) return;
            seen(Date.now());
            socket.close();
          };
        });
        socket.onopen = () => { socket.send(JSON.stringify({ type: "subscribe", sandboxes: [sandbox], types: [], since: {} })); };
      }),
    [id, text],
  );
  return { opened, seen: opened.then(() => page.evaluate(() => (globalThis as unknown as { frameSeen: Promise<number> }).frameSeen)) };
}

async function measureFirstLoad(context: BrowserContext): Promise<{ kilobytes: number; first_paint_ms: number }> {
  const page = await context.newPage();
  await page.goto("/");
  await page.getByRole("heading", { name: "Sandboxes" }).waitFor();
  await page.waitForFunction(() => performance.getEntriesByName("first-contentful-paint").length > 0);
  const figures = await page.evaluate(() => {
    const paint = performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 0;
    const files = performance.getEntriesByType("resource") as PerformanceResourceTiming[];
    const scripts = files.filter((file) => file.name.endsWith(".js") && file.responseEnd <= paint);
    return { urls: scripts.map((file) => file.name), first_paint_ms: paint };
  });
  await page.close();
  let bytes = 0;
  for (const url of figures.urls) {
    bytes += gzipSync(await (await fetch(url)).arrayBuffer(), { level: 9 }).length;
  }
  return { kilobytes: bytes / 1024, first_paint_ms: figures.first_paint_ms };
}

/** Fetches paths one after the other in the browser, as the page has to. */
async function fetchInBrowser(page: Page, paths: readonly string[]): Promise<number> {
  return page.evaluate(async (all) => {
    const began = performance.now();
    for (const [path, accept] of all) {
      const response = await fetch(path ?? "", { headers: accept === undefined ? {} : { Accept: accept } });
      await response.text();
    }
    return performance.now() - began;
  }, paths.map((path) => path.split(" ")));
}

/** Scrolls up until the whole log is loaded, or the time is over. */
async function scrollToOldest(page: Page): Promise<boolean> {
  const until = Date.now() + SCROLL_SECONDS * 1000;
  const earlier = page.getByText("Loading earlier steps…");
  await timeline(page).focus();
  while (Date.now() < until && (await earlier.count()) > 0) {
    await page.mouse.wheel(0, -4_000);
    await page.waitForTimeout(16);
  }
  return (await earlier.count()) === 0;
}

const browser = await launchBrowser();
const state = await signIn(browser, SERVER);
const { context, page } = await openContext(browser, SERVER, state);
await context.addInitScript(() => {
  const scope = globalThis as unknown as { longTasks: number[] };
  scope.longTasks = [];
  new PerformanceObserver((list) => { for (const entry of list.getEntries()) scope.longTasks.push(entry.duration); }).observe({ type: "longtask", buffered: true });
});
const bare = (await openContext(browser, SERVER, state, { bypassCSP: true })).page;
await bare.goto("/api/v1/me");

const firstLoad = await measureFirstLoad(context);

// An event, from its storage until people see it.
const live = await createExternal("Live");
await sendSteps(live, [["agent.started", { turn: 1, agent: "demo" }]]);
await page.goto(`/sandboxes/${live.id}`);
await timeline(page).getByText("Turn 1").waitFor();
const eventSeen = await repeat(async (round) => {
  const text = `seen-${round}-end`;
  const seen = watchText(page, text);
  const stored = await sendSteps(live, [["agent.message", { text }]]);
  return Math.max(0, (await seen) - stored);
}, ROUNDS * 6);
const eventFloor = await repeat(async (round) => {
  const text = `floor-${round}-end`;
  const { opened, seen } = watchSocket(bare, live.id, text);
  await opened;
  const stored = await sendSteps(live, [["agent.message", { text }]]);
  return Math.max(0, (await seen) - stored);
}, ROUNDS * 6);

// A long timeline.
const long = await createLongLog();
const timelineOpen = await repeat(async () => {
  await page.goto("about:blank");
  return timed(async () => {
    await page.goto(`/sandboxes/${long.id}`, { waitUntil: "commit" });
    await timeline(page).getByText("The newest step.").waitFor();
  });
});
const timelineFloor = await repeat(() => fetchInBrowser(bare, ["/api/v1/me", `/api/v1/sandboxes/${long.id}`, `/api/v1/sandboxes/${long.id}/events?order=desc&limit=500`]));
await takeLongestTask(page);
const box = await timeline(page).boundingBox();
await page.mouse.move((box?.x ?? 0) + 200, (box?.y ?? 0) + 200);
const reachedOldest = await scrollToOldest(page);
const scrollTask = await takeLongestTask(page);

// A large diff.
const many = await createManyFiles();
await page.goto(`/sandboxes/${many}?tab=files`);
await timeline(page).getByText("All written.").waitFor();
const patchPath = (file: number) => `/api/v1/sandboxes/${many}/diff?path=many%2Ffile_${file}.rs text/x-diff`;
const diffOpen = await repeat(async () => {
  await page.goto("about:blank");
  return timed(async () => {
    await page.goto(`/sandboxes/${many}?tab=changes`, { waitUntil: "commit" });
    await page.getByRole("region", { name: /^Changes of many/ }).getByText("compute(").first().waitFor();
  });
});
const diffFloor = await repeat(() => fetchInBrowser(bare, [`/api/v1/sandboxes/${many}`, `/api/v1/sandboxes/${many}/diff`, patchPath(1)]));
const fileShown = await repeat(async (round) => {
  const file = ((round * 37) % FILES) + 1;
  return timed(async () => {
    await page.evaluate((to) => { history.replaceState({}, "", to); }, `/sandboxes/${many}?tab=changes&file=${encodeURIComponent(`many/file_${file}.rs`)}`);
    await page.getByRole("region", { name: `Changes of many/file_${file}.rs` }).getByText(`compute(${file}, 1)`).waitFor();
  });
}, ROUNDS * 4);
const fileFloor = await repeat((round) => fetchInBrowser(bare, [patchPath(((round * 41) % FILES) + 1)]), ROUNDS * 4);

// A list of many agents.
const agents: ExternalSandbox[] = [];
for (let index = 0; index < AGENTS; index += 1) {
  const agent = await createExternal(`Agent ${index}`);
  await sendSteps(agent, [["agent.started", { turn: 1, agent: "demo" }], stepAt(index * 2)]);
  agents.push(agent);
}
const listOpen = await repeat(async () => {
  await page.goto("about:blank");
  return timed(async () => {
    await page.goto("/", { waitUntil: "commit" });
    await page.getByText(`Agent ${AGENTS - 1}`, { exact: true }).waitFor();
  });
});
const listFloor = await repeat(() => fetchInBrowser(bare, ["/api/v1/me", "/api/v1/sandboxes?limit=200"]));
await page.waitForLoadState("networkidle");
await takeLongestTask(page);
for (let sent = 0; sent < LIVE_SECONDS * LIVE_EVENTS_PER_SECOND; sent += 1) {
  const agent = agents[(sent * 7) % agents.length];
  if (agent !== undefined) await sendSteps(agent, [stepAt(sent * 2), stepAt(sent * 2 + 1)]);
  if (sent % 10 === 9) await page.waitForTimeout(10_000 / LIVE_EVENTS_PER_SECOND);
}
const listTask = await takeLongestTask(page);

await browser.close();
console.log(JSON.stringify({
  first_load: firstLoad,
  event: { seen: eventSeen, floor: eventFloor },
  timeline: { open: timelineOpen, floor: timelineFloor, longest_task_ms: scrollTask, reached_oldest: reachedOldest },
  diff: { open: diffOpen, floor: diffFloor, file: fileShown, file_floor: fileFloor },
  list: { open: listOpen, floor: listFloor, longest_task_ms: listTask },
}));
