import { chromium, type Browser, type BrowserContext, type BrowserContextOptions, type Locator, type Page } from "playwright-core";

/** A server under test. Without a token, its address needs no sign-in, as Vite's development proxy. */
export interface TestServer {
  url: string;
  token: string | null;
}

/** The server of most tests: `E2E_URL`, and an API key in `E2E_TOKEN`. */
export const SERVER: TestServer = { url: process.env.E2E_URL ?? "http://127.0.0.1:5173", token: process.env.E2E_TOKEN ?? null };
/** A repository on the server's machine. */
export const REPOSITORY = process.env.E2E_REPO ?? "";
/** Cookies and storage of a signed-in browser. */
export type SignInState = Exclude<BrowserContextOptions["storageState"], string | undefined>;

export const LAUNCH_OPTIONS = {
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
  ],
};

export function launchBrowser(): Promise<Browser> {
  return chromium.launch(LAUNCH_OPTIONS);
}

/** Signs in on the sign-in screen, and returns the state that further contexts start with. */
export async function signIn(browser: Browser, { url, token }: TestServer): Promise<SignInState> {
  const context = await browser.newContext();
  if (token !== null) {
    const page = await context.newPage();
    await page.goto(`${url}/sign-in`);
    await page.getByLabel("API key").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
    await page.getByRole("link", { name: "New sandbox" }).waitFor();
  }
  const state = await context.storageState();
  await context.close();
  return state;
}

export interface OpenedContext {
  context: BrowserContext;
  page: Page;
  /** Dialogs, script errors and requests to other hosts: each is a failure. */
  incidents: string[];
}

export async function openContext(browser: Browser, server: TestServer, storageState: SignInState, options: BrowserContextOptions = {}): Promise<OpenedContext> {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, baseURL: server.url, storageState, ...options });
  const page = await context.newPage();
  const incidents: string[] = [];
  page.on("dialog", (dialog) => {
    incidents.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("pageerror", (error) => incidents.push(`error: ${error.message}`));
  const host = new URL(server.url).host;
  page.on("request", (request) => {
    const url = new URL(request.url());
    const isOwn = url.host === host || url.protocol === "data:" || url.protocol === "blob:" || url.hostname.endsWith(".localhost");
    if (!isOwn) incidents.push(`request: ${request.url()}`);
  });
  return { context, page, incidents };
}

const PAGE_HEADER = { "X-Atoll-Page": "1" };

/** Creates a sandbox with the demo agent, in the sample repository, through the API. */
export async function createSandbox(page: Page, settings: { prompt: string; title: string } & Record<string, unknown>): Promise<string> {
  const repo = REPOSITORY === "" ? {} : { repo: { path: REPOSITORY } };
  const response = await page.request.post("/api/v1/sandboxes", { headers: PAGE_HEADER, data: { agent: "demo", end: "keep", ...repo, ...settings } });
  const created = (await response.json()) as { id?: string; detail?: string };
  if (created.id === undefined) throw new Error(created.detail ?? "no sandbox");
  return created.id;
}

export async function removeSandbox(page: Page, id: string): Promise<void> {
  await page.request.delete(`/api/v1/sandboxes/${id}?force=true`, { headers: PAGE_HEADER });
}

export interface LoggedEvent {
  seq: number;
  type: string;
}

/** The first 500 events of a sandbox, optionally of one type. */
export async function listEvents(page: Page, id: string, type?: string): Promise<LoggedEvent[]> {
  const response = await page.request.get(`/api/v1/sandboxes/${id}/events?limit=500${type === undefined ? "" : `&type=${type}`}`);
  return ((await response.json()) as { items: LoggedEvent[] }).items;
}

export async function openSandbox(page: Page, id: string, tab = ""): Promise<void> {
  await page.goto(`/sandboxes/${id}${tab === "" ? "" : `?tab=${tab}`}`);
  await page.getByLabel("Message to the agent").or(page.getByRole("tab", { name: "Timeline" })).first().waitFor();
}

/** Goes to a path of the open page as its links do: without loading it again. */
export async function goTo(page: Page, path: string): Promise<void> {
  await page.evaluate((to) => { history.pushState({}, "", to); }, path);
}

export const timeline = (page: Page): Locator => page.getByRole("region", { name: "Timeline" });

/** Waits until a panel of the sandbox shows its content. */
export async function waitForPanel(page: Page, tab: string): Promise<void> {
  await page.locator(`#panel-${tab}:not(:has([aria-label^="Loading"]))`).filter({ hasText: /\w/ }).waitFor();
}

/** Presses a button of the open approval. The buttons are inert for a moment. */
export async function answerApproval(page: Page, label: "Allow" | "Deny"): Promise<void> {
  await page.locator('[data-approval] button:not([aria-disabled="true"])', { hasText: new RegExp(`^${label}$`) }).click();
}
