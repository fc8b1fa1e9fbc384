/**
 * Makes the screenshots from a real run: `E2E_URL=… E2E_REPO=… npm run screenshots [DIRECTORY]`.
 *
 * Every page in every state: empty, loading, failed, offline, filled. The server must have no sandboxes: the script
 * creates its own with the demo agent and removes them.
 */
import { mkdirSync } from "node:fs";
import { join } from "node:path";
import type { Browser, BrowserContext, Page } from "playwright-core";
import { createSandbox, launchBrowser, openContext, openSandbox, removeSandbox, SERVER, signIn, timeline, waitForPanel, type SignInState } from "./browser";

const DIRECTORY = process.argv[2] ?? "e2e/screenshots";
const WIDTHS = [1440, 1024, 390] as const;
const THEMES = ["light", "dark"] as const;

const TASKS = [
  { title: "Fix the typo in the README", prompt: "say I fix the typo.\nedit README.md # Sample project\nsay Done." },
  { title: "Explore the code base", prompt: "say I looked around. The entry point is **main.rs**; the modules in `src/deep` are small and have no tests yet." },
  {
    title: "Make the parser faster",
    prompt: "say I read the parser first.\nrun cat main.rs\nrun ls -la src/deep\nrun git log --oneline\nrun wc -l main.rs\nsay The parser reads each line twice. I change it to `split_once`.\nedit src/parser.rs pub fn parse(line: &str) -> Option<(&str, &str)> { line.split_once('=') }\nrun printf '\\033[32mok\\033[0m  parser::empty_line\\n\\033[32mok\\033[0m  parser::two_fields\\n2 passed\\n'\nsay Both tests pass.\nwait 600",
  },
  {
    title: "Add a way to say goodbye",
    prompt: "say I look at the greeting first.\nrun cat main.rs\nedit src/goodbye.rs pub fn goodbye(name: &str) -> String { format!(\"Goodbye, {name}!\") }\nsay I added `goodbye` next to the greeting. Before I go on, I want to run the whole test suite:\nask May I run `cargo test --workspace`?",
  },
  { title: "Update the dependencies", prompt: "say I update them.\nrun echo 'error: the registry does not answer' >&2; exit 3\nsay The registry does not answer. Allow the host, or try again later." },
] as const;

/** One combination of width and theme. */
interface Look {
  browser: Browser;
  state: SignInState;
  width: number;
  theme: "light" | "dark";
}

interface Studio {
  context: BrowserContext;
  page: Page;
  isPhone: boolean;
  shoot: (name: string) => Promise<void>;
}

async function openStudio({ browser, state, width, theme }: Look): Promise<Studio> {
  const isPhone = width < 500;
  const look = { viewport: { width, height: isPhone ? 844 : 900 }, colorScheme: theme, reducedMotion: "reduce", isMobile: isPhone, hasTouch: isPhone } as const;
  const { context, page } = await openContext(browser, SERVER, state, look);
  const shoot = async (name: string) => {
    // Fonts and colours of code settle in the next frames.
    await page.evaluate(() => new Promise((done) => { requestAnimationFrame(() => { requestAnimationFrame(done); }); }));
    await page.screenshot({ path: join(DIRECTORY, `${name}-${width}-${theme}.png`) });
  };
  return { context, page, isPhone, shoot };
}

const PAGES = ["", "new", "approvals", "monitor", "projects", "settings"] as const;

async function captureEmpty(look: Look): Promise<void> {
  const { context, page, shoot } = await openStudio(look);
  for (const [path, text] of [["", "No sandboxes yet"], ["approvals", "Nothing waits"], ["monitor", "No agent is at work"]] as const) {
    await page.goto(`/${path}`);
    await page.getByText(text).first().waitFor();
    await shoot(`${path || "home"}-empty`);
  }
  await page.goto("/sandboxes/sbx_00000000000000000000000000");
  await page.getByText("does not exist").waitFor();
  await shoot("sandbox-missing");
  await context.close();
}

async function captureLoading(look: Look, id: string): Promise<void> {
  const { context, page, shoot } = await openStudio(look);
  await page.route(/\/api\/v1\/|\/metrics/, () => undefined);
  for (const path of [...PAGES, `sandboxes/${id}`]) {
    await page.goto(`/${path}`);
    await page.getByRole("heading", { level: 1 }).or(page.locator("[aria-label^=Loading]")).first().waitFor();
    await shoot(`${path.split("/")[0] || "home"}-loading`);
  }
  await page.unrouteAll();
  await context.close();
}

