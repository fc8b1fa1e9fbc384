import { chromium, type Browser, type BrowserContext, type BrowserContextOptions, type Locator, type Page } from "playwright-core";

/**
 * The server under test. `E2E_URL` is its address; `E2E_TOKEN` (an API key) or `E2E_CODE` (a sign-in
 * code, good for one context) signs in; without both, the address needs no sign-in, as Vite's development proxy.
 */
export const BASE_URL = process.env.E2E_URL ?? "http://127.0.0.1:5173";
/** A repository on the server's machine. */
export const REPOSITORY = process.env.E2E_REPO ?? "";
/** A program that kills the server and starts it again; it returns when the server listens. */
export const RESTART_PROGRAM = process.env.E2E_RESTART ?? "";

const ARGUMENTS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];

export function launchBrowser(): Promise<Browser> {
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ARGUMENTS });
}

export interface OpenedPage {
  page: Page;
  context: BrowserContext;
  /** Dialogs, script errors and requests to other hosts: each is a failure. */
  incidents: string[];
}

export async function openPage(browser: Browser, options: BrowserContextOptions = {}): Promise<OpenedPage> {
  const context = await browser.newContext({ viewport: { width: 1440, height: 900 }, ...options });
  const page = await context.newPage();
  const incidents: string[] = [];
  page.on("dialog", (dialog) => {
    incidents.push(`dialog: ${dialog.message()}`);
    void dialog.dismiss();
  });
  page.on("pageerror", (error) => incidents.push(`error: ${error.message}`));
  const host = new URL(BASE_URL).host;
  page.on("request", (request) => {
    const url = new URL(request.url());
    const isOwn = url.host === host || url.protocol === "data:" || url.protocol === "blob:" || url.hostname.endsWith(".localhost");
    if (!isOwn) incidents.push(`request: ${request.url()}`);
  });
  await signIn(page);
  return { page, context, incidents };
}

async function signIn(page: Page): Promise<void> {
  const { E2E_TOKEN: token, E2E_CODE: code } = process.env;
  if (token !== undefined) {
    await page.goto(`${BASE_URL}/sign-in`);
    await page.getByLabel("API key").fill(token);
    await page.getByRole("button", { name: "Sign in" }).click();
  } else if (code !== undefined) {
    await page.goto(`${BASE_URL}/sign-in#code=${code}`);
  } else {
    await page.goto(BASE_URL);
  }
  await page.getByRole("link", { name: "New sandbox" }).waitFor();
}

export interface DemoTask {
  prompt: string;
  title: string;
  repository?: boolean;
}

/** Creates a sandbox with the demo agent through the API, as the signed-in page. */
export async function createSandbox(page: Page, { prompt, title, repository = true }: DemoTask): Promise<string> {
  const repo = repository && REPOSITORY !== "" ? { repo: { path: REPOSITORY } } : {};
  const response = await page.evaluate(
    async (body) => {
      const answer = await fetch("/api/v1/sandboxes", { method: "POST", headers: { "Content-Type": "application/json", "X-Atoll-Page": "1" }, body: JSON.stringify(body) });
      return (await answer.json()) as { id?: string; detail?: string };
    },
    { agent: "demo", end: "keep", prompt, title, ...repo },
  );
  if (response.id === undefined) throw new Error(response.detail ?? "no sandbox");
  return response.id;
}

export async function removeSandbox(page: Page, id: string): Promise<void> {
  await page.evaluate(async (path) => { await fetch(path, { method: "DELETE", headers: { "X-Atoll-Page": "1" } }); }, `/api/v1/sandboxes/${id}?force=true`);
}

export async function openSandbox(page: Page, id: string, tab = ""): Promise<void> {
  await page.goto(`${BASE_URL}/sandboxes/${id}${tab === "" ? "" : `?tab=${tab}`}`);
  await page.getByLabel("Message to the agent").or(page.getByRole("tab", { name: "Timeline" })).first().waitFor();
}

export const timeline = (page: Page): Locator => page.getByRole("region", { name: "Timeline" });

/** Waits until a panel of the sandbox shows its content. */
export async function waitForPanel(page: Page, tab: string): Promise<void> {
  await page.locator(`#panel-${tab}:not(:has([aria-label^="Loading"]))`).filter({ hasText: /\w/ }).waitFor();
}