async function captureFailures(look: Look, id: string): Promise<void> {
  const { context, page, shoot } = await openStudio(look);
  const problem = { type: "about:blank", title: "Internal error", status: 500, code: "internal", detail: "the database does not answer: check the disk of the server, then try again" };
  await page.route(/\/api\/v1\/|\/metrics/, (route) => route.fulfill({ status: 500, contentType: "application/problem+json", body: JSON.stringify(problem) }));
  for (const path of [...PAGES, `sandboxes/${id}`]) {
    await page.goto(`/${path}`);
    await page.getByText("does not answer").first().waitFor();
    await shoot(`${path.split("/")[0] || "home"}-failed`);
  }
  await page.unrouteAll();
  await context.close();
}

async function captureOffline(look: Look, id: string): Promise<void> {
  const { context, page, isPhone, shoot } = await openStudio(look);
  await page.routeWebSocket(/\/events\/ws/, (socket) => { void socket.close(); });
  for (const [name, path] of [["home", "/"], ["sandbox", `/sandboxes/${id}${isPhone ? "?tab=timeline" : ""}`]] as const) {
    await page.goto(path);
    await page.getByText("What you see may be old").waitFor();
    await page.getByText("Both tests pass.").first().waitFor();
    await shoot(`${name}-offline`);
  }
  await context.close();
}

async function captureFilled(look: Look, ids: readonly string[]): Promise<void> {
  const [done = "", , working = "", asking = "", failed = ""] = ids;
  const { context, page, isPhone, shoot } = await openStudio(look);
  for (const [name, path, text] of [
    ["home", "/", "Make the parser faster"], ["new", "/new", "Agent"], ["approvals", "/approvals", "asks for approval"], ["monitor", "/monitor", "Workers connected"],
    ["projects", "/projects", "default"], ["settings", "/settings", "Can:"],
  ] as const) {
    await page.goto(path);
    await page.getByText(text).first().waitFor();
    await page.waitForLoadState("networkidle");
    // The buttons of an approval are inert at first.
    await page.locator("button[aria-disabled=true]").first().waitFor({ state: "detached" });
    await shoot(name);
  }
  await page.goto("/projects");
  await page.getByRole("link", { name: /default/ }).first().click();
  await page.getByText("Defaults of its sandboxes").waitFor();
  await shoot("project");
  await page.goto("/");
  await page.getByText("Make the parser faster").first().waitFor();
  if (!isPhone) {
    await page.keyboard.press("?");
    await page.getByRole("dialog").waitFor();
    await shoot("help");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
  }
  await page.keyboard.press("Control+K");
  await page.getByRole("combobox").waitFor();
  await shoot("palette");
  await openSandbox(page, asking);
  await page.getByRole("region", { name: /^Approval:/ }).first().waitFor();
  // The buttons are inert at first.
  await page.locator('[data-approval] button:not([aria-disabled="true"])', { hasText: "Allow" }).waitFor();
  await shoot("sandbox-approval");
  await openSandbox(page, failed);
  await timeline(page).getByText("exit code 3").first().waitFor();
  await shoot("sandbox-failed-step");
  await openSandbox(page, working, isPhone ? "timeline" : "changes");
  await timeline(page).getByText("Both tests pass.", { exact: true }).waitFor();
  if (!isPhone) await waitForPanel(page, "changes");
  await shoot("sandbox-changes");
  await page.getByLabel("Message to the agent").fill("say later");
  await page.getByRole("button", { name: "Queue", exact: true }).click();
  await page.getByRole("region", { name: "Queued messages" }).getByText("say later").waitFor();
  await shoot("sandbox-queue");
  await page.getByRole("button", { name: "Cancel the message" }).click();
  for (const tab of ["changes", "terminal", "files", "preview", "git", "events", "details"]) {
    await openSandbox(page, working, tab);
    await waitForPanel(page, tab);
    await shoot(`sandbox-${tab}`);
  }
  await page.goto(`/sandboxes/${done}/replay`);
  await page.getByRole("slider", { name: "Position" }).press("End");
  await timeline(page).getByText("Done.", { exact: true }).waitFor();
  await shoot("replay");
  await context.clearCookies();
  await page.goto("/sign-in");
  await page.getByLabel("API key").waitFor();
  await shoot("sign-in");
  await context.close();
}

mkdirSync(DIRECTORY, { recursive: true });
const browser = await launchBrowser();
const state = await signIn(browser, SERVER);
const looks: Look[] = THEMES.flatMap((theme) => WIDTHS.map((width) => ({ browser, state, width, theme })));
for (const look of looks) await captureEmpty(look);
const { page } = await openContext(browser, SERVER, state);
const ids: string[] = [];
for (const task of TASKS) ids.push(await createSandbox(page, task));
try {
  const working = ids[2] ?? "";
  for (const look of looks) {
    await captureFilled(look, ids);
    await captureLoading(look, working);
    await captureFailures(look, working);
    await captureOffline(look, working);
  }
} finally {
  for (const id of ids) await removeSandbox(page, id);
  await browser.close();
}
